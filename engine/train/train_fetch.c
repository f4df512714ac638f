/* Blocks of data in an object store are fetched before steps and evaluations read them. */
#include "engine/run/batch.h"
#include "engine/train/training_loop.h"

/* How far ahead blocks are fetched, at most. */
static const double AHEAD_SECONDS = 120;

/* Begins anew where the run is, if that is not where it should be by now: it has begun, or gone back. */
static void follow_run(training *t)
{
    training_fetched *f = &t->fetched;
    if (!f->known || f->next_step != t->at.step || f->next_samples != t->at.samples) {
        bool there = t->now.ahead == t->at.samples; /* this step's batch has been read */
        samples_expect_nothing(t->data.train);
        f->step = t->at.step + there;
        f->samples = t->at.samples + (there ? training_batch(t, t->at.step) : 0);
    }
    f->known = true;
    f->next_step = t->at.step + 1;
    f->next_samples = t->at.samples + training_batch(t, t->at.step);
}

void training_fetch_ahead(training *t)
{
    training_fetched *f = &t->fetched;
    int64_t steps = t->counts.trained_steps - 1;
    double each = steps > 0 ? t->counts.trained_seconds / (double)steps : 0;
    if (!samples_are_remote(t->data.train))
        return;
    follow_run(t);
    while (f->step < t->config->train.steps &&
           (f->step <= t->at.step + 1 || each * (double)(f->step - t->at.step) < AHEAD_SECONDS)) {
        int count = training_microbatches(t, f->step);
        if (!samples_expect(t->data.train, batch_first(&t->compiled.options, f->samples, count),
                            (int64_t)count * t->config->train.micro_batch))
            break;
        f->samples += training_batch(t, f->step++);
    }
}

void training_fetch_evaluation(const training *t, int set, int64_t end, int64_t together)
{
    samples *s = t->data.sets[set];
    int64_t mine = t->compiled.options.micro_batch, at = mine * grid_index(&t->grid, AXIS_SAMPLES);
    for (int64_t first = 0; first < end && samples_expect(s, first + at, mine); first += together)
        ;
}

blocks_counts training_counts_fetched(training *t)
{
    blocks_counts now = stored_counted(t->data.remote), *told = &t->fetched.told;
    blocks_counts since = {
        .fetched = now.fetched - told->fetched, .misses = now.misses - told->misses, .stall = now.stall - told->stall};
    *told = now;
    return since;
}
