/* Saves the state of a run, beside its training: a copy of the state in planned host memory, and a thread that writes
 * it.
 *
 * A save goes through stages, which all ranks enter together: shares (each rank's copy is taken, written and read
 * back), then publishing (rank 0 makes it the latest). One save is under way at a time. The copy is taken while the
 * next step computes, and that step's update waits for it (executor_before_change). Nothing that grows with the model
 * is allocated after saver_open. Without a copy (checkpoint.asynchronous=false) the same stages happen within
 * saver_begin and saver_next, and the state is written from where it lies.
 *
 * Ranks say how far they are, with saver_progress, in whatever exchange they have anyway, and call saver_next with what
 * all have said. Functions are called by the training thread. The saver is closed before the executor.
 */
#pragma once

#include <jansson.h>

#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/run/executor.h"

typedef struct saver saver;
typedef struct share_place share_place; /* engine/checkpoint/share.h */

typedef struct saver_options {
    const compiled *compiled;
    executor *executor;
    const char *folder; /* of checkpoints */
    const char *run;    /* this run's id */
    int rank, ranks;
    const checkpoint_extra *extras; /* of rank 0; their data outlives the saver */
    int extra_count;
    bool asynchronous;
    int keep, keep_every;
    const checkpoint_piece *more; /* what lies in other host memory, in one run each; the caller's */
    int more_count;
    watchdog *watchdog;                                 /* hears of the thread's work; NULL: nobody does */
    bool (*may_publish)(void *context);                 /* asked by rank 0's thread; NULL: always */
    void (*published)(void *context, const char *name); /* told by rank 0's thread, before others are pruned; or NULL */
    bool (*needs)(void *context, const char *name);     /* must that one stay? NULL: none must */
    void *context;
} saver_options;

/* Host memory that a saver takes. */
int64_t saver_bytes(const compiled *c, executor *e, const checkpoint_piece *more, int more_count, bool asynchronous);

status saver_open(saver **out, const saver_options *options);
/* Waits for what is being written; an unpublished save is discarded. NULL is accepted. */
void saver_close(saver *s);
AUTO_CLOSES(saver, saver_close)

/* Begin to save the state as it is after `step`; `meta` (rank 0's, else NULL) becomes the saver's. None may be under
 * way. `memory`, unless NULL, outlives the save: where in this node's memory shares are written, sealed, and nothing
 * is published. */
void saver_begin(saver *s, int64_t step, json_t *meta, const share_place *memory);
typedef enum saver_progress {
    SAVER_IDLE, /* none is under way */
    SAVER_WORKING,
    SAVER_READY, /* for the next stage */
    SAVER_FAILED,
} saver_progress;

saver_progress saver_progress_of(saver *s);
/* Until this rank is no longer SAVER_WORKING. */
void saver_wait(saver *s);
/* The status, with its message, of what this rank did in this stage; not while it is SAVER_WORKING. */
status saver_result(const saver *s);

/* Some rank works, some rank has failed: the same on all ranks. The save is over when it returns true: published, or,
 * if any has failed, given up. */
bool saver_next(saver *s, bool any_working, bool any_failed);

/* The save under way, or the last one. */
typedef struct saver_facts {
    char name[32];
    bool in_memory; /* it goes there, and not to the run's checkpoints */
    bool refused;   /* this rank's share has failed since a value of the state is not finite */
    double seconds; /* that its writing has taken on this rank */
} saver_facts;

const saver_facts *saver_last(const saver *s);
/* Seconds that training has waited for the saver since this was last asked. */
double saver_stall(saver *s);
