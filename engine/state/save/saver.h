/* Saves the state of a run during training: a copy of the state in planned host memory, and a thread that writes it.
 *
 * A save goes through stages, which all ranks enter together: shares (each rank's copy is taken, written and read
 * back), then publishing (rank 0 makes it the latest). One save is in progress at a time. The copy is taken while the
 * next step computes, and that step's update waits for it (executor_before_change). No allocation after saver_open
 * grows with the model. Without a copy (checkpoint.asynchronous=false) the same stages happen within saver_begin and
 * saver_next, and the state is written in place.
 *
 * Ranks exchange their saver_progress in any exchange they make anyway, and call saver_next with the result over all
 * ranks. Functions are called by the training thread. Close the saver before the executor.
 */
#pragma once

#include <jansson.h>

#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/run/executor.h"

typedef struct saver saver;
typedef struct lock lock;                 /* engine/system/lock.h */
typedef struct share_source share_source; /* engine/checkpoint/share.h */

typedef struct saver_options {
    const compiled *compiled;
    executor *executor;
    const char *folder; /* folder of checkpoints */
    const char *run;    /* id of this run */
    int rank, ranks;
    const checkpoint_extra *extras; /* rank 0's; their data outlives the saver */
    int extra_count;
    bool asynchronous;
    int keep, keep_every;
    const checkpoint_piece *more; /* pieces in other host memory, each contiguous; the caller's */
    int more_count;
    watchdog *watchdog;                                 /* monitors the thread's work; NULL: none */
    lock *owner;                                        /* lock of the run's folder; NULL: none */
    status (*may_publish)(void *context);               /* called by rank 0's thread; NULL: always */
    void (*published)(void *context, const char *name); /* called by rank 0's thread before pruning; or NULL */
    bool (*needs)(void *context, const char *name);     /* true if pruning must keep that one; NULL: never */
    void *context;
} saver_options;

/* Returns the host memory that a saver takes. */
int64_t saver_bytes(const compiled *c, executor *e, const checkpoint_piece *more, int more_count, bool asynchronous);

status saver_open(saver **out, const saver_options *options);
/* Waits for the write in progress; discards an unpublished save. Accepts NULL. */
void saver_close(saver *s);
AUTO_CLOSES(saver, saver_close)

/* Starts to save the state after `step`; takes `meta` (rank 0's, else NULL). No save may be in progress. With `memory`,
 * which must outlive the save, sealed shares are written there, in this node's memory, and no checkpoint is
 * published. */
void saver_begin(saver *s, int64_t step, json_t *meta, const share_source *memory);
typedef enum saver_progress {
    SAVER_IDLE, /* no save in progress */
    SAVER_WORKING,
    SAVER_READY, /* ready for the next stage */
    SAVER_FAILED,
} saver_progress;

saver_progress saver_progress_of(saver *s);
/* Waits until this rank is no longer SAVER_WORKING. */
void saver_wait(saver *s);
/* Returns the status, with its message, of this rank's work in this stage; not while it is SAVER_WORKING. */
status saver_result(const saver *s);

/* Advances the save by whether any rank works or has failed: the same on all ranks. Returns true when the save is over:
 * published, or, if any rank has failed, given up. */
bool saver_next(saver *s, bool any_working, bool any_failed);

/* The save in progress, or the last one. */
typedef struct saver_facts {
    char name[32];
    bool in_memory; /* saved to memory, not to the run's checkpoints */
    bool refused;   /* this rank's share failed because a value of the state is not finite */
    double seconds; /* seconds that this rank spent writing */
} saver_facts;

const saver_facts *saver_last(const saver *s);
/* Returns the seconds that training has waited for the saver since the last call. */
double saver_stall(saver *s);
