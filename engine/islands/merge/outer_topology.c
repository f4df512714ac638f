/* The outer loop's calls, by topology. */
#include "engine/islands/islands.h"

#include "engine/islands/merge/outer_internal.h"
#include "memory/clock.h"
#include "memory/log.h"

typedef struct topology {
    status (*join)(islands *o, islands_position *p);
    status (*step)(islands *o, islands_position *p, int fragment);
    status (*save)(islands *o, islands_position *p);
    status (*leave)(islands *o, islands_position *p);
} topology;

static const topology topologies[] = {
    [CONFIG_OUTER_ALL] = {outer_join_all, outer_merge_step, outer_merge_save, outer_merge_leave},
    [CONFIG_OUTER_GOSSIP] = {outer_join_gossip, outer_gossip_step, outer_gossip_save, outer_gossip_leave},
    [CONFIG_OUTER_SERVER] = {outer_push_join, outer_push_step, outer_push_save, outer_push_leave},
};

static const topology *topology_of(const islands *o)
{
    return &topologies[o->config->outer.topology];
}

static status wait_for_others(islands *o)
{
    int least = o->config->outer.min_islands;
    double until = o->now + o->config->outer.timeout;
    TRY(outer_look(o));
    if (__builtin_popcountll(roster_ready(&o->roster)) < least)
        log_info("islands: this island waits until %d are there (outer.min_islands), %.0f s at most", least,
                 o->config->outer.timeout);
    while (__builtin_popcountll(roster_ready(&o->roster)) < least && o->now < until && !outer_must_end(o)) {
        outer_nap(o);
        TRY(outer_look(o));
    }
    int there = __builtin_popcountll(roster_ready(&o->roster));
    if (there < least)
        log_info("islands: %d of at least %d islands are there: training begins, unmerged until more come", there,
                 least);
    return STATUS_OK;
}

status islands_join(islands *o, islands_position *p, int *slot)
{
    o->step = p->step;
    status s = outer_claim(o);
    if (s == STATUS_OK)
        s = topology_of(o)->join(o, p);
    if (s == STATUS_OK) {
        outer_announce(o, p->step, p->updates);
        o->joined = true;
        s = wait_for_others(o);
    }
    *slot = o->slot;
    o->began = clock_seconds();
    return s;
}

/* Fragment i is due i H / P steps into every round of H; -1: none is. */
static int due(const islands *o, int64_t step)
{
    int64_t every = o->config->outer.every, each = every / o->config->outer.fragments;
    return step % each == 0 ? (int)(step % every / each) : -1;
}

status islands_step(islands *o, islands_position *p, islands_moment when)
{
    double began = clock_seconds();
    const topology *t = topology_of(o);
    if (when == ISLANDS_LEAVING && !o->joined)
        return STATUS_OK;
    if (when == ISLANDS_AFTER_STEP)
        o->step = p->step;
    status s = when == ISLANDS_AFTER_STEP    ? t->step(o, p, due(o, p->step))
               : when == ISLANDS_BEFORE_SAVE ? t->save(o, p)
                                             : t->leave(o, p);
    double now = clock_seconds();
    o->counts.stood += now - began;
    o->counts.elapsed = now - o->began;
    return s;
}
