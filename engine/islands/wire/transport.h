/* A rank's door to other islands: it serves slices of what its island offers, and fetches what others offer.
 *
 * Everything goes over ZeroMQ with CURVE: a peer whose public key is not trusted gets no further than the handshake.
 * Data move only when asked for: a fetch keeps at most a window of small requests under way and accepts a reply only to
 * one of them, so that memory is bounded whatever a peer sends. What is lost with a connection is asked for again. One
 * thread of its own does all of it while the rank computes; the functions here are the rank's main thread's.
 *
 * Answers that wait for a peer to read them take at most TRANSPORT_QUEUED bytes, those of one key at most half of it
 * where several are trusted: requests beyond that are refused. Connections are limited by address (gate.h), and have a
 * few seconds to show a key.
 */
#pragma once

#include "engine/islands/wire/keys.h"
#include "engine/islands/wire/wire.h"
#include "memory/scope.h"

enum { TRANSPORT_QUEUED = 64 << 20 };

typedef struct transport transport;

typedef struct transport_options {
    const keys *keys;
    const char *address;  /* of this node, as others reach it; NULL: that from which it would speak to `towards` */
    const char *towards;  /* "http://[USER:PASSWORD@]HOST:PORT" */
    uint64_t fingerprint; /* of the run: wire.h */
    double bandwidth;     /* bytes a second that it serves at most; 0: no limit */
    int fetches;          /* at a time, at most */
    /* What a request asks for, m->bytes of it, or NULL: it is not there. On the thread, under transport_lock. */
    const void *(*serve)(void *context, const wire_message *m);
    void *context;
} transport_options;

status transport_open(transport **out, const transport_options *options);
void transport_close(transport *t); /* NULL is accepted */
AUTO_CLOSES(transport, transport_close)
/* "tcp://ADDRESS:PORT" */
const char *transport_endpoint(const transport *t);

/* Between the two the thread serves nothing: what is served may change. */
void transport_lock(transport *t);
void transport_unlock(transport *t);

/* A unit's bytes, to be fetched to `to`. */
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

/* What to fetch. `parts` stay the caller's until the fetch is done or cancelled. */
typedef struct transport_wanted {
    wire_kind kind;
    int64_t merge, offer;
    const transport_part *parts;
    int count;
} transport_wanted;

/* Begin fetch number `which`, of options.fetches; one that is under way is given up. `key`: the peer's public key. */
void transport_fetch(transport *t, int which, const char *endpoint, const char *key, const transport_wanted *what);
transport_state transport_state_of(transport *t, int which);
/* Nothing is written to the parts after it has returned. */
void transport_cancel(transport *t, int which);

typedef struct transport_counts {
    int64_t sent, received; /* bytes of messages */
    int64_t refused;        /* messages and connections */
    int64_t queued;         /* bytes of answers that wait now */
} transport_counts;

transport_counts transport_counted(transport *t);
