/* An incident: the failure, its rank and host, and the rank's activity. Plain values, the texts owned by the maker: the
 * watchdog and the training loop make incidents, and writers use them at once. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The phases of a rank's life. Each has a limit of time without progress. */
typedef enum incident_phase {
    DURING_START, /* joining the job */
    DURING_SETUP,
    DURING_LOAD,
    DURING_STEP,
    DURING_EVALUATION,
    DURING_SAVE,
    DURING_END, /* leaving the job */
    INCIDENT_PHASES,
} incident_phase;

typedef enum incident_verdict {
    INCIDENT_LINK,    /* a rank lost touch with another and no other report says why: it need not be to blame */
    INCIDENT_DEAD,    /* a process is gone */
    INCIDENT_FROZEN,  /* a process, its machine or its device makes no progress */
    INCIDENT_SLOW,    /* progress continues, but later than the others' */
    INCIDENT_STORAGE, /* a file system does not answer, or refuses */
    INCIDENT_DATA,    /* the training data is invalid */
    INCIDENT_NUMBERS, /* gradients or losses are unusable for training */
    INCIDENT_REFUSED, /* any other reason for which ranks cannot continue */
    INCIDENT_VERDICTS,
} incident_verdict;

enum { INCIDENT_HOST = 64, INCIDENT_DEVICE = 132, INCIDENT_WORDS = 512, INCIDENT_RUN = 40 };

typedef struct incident {
    incident_verdict verdict;
    incident_phase phase; /* INCIDENT_PHASES: not known */
    int rank, ranks;      /* rank -1: not known */
    const char *host;     /* NULL: not known */
    const char *device;   /* NULL or "": not known */
    int64_t step;
    int micro_batch;    /* -1: not within one */
    const char *action; /* "forward"; NULL or "": none */
    const char *op;     /* its label; NULL or "": none */
    int waiting_for;    /* world rank, or -1 */
    double quiet;       /* seconds since its last progress */
    const char *run;    /* the id of the start that it happened to; NULL or "": not known */
    const char *words;  /* one sentence for people */
    bool ends;          /* the job ends with it */
} incident;

typedef struct watchdog_limits {
    double phase[INCIDENT_PHASES]; /* seconds without progress */
    double silent;                 /* seconds without a frame */
} watchdog_limits;

/* Writes an incident. `ours`: this rank is the one to record it; else write only this rank's own knowledge. */
typedef void watchdog_write(void *context, const incident *what, bool ours);

const char *incident_phase_name(incident_phase p);     /* "set-up", "step", ... */
const char *incident_verdict_name(incident_verdict v); /* "dead", "frozen", ... */

/* The flight record: the last ops and messages of a rank, with times, in a ring.
 *
 * One thread adds, in some tens of nanoseconds and without a lock; any thread may read while it does, and then the
 * oldest entry may be half of a newer one. Texts are pointers, which must outlive the history: labels of a program,
 * literals. */
enum { HISTORY_ENTRIES = 2000 };

typedef struct history history;

/* A rank's position as its training thread reports it (watchdog_at()). Texts must live as long as the watchdog. */
typedef struct watchdog_position {
    int64_t time; /* CLOCK_MONOTONIC, nanoseconds; history_add fills it in */
    int64_t step;
    int micro_batch;    /* -1: not within one */
    int peer;           /* a message's world rank; -1: none, or a whole group */
    int64_t bytes;      /* a message's size; 0: none */
    const char *action; /* "forward", "save"; NULL: none */
    const char *op;     /* the op's label; NULL: none */
    const char *kind;   /* "linear", "all_reduce"; NULL: none */
} watchdog_position;
