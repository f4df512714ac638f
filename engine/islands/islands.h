/* Islands: jobs that train apart and merge their changes every outer.every steps (outer.*). This room's interface: a
 * training job that is an island, the server that holds the model for islands of outer.topology server, and the
 * program's reports of both.
 *
 * After a step the training loop calls islands_step, which, where a merge is due, takes the change since the last one,
 * offers it, fetches the others' and applies the merge that etcd states (meet/roster.h): at once, or, with outer.delay,
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

/* The model's position: part of the state that a newcomer takes over. */
typedef struct islands_position {
    int64_t step, updates; /* like those in training.h */
    bool fresh_moments;    /* set where the optimizer's states have been emptied */
} islands_position;

/* The delta at which the privacy of outer.noise is stated. */
#define ISLANDS_DELTA 1e-5

/* Costs of outer.*, computed without a job. */
typedef struct islands_plan {
    int64_t arena;          /* host memory of the rank that needs most, bytes */
    int64_t queued;         /* limit of each rank's answers waiting for other islands, beside the arena, bytes */
    int64_t change;         /* an encoded change of the whole model, with its messages' overhead, bytes */
    int64_t sent, received; /* bytes by an island in outer.every steps */
    int64_t model,
        server_arena; /* topology server: bytes of the model in transit; of a server's arena on one rank; else 0 */
    double seconds;   /* time of sending (with a server, and then receiving) at a bandwidth */
    double epsilon;   /* privacy loss of outer.noise after train.steps; 0 without */
    double computing; /* share of the time, with steps of step_seconds */
} islands_plan;

islands_plan islands_plan_of(const config *c, int ranks, double step_seconds, double bits_a_second);

status islands_open(islands **out, const config *c, compiled *k, executor *e, comm *world, watchdog *w);
/* Leaves the other islands. NULL is accepted. */
void islands_close(islands *o);
AUTO_CLOSES(islands, islands_close)

/* Returns the pieces that a checkpoint holds. */
const checkpoint_piece *islands_pieces(int *count, const islands *o);
json_t *islands_meta(const islands *o);
/* Takes the state from a checkpoint, or, with NULL, the weights as the reference; the weights must be in place. */
status islands_restore(islands *o, checkpoint *from);

/* Joins the others: claims a slot, and takes model and position from an island that is further. *slot: selects the
 * samples. */
status islands_join(islands *o, islands_position *p, int *slot);

typedef enum islands_moment {
    ISLANDS_AFTER_STEP,
    ISLANDS_BEFORE_SAVE, /* saving a checkpoint: no merge is under way any more that it would lack */
    ISLANDS_LEAVING,     /* the job was asked to stop: hands over its change, if the others merge in time */
} islands_moment;

status islands_step(islands *o, islands_position *p, islands_moment when);

/* Tells that the loss of this step, the last one done, jumps (run.spike), or that the step was skipped: with
 * outer.undo, and if the weights took a merge just before it, this island votes to undo that. Collective. */
void islands_found_spike(islands *o, int64_t step);

typedef struct islands_counts {
    int64_t merges, missed; /* taken part in; missed or given up */
    int64_t sent, received; /* bytes of all ranks */
    int64_t refused;        /* messages, connections and non-finite changes refused */
    double waited;          /* seconds that training waited for other islands */
    double stood,
        elapsed;      /* seconds stopped for outer steps, waiting or not; from training's start to the last of them */
    int64_t clipped;  /* changes scaled by outer.clip */
    int64_t left_out; /* changes that outer.robust trimmed left out of merges */
    int64_t undone;   /* merges undone by outer.undo */
    int64_t releases; /* outer.noise: changes offered, including the run's former processes */
    double epsilon;   /* their privacy loss (merge/rule.h) at ISLANDS_DELTA */
    double disagreement;       /* gossip: |weights - mean| / |mean| of the last exchange */
    int64_t disagreement_step; /* 0: none yet */
} islands_counts;

islands_counts islands_counted(islands *o);
/* Returns this job's value of islands_counts, without asking its ranks. */
double islands_disagreement(int64_t *step, const islands *o);

/* Runs `phalanx server`: holds the model for islands of outer.topology server, until a signal stops it (*stopped: it
 * has saved), or the model has done train.steps and no island has been there for outer.timeout seconds. It resumes from
 * the latest checkpoint of run.folder; else from model.from, or the initial weights of training. Collective. */
status islands_serve(bool *stopped, const config *c, comm *world, watchdog *w);

/* Draws an island's pair of keys; refuses a folder that has one. */
status islands_make_keys(const char *folder);

#define ISLANDS_CREDENTIALS "PHALANX_ETCD_CREDENTIALS" /* environment variable with etcd's USER:PASSWORD */

/* Prints the islands of an etcd, with the credentials of a file, or, with NULL, of the environment. */
status islands_show(const char *addresses, const char *credentials);
