/* What the files of an island's place in etcd share: membership_turn.c (the thread and its calls; start there),
 * membership_keys.c, membership_claim.c (whose a slot is), membership_own.c (our lease, and our keys under it). */
#pragma once

#include <pthread.h>

#include "engine/islands/meet/etcd.h"
#include "engine/islands/meet/membership.h"
#include "engine/islands/meet/news.h"
#include "engine/islands/meet/nodes.h"

typedef enum own_key { OWN_MEMBER, OWN_OFFER, OWN_HAVE, OWN_KEYS } own_key;

typedef struct decision {
    json_t *head; /* NULL: none */
    int64_t revision;
    uint64_t slots;
    int64_t offer_revision[ROSTER_SLOTS];
} decision;

struct membership {
    membership_options options;
    etcd *etcd;
    char *prefix, *key, *name; /* prefix: "phalanx/RUN/" */
    char id[MANIFEST_RUN];
    json_t *endpoints;
    int slot;
    int64_t lease;
    double kept_alive;
    bool lost;             /* the lease had run out, and our record is not there again yet */
    bool doubt;            /* a decision had no answer: it may still be carried out */
    int64_t turn_revision; /* of our turn key, as last read */
    news *news;
    nodes *nodes;
    char *written[OWN_KEYS]; /* under the present lease */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool ends, reached, evicted;
    bool reported_away;
    char *wanted[OWN_KEYS];
    int64_t number, settled;
    json_t *pairs; /* as last read */
    decision decision;
};

/* membership_keys.c. Paths are fresh strings. */
/* PREFIX/live/WHAT/SLOT; slot -1: without it. */
char *membership_path(const membership *m, const char *what, int slot);
/* A server has a record, and neither offers nor holds. */
char *membership_own_path(const membership *m, own_key k);
/* Of our record. */
char *membership_text(const membership *m, const membership_state *s);
/* What is at PREFIX/live/: pairs whose keys have lost the prefix, and whose values are JSON or, like names, text. */
status membership_read(json_t **out, membership *m);
/* What a record's island calls itself, for people. */
void membership_name(char out[ROSTER_NAME], const json_t *member);
/* NULL: there is none. */
const json_t *membership_pair(const json_t *pairs, const char *what, int slot);
const json_t *membership_own_pair(const membership *m, const json_t *pairs, own_key k);
int64_t membership_revision(const json_t *pair);
/* Is a member's record that of this process? */
bool membership_is_ours(const membership *m, const json_t *member);

/* membership_claim.c: a slot, or the server's place, is ours when this returns. */
status membership_claim(membership *m);

/* membership_own.c */
/* A lease that has run out took our keys with it: a new one, and `record` again, unless somebody else has the slot by
 * now. */
status membership_keep_lease(membership *m, const char *record);
/* What is `wanted` and not written yet. */
status membership_write_own(membership *m, char *const wanted[OWN_KEYS]);
/* Are our keys, as just read, those that were written? What a late write has undone is written again in the next
 * turn. */
bool membership_check_own(membership *m, const json_t *pairs);
