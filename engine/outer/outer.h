/* The outer loop: this job as one island among others, which merge what changed every outer.every steps.
 *
 * After a step the loop calls outer_step, which, where a merge is due, takes the change since the last one, offers it,
 * fetches the others' and applies what etcd says was merged (islands/roster.h): at once, or, with outer.delay, some
 * steps later while training goes on. Outer state (reference, momentum, error feedback) is divided over the ranks by
 * units (islands/units.h) and lies in one arena planned before the run. Every call is collective over the job's ranks.
 * Owned by the caller.
 */
#pragma once

#include <jansson.h>

#include "engine/config/config.h"
#include "engine/run/executor.h"
#include "engine/checkpoint/checkpoint.h"
#include "parallel/watch/watchdog.h"

typedef struct outer outer;

/* Where the model is: part of what a newcomer takes over. */
typedef struct outer_position {
    int64_t step, updates; /* as in training.h */
    bool fresh_moments;    /* set where the optimizer's states have been emptied */
} outer_position;

/* The delta at which the privacy of outer.noise is told. */
#define OUTER_DELTA 1e-5

/* What outer.* costs, without a job. */
typedef struct outer_plan {
    int64_t arena;          /* bytes of host memory of the rank that needs most */
    int64_t queued;         /* bytes of answers that wait for other islands, at most, beside it, on each rank */
    int64_t change;         /* an encoded change of the whole model, with what its messages add */
    int64_t sent, received; /* by an island, in outer.every steps */
    int64_t model,
        server_arena; /* of topology server: the model on its way; host memory of a server on one rank; else 0 */
    double seconds;   /* of what is sent (with a server, and then received) at a bandwidth */
    double epsilon;   /* of outer.noise, after train.steps; 0 without */
    double computing; /* share of the time, with steps of so many seconds */
} outer_plan;

outer_plan outer_plan_of(const config *c, int ranks, double step_seconds, double bits_a_second);

status outer_open(outer **out, const config *c, compiled *k, executor *e, comm *world, watchdog *w);
/* Leaves the other islands. NULL is accepted. */
void outer_close(outer *o);

/* What a checkpoint holds of it. */
const checkpoint_piece *outer_pieces(int *count, const outer *o);
json_t *outer_meta(const outer *o);
/* Once the weights are in place: from a checkpoint, or, with NULL, the weights are the reference. */
status outer_restore(outer *o, checkpoint *from);

/* Joins the others: claims a slot, and takes model and position from one of them if it is behind. *slot: of the
 * samples. */
status outer_join(outer *o, outer_position *p, int *slot);
/* After each step. */
status outer_step(outer *o, outer_position *p);
/* Before a checkpoint: nothing that it would lack is under way any more. */
status outer_before_save(outer *o, outer_position *p);
/* The job was asked to stop: hands over its change, if the others come to a merge in time. */
status outer_part(outer *o, outer_position *p);

/* The loss of this step, the last one done, jumps (run.spike), or the step was skipped: with outer.undo, and where the
 * weights took a merge just before it, this island wants that undone. To be called on all ranks alike. */
void outer_found_spike(outer *o, int64_t step);

typedef struct outer_counts {
    int64_t merges, missed; /* taken part in; gone by without this island, or given up */
    int64_t sent, received; /* bytes, of all ranks */
    int64_t refused;        /* messages, connections, changes that were not finite */
    double waited;          /* seconds that training has waited for other islands */
    double stood,
        elapsed;      /* and stood still for outer steps, waiting or not; from its begin to the end of the last one */
    int64_t clipped;  /* changes that outer.clip has scaled */
    int64_t left_out; /* changes that outer.robust trimmed has left out of merges */
    int64_t undone;   /* merges that outer.undo has undone */
    int64_t releases; /* with outer.noise: changes offered, in the run's former processes too */
    double epsilon;   /* of them, islands/privacy.h; at OUTER_DELTA */
    double disagreement;       /* gossip: |weights - mean| / |mean| of the last exchange */
    int64_t disagreement_step; /* 0: there was none yet */
} outer_counts;

outer_counts outer_counted(outer *o);
/* As in outer_counts, of this job alone and without asking its ranks. */
double outer_disagreement(int64_t *step, const outer *o);
