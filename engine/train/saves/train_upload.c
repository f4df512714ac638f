/* A run's mirror beside training (engine/mirror/): the thread of rank 0 that uploads, and what is said of it. */
#include <string.h>

#include "engine/train/report/training_report.h"
#include "engine/train/saves/training_saves_internal.h"
#include "memory/log.h"
#include "memory/units.h"

/* Seconds that a run which was asked to stop waits for its last upload, at most. */
static const double MOST_AFTER_STOP = 60;

status training_upload_open(training *t)
{
    training_mirroring *m = &t->saves->mirroring;
    const config *c = t->config;
    if (!c->checkpoint.mirror || comm_rank(t->world) > 0)
        return STATUS_OK;
    mirror_owner owner = {.folder = c->run.folder};
    snprintf(owner.run, sizeof owner.run, "%s", m->id);
    TRY(mirror_open(&m->thread, &(mirror_options){.url = c->checkpoint.mirror,
                                                  .start = t->run,
                                                  .folder = t->folder,
                                                  .largest = t->saving.copy_bytes,
                                                  .keep = c->checkpoint.keep,
                                                  .keep_every = c->checkpoint.keep_every,
                                                  .held = m->held,
                                                  .owner = &owner}));
    t->saving.mirror = &m->facts;
    const char *slash = t->guards.origin ? strrchr(t->guards.origin, '/') : NULL;
    if (slash && !t->new_stage && mirror_prefix_step(slash + 1) >= 0)
        mirror_offer(m->thread, slash + 1);
    return STATUS_OK;
}

/* What has changed since the last look is an event. */
void training_upload_look(training *t)
{
    training_mirroring *m = &t->saves->mirroring;
    if (!m->thread)
        return;
    mirror_facts before = m->facts;
    m->facts = mirror_now(m->thread);
    if (m->facts.uploaded > before.uploaded)
        training_event(t, "mirrored", m->facts.step, m->facts.name);
    if (m->facts.failing && !before.failing)
        training_event(t, "mirror failing", t->at.step, m->facts.why);
}

/* The watchdog lets a save take run.save_seconds. */
void training_upload_finish(training *t, bool stopped)
{
    double most = 0.8 * t->config->run.save_seconds;
    char left[UNITS_TEXT];
    most = stopped && most > MOST_AFTER_STOP ? MOST_AFTER_STOP : most;
    if (!t->config->checkpoint.mirror)
        return;
    watchdog_enter(t->watchdog, DURING_SAVE, comm_rank(t->world) == 0, t->at.step, "waiting for the mirror");
    training_upload_look(t);
    const mirror_facts *f = &t->saves->mirroring.facts;
    units_bytes(left, (double)f->behind_bytes);
    if (t->saves->mirroring.thread && f->behind_bytes > 0)
        log_info("waiting for %s to %s, for %.0f s at most", left, t->config->checkpoint.mirror, most);
    bool all = !t->saves->mirroring.thread || mirror_finish(t->saves->mirroring.thread, most);
    training_upload_look(t);
    units_bytes(left, (double)f->behind_bytes);
    if (!all && !f->ended)
        log_warn("checkpoint.mirror: %s of the last checkpoint are not in %s yet%s%s: it is in %s; the same command "
                 "begins with what is missing, and trains on only if steps are left",
                 left, t->config->checkpoint.mirror, *f->why ? ": " : "", f->why, t->checkpoints);
    (void)comm_all_status(comm_world(t->world), STATUS_OK);
}
