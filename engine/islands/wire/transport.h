/* A rank's transport to other islands: serves slices of its island's offer, and fetches the others' offers.
 *
 * Everything goes over ZeroMQ with CURVE: a peer without a trusted key gets no further than the handshake.
 * Data move only on request: a fetch keeps at most a window of small requests under way and accepts a reply only to
 * one of them, so that memory is bounded whatever a peer sends. Slices lost with a connection are requested again. A
 * thread of its own does all of it while the rank computes; the rank's main thread calls these functions.
 *
 * Answers that wait for a peer to read them take at most TRANSPORT_QUEUED bytes, one key's at most half of it if
 * several are trusted: requests beyond that are refused. Connections are limited by address (gate.h), and have a few
 * seconds to show a key.
 */
#pragma once

#include "engine/islands/wire/keys.h"
#include "engine/islands/wire/wire.h"
#include "memory/scope.h"

enum { TRANSPORT_QUEUED = 64 << 20 };

typedef struct transport transport;

typedef struct transport_options {
    const keys *keys;
    const char *address;  /* this node's, as others reach it; NULL: as its route to `towards` shows it */
    const char *towards;  /* "http://[USER:PASSWORD@]HOST:PORT" */
    uint64_t fingerprint; /* the run's, as in wire.h */
    double bandwidth;     /* limit of serving, bytes a second; 0: none */
    int fetches;          /* limit of concurrent fetches */
    /* Returns the requested m->bytes; NULL: not there. Runs on the thread, under transport_lock. */
    const void *(*serve)(void *context, const wire_message *m);
    void *context;
} transport_options;

status transport_open(transport **out, const transport_options *options);
void transport_close(transport *t); /* NULL is accepted */
AUTO_CLOSES(transport, transport_close)
/* "tcp://ADDRESS:PORT" */
const char *transport_endpoint(const transport *t);

/* The thread serves no data between the two, so the served data may change. */
void transport_lock(transport *t);
void transport_unlock(transport *t);

/* A unit's bytes to fetch into `to`. */
typedef struct transport_part {
    int unit;
    void *to;
    int64_t bytes;
} transport_part;

typedef enum transport_state {
    TRANSPORT_NONE,
    TRANSPORT_WORKING,
    TRANSPORT_DONE,
    TRANSPORT_GONE, /* the peer says that it is not, or no longer, there */
} transport_state;

/* The request of a fetch. The caller keeps `parts` until the fetch is done or cancelled. */
typedef struct transport_wanted {
    wire_kind kind;
    int64_t merge, offer;
    const transport_part *parts;
    int count;
} transport_wanted;

/* Begins fetch number `which`, below options.fetches; abandons one under way. `key`: the peer's public key. */
void transport_fetch(transport *t, int which, const char *endpoint, const char *key, const transport_wanted *what);
transport_state transport_state_of(transport *t, int which);
/* The parts are not written any more once it has returned. */
void transport_cancel(transport *t, int which);

typedef struct transport_counts {
    int64_t sent, received; /* bytes of messages */
    int64_t refused;        /* messages and connections refused */
    int64_t queued;         /* bytes of answers waiting now */
} transport_counts;

transport_counts transport_counted(transport *t);
