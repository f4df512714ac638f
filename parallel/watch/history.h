/* The flight record: the last ops and messages of a rank, with times, in a ring.
 *
 * One thread adds, in some tens of nanoseconds and without a lock; any thread may read while it does, and then the
 * oldest entry may be half of a newer one. Texts are pointers, which must outlive the history: labels of a program,
 * literals.
 */
#pragma once

#include <stdint.h>

enum { HISTORY_ENTRIES = 2000 };

typedef struct history history;

typedef struct history_entry {
    int64_t time; /* CLOCK_MONOTONIC, nanoseconds; history_add fills it in */
    int64_t step;
    int32_t micro_batch; /* -1: not within one */
    int32_t peer;        /* of a message: world rank; -1: none, or a whole group */
    int64_t bytes;       /* of a message; 0: none */
    const char *action;  /* "forward", "save"; may be NULL */
    const char *op;      /* the label; may be NULL */
    const char *kind;    /* "linear", "all_reduce"; may be NULL */
} history_entry;

/* Where a rank is, as its training thread says (watchdog_at()). */
typedef struct watchdog_position {
    int64_t step;
    int micro_batch;    /* -1: not within one */
    const char *action; /* "forward"; NULL: none. All texts must live as long as the watchdog */
    const char *op;     /* the op's label; NULL: none */
    const char *kind;   /* "linear", "all_reduce"; NULL: none. For the flight record, like the next two: */
    int64_t bytes;      /* of a message */
    int peer;           /* of a message: world rank; -1: none */
} watchdog_position;

history *history_new(void);
void history_free(history *h);
void history_add(history *h, const history_entry *e);
/* The last entries, oldest first, to out[HISTORY_ENTRIES]; returns how many. */
int history_read(const history *h, history_entry *out);
