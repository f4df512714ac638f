/* An island's place among the islands of a run, kept in etcd by a thread of the island's first rank.
 *
 * The main thread says what is to be there (its record, an offer, what it holds) and reads what is; the thread writes,
 * keeps the lease alive and reads again, several times a second, so that training never waits for etcd. While etcd is
 * away the last that was read stays, and says so. What the keys mean: roster.h.
 */
#pragma once

#include "engine/islands/meet/etcd.h"
#include "engine/islands/meet/roster.h"
#include "memory/scope.h"

typedef struct membership membership;

typedef struct membership_options {
    const char *addresses, *run, *name;
    etcd_login login; /* the caller's, who may wipe it once membership_open returns; or none */
    uint64_t fingerprint;
    const char *key; /* public */
    const char *const *endpoints;
    int ranks;
    bool server;         /* it holds the model, and has no slot */
    int slots, slot;     /* -1: the one it had last, or a free one */
    int hint;            /* of the free ones, rather this; or -1 */
    int64_t merge;       /* of the state that it has */
    const keys *trusted; /* whom it tells of; NULL: of everybody */
    double patience;     /* seconds to wait for etcd, and for a slot whose island is gone but not yet given up */
    int lease;           /* seconds without a sign of life after which the others give it up */
} membership_options;

/* What the others may know of an island: `ready`: it takes part in merges and gives its state to newcomers. */
typedef struct membership_state {
    bool ready, taking;     /* taking: not ready, because it is fetching the state of the last merge */
    int64_t merge, history; /* its reference is that after this merge of this history (roster.h) */
    int64_t step, updates;  /* and was offered after this step */
} membership_state;

/* Claims a slot, or the server's place; refused if another has it, or trains something else. */
status membership_open(membership **out, const membership_options *options);
/* Leaves: the others know at once. NULL is accepted. */
void membership_close(membership *m);
AUTO_CLOSES(membership, membership_close)
/* ROSTER_SERVER: of a server. */
int membership_slot(const membership *m);

/* What etcd holds, for roster_read: a fresh string. */
char *membership_roster(membership *m);

/* Each returns a number: when roster.settled has reached it, it is written. The JSON is taken; NULL: the key is
 * removed. */
int64_t membership_set_state(membership *m, const membership_state *state);
int64_t membership_set_offer(membership *m, json_t *offer);
int64_t membership_set_have(membership *m, json_t *have);
/* Try to make `head` the head, if the last one is of `revision` (0: there was none) and the offers of `slots` are of
 * these revisions. The roster shows who won; when its `settled` has reached the number that this returns, it has been
 * tried. */
int64_t membership_decide(membership *m, json_t *head, int64_t revision, uint64_t slots, const int64_t *offer_revision);
