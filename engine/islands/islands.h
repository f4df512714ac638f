/* Islands: jobs that train apart and merge what changed every outer.every steps (outer.*). The face of this room: a
 * training job that is an island, the server that holds the model for islands of outer.topology server, and what the
 * program says of both.
 *
 * After a step the training loop calls islands_step, which, where a merge is due, takes the change since the last one,
 * offers it, fetches the others' and applies what etcd says was merged (meet/roster.h): at once, or, with outer.delay,
 * some steps later while training goes on. Outer state (reference, momentum, error feedback) is divided over the ranks
 * by units (merge/units.h) and lies in one arena planned before the run. Calls on an `islands` are collective over the
 * job's ranks. Owned by the caller.
 */
#pragma once

#include <jansson.h>

#include "engine/checkpoint/checkpoint.h"
#include "engine/config/config.h"
#include "memory/scope.h"

typedef struct compiled compiled;
typedef struct executor executor;
typedef struct comm comm;
typedef struct watchdog watchdog;

typedef struct islands islands;

/* Where the model is: part of what a newcomer takes over. */
typedef struct islands_position {
    int64_t step, updates; /* as in training.h */
    bool fresh_moments;    /* set where the optimizer's states have been emptied */
} islands_position;

/* The delta at which the privacy of outer.noise is told. */
#define ISLANDS_DELTA 1e-5

/* What outer.* costs, without a job. */
typedef struct islands_plan {
    int64_t arena;          /* bytes of host memory of the rank that needs most */
    int64_t queued;         /* bytes of answers that wait for other islands, at most, beside it, on each rank */
    int64_t change;         /* an encoded change of the whole model, with what its messages add */
    int64_t sent, received; /* by an island, in outer.every steps */
    int64_t model,
        server_arena; /* of topology server: the model on its way; host memory of a server on one rank; else 0 */
    double seconds;   /* of what is sent (with a server, and then received) at a bandwidth */
    double epsilon;   /* of outer.noise, after train.steps; 0 without */
    double computing; /* share of the time, with steps of so many seconds */
} islands_plan;

islands_plan islands_plan_of(const config *c, int ranks, double step_seconds, double bits_a_second);

status islands_open(islands **out, const config *c, compiled *k, executor *e, comm *world, watchdog *w);
/* Leaves the other islands. NULL is accepted. */
void islands_close(islands *o);
AUTO_CLOSES(islands, islands_close)

/* What a checkpoint holds of it. */
const checkpoint_piece *islands_pieces(int *count, const islands *o);
json_t *islands_meta(const islands *o);
/* Once the weights are in place: from a checkpoint, or, with NULL, the weights are the reference. */
status islands_restore(islands *o, checkpoint *from);

/* Joins the others: claims a slot, and takes model and position from one of them if it is behind. *slot: of the
 * samples. */
status islands_join(islands *o, islands_position *p, int *slot);

typedef enum islands_moment {
    ISLANDS_AFTER_STEP,
    ISLANDS_BEFORE_SAVE, /* of a checkpoint: nothing that it would lack is under way any more */
    ISLANDS_LEAVING,     /* the job was asked to stop: hands over its change, if the others come to a merge in time */
} islands_moment;

status islands_step(islands *o, islands_position *p, islands_moment when);

/* The loss of this step, the last one done, jumps (run.spike), or the step was skipped: with outer.undo, and where the
 * weights took a merge just before it, this island wants that undone. To be called on all ranks alike. */
void islands_found_spike(islands *o, int64_t step);

typedef struct islands_counts {
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
    double epsilon;   /* of them, merge/rule.h; at ISLANDS_DELTA */
    double disagreement;       /* gossip: |weights - mean| / |mean| of the last exchange */
    int64_t disagreement_step; /* 0: there was none yet */
} islands_counts;

islands_counts islands_counted(islands *o);
/* As in islands_counts, of this job alone and without asking its ranks. */
double islands_disagreement(int64_t *step, const islands *o);

/* `phalanx server`: holds the model for islands of outer.topology server, until a signal stops it (*stopped: it has
 * saved), or the model has done train.steps and no island has been there for outer.timeout seconds. It goes on from the
 * latest checkpoint of run.folder; else from model.from, or the weights that training would draw. Collective. */
status islands_serve(bool *stopped, const config *c, comm *world, watchdog *w);

/* Draws an island's pair of keys; a folder that has one is refused. */
status islands_make_keys(const char *folder);

#define ISLANDS_CREDENTIALS "PHALANX_ETCD_CREDENTIALS" /* of the environment: USER:PASSWORD of etcd */

/* Prints who has met at an etcd, with the credentials of a file, or, with NULL, of the environment. */
status islands_show(const char *addresses, const char *credentials);
