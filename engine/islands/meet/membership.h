/* An island's place among the islands of a run, kept in etcd by a thread of the island's first rank.
 *
 * The main thread sets the wanted values (its record, an offer, the changes it holds) and reads the last roster; the
 * thread writes, keeps the lease alive and reads again, several times a second, so that training never waits for etcd.
 * While etcd is away the last roster stays, marked as such. roster.h explains the keys.
 */
#pragma once

#include "engine/islands/meet/etcd.h"
#include "engine/islands/meet/roster.h"
#include "memory/scope.h"

typedef struct membership membership;

typedef struct membership_options {
    const char *addresses, *run, *name;
    etcd_login login; /* caller's, who may wipe it once membership_open returns; or none */
    uint64_t fingerprint;
    const char *key; /* public key */
    const char *const *endpoints;
    int ranks;
    bool server;         /* holds the model, and has no slot */
    int slots, slot;     /* slot -1: the former one, or a free one */
    int hint;            /* preferred free slot; or -1 */
    int64_t merge;       /* merge of its state */
    const keys *trusted; /* keys of the islands to report on; NULL: all */
    double patience;     /* seconds to wait for etcd, and for a slot held by the lease of an island that is gone */
    int lease;           /* seconds without a sign of life until the others give it up */
} membership_options;

/* An island's published state. `ready`: it takes part in merges and gives its state to newcomers. */
typedef struct membership_state {
    bool ready, taking;     /* taking: not ready, because it is fetching the state of the last merge */
    int64_t merge, history; /* its reference is the state after this merge of this history (roster.h) */
    int64_t step, updates;  /* offered after this step */
} membership_state;

/* Claims a slot, or the server's place; refused if another island has it, or trains something else. */
status membership_open(membership **out, const membership_options *options);
/* Leaves, visibly to the others at once. NULL is accepted. */
void membership_close(membership *m);
AUTO_CLOSES(membership, membership_close)
/* Returns the slot; a server's is ROSTER_SERVER. */
int membership_slot(const membership *m);

/* Returns etcd's pairs for roster_read; the caller frees the text. */
char *membership_roster(membership *m);

/* Each returns a number: once roster.settled reaches it, the value is written. Takes ownership of the JSON; NULL
 * removes the key. */
int64_t membership_set_state(membership *m, const membership_state *state);
int64_t membership_set_offer(membership *m, json_t *offer);
int64_t membership_set_have(membership *m, json_t *have);
/* Tries to make `head` the head, if the last one is of `revision` (0: there was none) and the offers of `slots` are of
 * these revisions. The roster shows the winner; the attempt is over once roster.settled reaches the number returned. */
int64_t membership_decide(membership *m, json_t *head, int64_t revision, uint64_t slots, const int64_t *offer_revision);
