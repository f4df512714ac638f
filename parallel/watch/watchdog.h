/* The watchdog: a thread on every rank that follows the rank's position, and ends the job when it makes no progress.
 *
 * It is opened before anything else and watches its own rank alone; watchdog_join, collective, makes the threads of a
 * job talk over sockets of their own, a star around rank 0, so that they still speak when communication is stuck. The
 * training thread stores its phase and position without a lock; every store is progress. When a rank dies, or makes no
 * progress for longer than its phase allows, every rank that can be reached is listed with its position and the peer it
 * waits for, the rank that blocks the others is named with its host, the incident and each rank's flight record are
 * written, and all processes exit with status 1. Storage that does not answer is warned of long before. One thread of a
 * rank stores positions. Functions that take a watchdog accept NULL and then have no effect.
 */
#pragma once

#include <stdint.h>

#include "memory/status.h"
#include "parallel/comm/comm.h"
#include "parallel/watch/incident.h"

history *history_new(void);
void history_free(history *h);
void history_add(history *h, const watchdog_position *e);
/* Copies the last entries, oldest first, to out[HISTORY_ENTRIES]; returns their number. */
int history_read(const history *h, watchdog_position *out);

typedef struct watchdog watchdog;

/* The watch of this rank begins at once, in the phase "start". `write` (NULL: none) is called in a thread of its own,
 * at most once, before the process ends; it may not rely on anything that the training thread could hold. */
status watchdog_open(watchdog **out, const watchdog_limits *limits, watchdog_write *write, void *context);
void watchdog_limit(watchdog *w, const watchdog_limits *limits);
/* Collective over all ranks of the job: makes them watch one another from now on. */
status watchdog_join(watchdog *w, comm *c);
/* Names this rank's device, for messages. */
void watchdog_name_device(watchdog *w, const char *device);
/* Names the id of this start, of up to INCIDENT_RUN - 1 characters, the same on all ranks: its incidents carry it. */
void watchdog_name_run(watchdog *w, const char *run);
/* Names the run's folder, for messages; once. */
void watchdog_name_folder(watchdog *w, const char *folder);
/* Returns "" if not known yet. */
const char *watchdog_run(const watchdog *w);
/* Leaves the others' watch; this rank's own goes on, in the phase "end". */
void watchdog_leave(watchdog *w);
void watchdog_close(watchdog *w);

/* Begins a phase: `what` names the work in words (a literal), `storage` is true if it waits for files. Entering the
 * same one again is progress. */
void watchdog_enter(watchdog *w, incident_phase phase, bool storage, int64_t step, const char *what);
/* Stores the rank's position within its phase: some tens of nanoseconds. */
void watchdog_at(watchdog *w, const watchdog_position *position);
/* Adds to the flight record only: no progress by itself. */
void watchdog_note(watchdog *w, const watchdog_position *position);

/* Watches work beside the training thread, by one other thread at a time (the writer of a checkpoint): until its end,
 * NULL, each call must follow the last within the limit of the phase "save". */
void watchdog_beside(watchdog *w, const char *what);

/* Reports that this rank cannot go on, for a reason that the others' watchdogs cannot see. Returns when all ranks know,
 * or after some seconds; the process must then end. Any thread, and a signal's handler, may call it. */
void watchdog_fail(watchdog *w, incident_verdict verdict, const char *words);

const char *watchdog_host(const watchdog *w);
/* Reads this rank's flight record like history_read(). */
int watchdog_read_history(const watchdog *w, watchdog_position *out);
/* Texts of this rank's position as an incident's fields. */
typedef struct watchdog_text {
    char action[96], op[112];
} watchdog_text;
incident watchdog_incident(watchdog *w, watchdog_text *text, incident_verdict verdict, const char *words);

/* Writes "step 3, micro-batch 1, forward, op layer 3/mlp/down, waiting for rank 2": fits log_set_where, with the
 * watchdog as its context. */
void watchdog_where(char *out, int bytes, void *w);
