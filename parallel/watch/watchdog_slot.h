/* Where a rank is: what its training thread stores, and what the watchdog's thread and messages read, without a lock.
 *
 * One thread of a rank writes. A reader gets one whole position; if the writer was stopped in the middle of storing,
 * what is there by then.
 */
#pragma once

#include <stdatomic.h>

#include "parallel/watch/incident.h"

typedef struct watchdog_position {
    int64_t step;
    int micro_batch;    /* -1: not within one */
    const char *action; /* "forward"; NULL: none. All texts must live as long as the watchdog */
    const char *op;     /* the op's label; NULL: none */
    const char
        *kind;     /* what the op is: "linear", "all_reduce"; NULL: none. For the flight record, like the next two: */
    int64_t bytes; /* of a message */
    int peer;      /* of a message: world rank; -1: none */
} watchdog_position;

typedef struct watchdog_slot {
    _Atomic uint64_t version; /* odd while it is written; half of it counts what was stored */
    _Atomic int64_t step;
    _Atomic int micro_batch, phase, storage;
    const char *_Atomic action;
    const char *_Atomic op;
} watchdog_slot;

/* What is read: the position, and how many have been stored. */
typedef struct watchdog_view {
    uint64_t moves;
    watchdog_position at;
    incident_phase phase;
    bool storage; /* files are being waited for */
} watchdog_view;

/* The same phase, another position. */
void watchdog_slot_move(watchdog_slot *s, const watchdog_position *p);
/* Another phase, and in words what is done there. */
void watchdog_slot_enter(watchdog_slot *s, incident_phase phase, bool storage, int64_t step, const char *what);
watchdog_view watchdog_slot_read(const watchdog_slot *s);
