/* The watchdogs' own sockets: a star around rank 0, and the frames that travel along it.
 *
 * A link is one connection, plain memory with a descriptor in it. Frames have one size; a link never blocks, keeps what
 * arrived of a frame and what is still owed of one. Rank 0 gives its addresses and a random token through the comm, and
 * a connection that does not know the token is dropped.
 */
#pragma once

#include <stdint.h>

#include "parallel/comm/comm.h"
#include "parallel/watch/incident.h"

typedef enum watchdog_frame_kind {
    WATCHDOG_HELLO,
    WATCHDOG_WELCOME,
    WATCHDOG_BEAT, /* I am here */
    WATCHDOG_BYE,  /* I leave, all is well */
    WATCHDOG_FAIL, /* I fail: `verdict` and `words` say why */
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
    int32_t verdict;     /* of FAIL: incident_verdict */
    int32_t cause;       /* of END: watchdog_cause */
    float patience;      /* of rank 0's beat: seconds that any rank may go without progress just now */
    float quiet;         /* of END: seconds since its last progress */
    char action[96], op[112];
    char host[INCIDENT_HOST], device[INCIDENT_DEVICE], words[INCIDENT_WORDS];
} watchdog_frame;

typedef struct watchdog_link {
    int fd; /* -1: none */
    unsigned got, owed;
    watchdog_frame in, out;
    char host[INCIDENT_HOST]; /* of the other side */
} watchdog_link;

/* Collective: connect. `links` is [ranks] at rank 0 (its own stays unused), and [1] elsewhere. */
status watchdog_link_star(watchdog_link *links, comm *c);
void watchdog_link_close(watchdog_link *l);
/* Nothing more will be sent: the other side sees the end after the last frame. */
void watchdog_link_finish(watchdog_link *l);
/* Send, unless an earlier frame still blocks the way. False: the connection is broken. */
bool watchdog_link_send(watchdog_link *l, const watchdog_frame *f);
/* 1: a frame arrived; 0: none has; -1: the other side is gone */
int watchdog_link_receive(watchdog_link *l, watchdog_frame *out);
