/* The watchdog's internals: a rank's position, the sockets, the judgement, the state, and the end of a job. Used only
 * by watchdog.c, watchdog_link.c and watchdog_end.c. */
#pragma once

#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "parallel/comm/comm.h"
#include "parallel/watch/incident.h"

typedef struct watchdog watchdog;

/* ---- where a rank is: stored by its training thread, read by the watchdog's and by messages, without a lock ---- */

/* One thread of a rank writes. A reader gets one whole position, or a partial one if the writer was stopped in the
 * middle of storing. */
typedef struct watchdog_slot {
    _Atomic uint64_t version; /* odd while it is written; half of it counts the stores */
    _Atomic int64_t step;
    _Atomic int micro_batch, phase, storage;
    const char *_Atomic action;
    const char *_Atomic op;
} watchdog_slot;

/* A slot as read: the position, and the number of stores. */
typedef struct watchdog_view {
    uint64_t moves;
    watchdog_position at;
    incident_phase phase;
    bool storage; /* files are being waited for */
} watchdog_view;

watchdog_view watchdog_slot_read(const watchdog_slot *s);

/* ---- the sockets: a star around rank 0, and the frames that travel along it ---- */

typedef enum watchdog_frame_kind {
    WATCHDOG_HELLO,
    WATCHDOG_WELCOME,
    WATCHDOG_BEAT, /* this rank is alive */
    WATCHDOG_BYE,  /* this rank leaves, all is well */
    WATCHDOG_FAIL, /* this rank fails: `verdict` and `words` say why */
    WATCHDOG_END,  /* rank 0's judgement: `rank` is to blame, this was its position, `cause` says why */
} watchdog_frame_kind;

/* Sent in the machine's own byte order: the ranks of a job are of one kind. */
typedef struct watchdog_frame {
    uint64_t token; /* HELLO, WELCOME */
    uint64_t moves; /* grows with every progress */
    int64_t step;
    int32_t kind, rank, micro_batch;
    int32_t waiting_for; /* world rank or -1 */
    int32_t phase;       /* incident_phase */
    int32_t storage;     /* files are being waited for */
    int32_t verdict;     /* FAIL: incident_verdict */
    int32_t cause;       /* END: watchdog_cause */
    float patience;      /* rank 0's BEAT: seconds that any rank may go without progress just now */
    float quiet;         /* END: seconds since its last progress */
    char action[96], op[112];
    char host[INCIDENT_HOST], device[INCIDENT_DEVICE], words[INCIDENT_WORDS];
} watchdog_frame;

typedef struct watchdog_link {
    int fd; /* -1: none */
    unsigned got, owed;
    watchdog_frame in, out;
    char host[INCIDENT_HOST]; /* the other side's */
} watchdog_link;

/* Connects the ranks; collective. `links` is [ranks] at rank 0 (its own stays unused), and [1] elsewhere. */
status watchdog_link_star(watchdog_link *links, comm *c);
void watchdog_link_close(watchdog_link *l);
/* Sends, unless an earlier frame still blocks the way. False: the connection is broken. */
bool watchdog_link_send(watchdog_link *l, const watchdog_frame *f);
/* Returns 1: a frame arrived; 0: none has; -1: the other side is gone. */
int watchdog_link_receive(watchdog_link *l, watchdog_frame *out);

/* ---- the rank that holds up the job: a pure function of every rank's report, no socket, no clock ---- */

typedef enum watchdog_cause {
    CAUSE_GONE,
    CAUSE_SILENT,
    CAUSE_STUCK,
    CAUSE_CIRCLE,
    CAUSE_LEFT,
    CAUSE_FAILED, /* the rank said so itself */
    WATCHDOG_CAUSES,
} watchdog_cause;

/* The state of one rank as last heard. */
typedef struct watchdog_report {
    watchdog_frame last;
    double heard, moved; /* seconds: when its last frame came; when it last made progress */
    bool left;
} watchdog_report;

/* The longest limit of the phases of ranks that do not wait for another rank: others may wait for them. */
double watchdog_judge_patience(const watchdog_report *reports, int ranks, const watchdog_limits *limits);

/* True if a rank is over its limit; then *culprit is the rank that blocks the others, and *why says how. Ranks with a
 * limit of their own below the job's patience are excused: their time begins anew. `beat`: seconds between frames. */
bool watchdog_judge(int *culprit, watchdog_cause *why, watchdog_report *reports, int ranks, double time,
                    const watchdog_limits *limits, double beat);

/* ---- the state, a rank's report of itself, and the end of a job ---- */

/* Seconds after which a rank that sees itself stuck, and hears no judgement, ends alone. */
#define WATCHDOG_GRACE 4.0

/* Stages of a rank's own failure becoming known. */
enum { WATCHDOG_FINE, WATCHDOG_FAILING, WATCHDOG_FAILED, WATCHDOG_SAID };

/* A thread that waits for the end: it writes the incident while the watchdog's thread keeps the time, because the
 * incident's storage may be the one that does not answer. */
typedef struct watchdog_scribe {
    watchdog_write *write; /* NULL: no incident is written */
    void *context;
    sem_t asked, done;
    incident what;
    bool ours, ends;
    pthread_t thread;
} watchdog_scribe;

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
    const char *_Atomic beside_what; /* NULL: no work is done beside */

    _Atomic int failing;     /* WATCHDOG_FINE, ... */
    _Atomic bool fail_waits; /* a thread waits to end the process in its own manner */
    int fail_verdict;
    char fail_words[INCIDENT_WORDS];

    watchdog_link *links;     /* [ranks] at rank 0; [1] elsewhere; NULL while alone */
    watchdog_report *reports; /* [ranks] at rank 0; elsewhere [1], rank 0's */
    watchdog_report own;
    struct {
        uint64_t moves;
        double moved;
    } beside;
    double warned, beside_warned; /* time of the last progress when storage was last warned of */
    bool told;                    /* the hub knows that this rank fails */
    watchdog_frame lost;          /* rank 0: the first rank that has only lost touch with another */
    double lost_at;               /* when it said so; 0: none has */
    double patience;              /* the job's, as rank 0 says */
    double woke;                  /* when the thread last returned from having been stopped */
    struct pollfd *polled;        /* one a link, and the pipe's end */
    int pipe[2];                  /* a byte wakes the thread */
    _Atomic bool stopping;
    watchdog_scribe scribe;
    pthread_t thread;
};

status watchdog_scribe_open(watchdog *w, watchdog_write *write, void *context);
void watchdog_scribe_close(watchdog *w);

watchdog_limits watchdog_end_limits(const struct watchdog *w);
/* The shortest limit. */
double watchdog_end_shortest(const struct watchdog *w);
/* Fills a frame with this rank's position. */
void watchdog_end_frame(struct watchdog *w, watchdog_frame *f, watchdog_frame_kind kind);
/* Notes this rank's position as seen by the watchdog's thread, and when it moved. */
void watchdog_end_look(struct watchdog *w, double time);
/* Writes "step 3, micro-batch 1, forward, op layer 3/mlp/down, waiting for rank 2". */
void watchdog_end_describe(char *out, size_t bytes, const watchdog_frame *f);
incident watchdog_end_incident(const watchdog_frame *f, incident_verdict verdict, int ranks, double quiet,
                               const char *words);

int watchdog_end_links(const struct watchdog *w);
/* Says goodbye to the others. */
void watchdog_end_bye(struct watchdog *w);
/* Reads until the others have closed, or for `seconds`. */
void watchdog_end_drain(struct watchdog *w, double seconds);

/* Ends the job at rank 0, or alone: prints the judgement and every rank's position, tells the others, and exits. */
_Noreturn void watchdog_end_job(struct watchdog *w, int culprit, watchdog_cause why);
/* Ends this rank elsewhere, after rank 0's judgement or its own. `ours`: this rank is the one to record it. */
_Noreturn void watchdog_end_here(struct watchdog *w, const watchdog_frame *culprit, watchdog_cause why, double quiet,
                                 bool ours);
