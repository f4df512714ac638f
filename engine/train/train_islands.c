/* A job that is an island: the outer loop's calls, with the run's position. */
#include "engine/islands/islands.h"
#include "engine/train/training_loop.h"
#include "engine/train/report/training_report.h"
#include "engine/train/saves/training_saves.h"

static islands_position position_of(const training_position *at)
{
    return (islands_position){at->step, at->updates, false};
}

/* Another island's, where its model was taken over. */
static void take_position(training *t, const islands_position *p)
{
    if (!p->fresh_moments)
        return;
    t->at.step = p->step;
    t->at.updates = t->at.moments = p->updates;
    t->at.samples = training_samples_at(t, p->step) + train_past_omitted(&t->at.past);
    t->now.ahead = -1;
}

static status outside(training *t, islands_moment when)
{
    islands_position p = position_of(&t->at);
    if (!t->islands)
        return STATUS_OK;
    status s = islands_step(t->islands, &p, when);
    take_position(t, &p);
    return s;
}

status training_islands_join(training *t)
{
    islands_position p = position_of(&t->at);
    if (!t->islands)
        return STATUS_OK;
    TRY(islands_join(t->islands, &p, &t->slot));
    take_position(t, &p);
    if (!t->config->outer.private_data)
        samples_interleave(t->data.train, t->slot, t->config->outer.slots);
    return STATUS_OK;
}

status training_islands_step(training *t)
{
    int64_t before = 0, after = 0;
    if (t->islands)
        (void)islands_disagreement(&before, t->islands);
    TRY(outside(t, ISLANDS_AFTER_STEP));
    double apart = t->islands ? islands_disagreement(&after, t->islands) : 0;
    if (after != before)
        training_report_disagreement(t, apart);
    return STATUS_OK;
}

status training_islands_save(training *t)
{
    return outside(t, ISLANDS_BEFORE_SAVE);
}

status training_islands_leave(training *t)
{
    if (!t->islands)
        return STATUS_OK;
    TRY(training_save_finish(t)); /* what is on its way to the disk is the state before */
    return outside(t, ISLANDS_LEAVING);
}
