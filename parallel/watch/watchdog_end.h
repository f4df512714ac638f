/* Inside the watchdog: its state, what a rank says of itself, and the end of a job. For watchdog.c alone. */
#pragma once

#include <poll.h>
#include <pthread.h>

#include "parallel/watch/history.h"
#include "parallel/watch/watchdog_judge.h"
#include "parallel/watch/watchdog_scribe.h"
#include "parallel/watch/watchdog_slot.h"

/* A rank that sees itself stuck, and hears no judgement for so much longer, ends alone. */
#define WATCHDOG_GRACE 4.0

/* How a rank's own failure becomes known. */
enum { WATCHDOG_FINE, WATCHDOG_FAILING, WATCHDOG_FAILED, WATCHDOG_SAID };

struct watchdog {
    struct comm *_Atomic job; /* NULL: alone */
    int rank, ranks;
    char host[INCIDENT_HOST], device[INCIDENT_DEVICE];
    _Atomic bool named; /* the device is */
    char run[INCIDENT_RUN];
    _Atomic bool started; /* the id of this start is known */
    char folder[512];
    _Atomic bool placed; /* the folder is known */
    _Atomic double limit[INCIDENT_PHASES], silent;
    watchdog_slot slot;
    history *history;

    _Atomic uint64_t beside_moves;
    const char *_Atomic beside_what; /* NULL: nothing is done beside */

    _Atomic int failing;     /* WATCHDOG_FINE, ... */
    _Atomic bool fail_waits; /* a thread waits to end the process in its own manner */
    int fail_verdict;
    char fail_words[INCIDENT_WORDS];

    watchdog_link *links;     /* [ranks] at rank 0; [1] elsewhere; NULL while alone */
    watchdog_report *reports; /* [ranks] at rank 0; elsewhere [1], of rank 0 */
    watchdog_report own;
    struct {
        uint64_t moves;
        double moved;
    } beside;
    double warned, beside_warned; /* of storage: when what was warned of had moved last */
    bool told;                    /* the hub knows that this rank fails */
    watchdog_frame lost;          /* at rank 0: the first that has only lost touch with another */
    double lost_at;               /* when it said so; 0: none has */
    double patience;              /* the job's, as rank 0 says */
    double woke;                  /* when the thread last came back from having been away */
    struct pollfd *polled;        /* one a link, and the pipe's end */
    int pipe[2];                  /* a byte wakes the thread */
    _Atomic bool stopping;
    watchdog_scribe *scribe;
    pthread_t thread;
};

watchdog_limits watchdog_end_limits(const struct watchdog *w);
/* The shortest of them. */
double watchdog_end_shortest(const struct watchdog *w);
/* This rank's place. */
void watchdog_end_frame(struct watchdog *w, watchdog_frame *f, watchdog_frame_kind kind);
/* The same as of the watchdog's thread's last look, and when it moved. */
void watchdog_end_look(struct watchdog *w, double time);
/* "step 3, micro-batch 1, forward, op layer 3/mlp/down, waiting for rank 2" */
void watchdog_end_describe(char *out, size_t bytes, const watchdog_frame *f);
incident watchdog_end_incident(const watchdog_frame *f, incident_verdict verdict, int ranks, double quiet,
                               const char *words);

int watchdog_end_links(const struct watchdog *w);
/* This rank leaves in peace. */
void watchdog_end_bye(struct watchdog *w);
/* Read until the others have closed, or so long. */
void watchdog_end_drain(struct watchdog *w, double seconds);

/* At rank 0: the judgement, everybody's position, the same to the others, and out. */
_Noreturn void watchdog_end_job(struct watchdog *w, int culprit, watchdog_cause why);
/* Elsewhere: rank 0's judgement, or this rank's own. `ours`: this rank is the one to record it. */
_Noreturn void watchdog_end_here(struct watchdog *w, const watchdog_frame *culprit, watchdog_cause why, double quiet,
                                 bool ours);
