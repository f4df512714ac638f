/* etcd, through its JSON gateway (/v3 over HTTP): keys and values, leases, transactions.
 *
 * A client knows some nodes of one cluster and asks them in turn until one answers; a call takes seconds at most.
 * Answers of another cluster, and states older than one that was read, are refused. Keys and values are text. One
 * thread at a time may use a client, which the caller owns.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory/scope.h"
#include "memory/status.h"

typedef struct etcd etcd;

/* The login of etcd: a name and a password from a file that only its owner can read, or from the environment; never
 * from an address, since its text goes into config.yaml, manifests and logs. The caller owns and wipes it: it is in no
 * configuration and never printed. */
typedef struct etcd_login {
    char *user, *password; /* NULL: etcd asks for no login */
} etcd_login;

/* Takes the login from a file, one line USER:PASSWORD, refused if others than its owner may read it. `file` NULL: takes
 * it from the environment, if set. The variable is overwritten and removed in any case: children and /proc do not show
 * it. */
status etcd_take_login(etcd_login *out, const char *file);
void etcd_wipe_login(etcd_login *c);

/* Takes addresses "http://HOST:2379" or "https://HOST:2379", separated by commas. Sends no request yet. */
status etcd_open(etcd **out, const char *addresses);
/* Sets the login of every call, if it has a user. Refuses an address that would send the password to another machine in
 * the clear; without a user, warns of such an address. */
status etcd_log_in(etcd *e, const etcd_login *who);
void etcd_close(etcd *e); /* NULL is accepted */
AUTO_CLOSES(etcd, etcd_close)

/* Looks at the next of the cluster's nodes, if a second has passed since the last look, and reports a node that goes
 * away or comes back: one node is used until it fails, so a cluster without spare nodes would go unnoticed. Does not
 * ask a cluster of one. `now` in seconds. */
void etcd_look_at_nodes(etcd *e, double now);

status etcd_lease(int64_t *lease, etcd *e, int seconds);
/* *alive false: the lease has run out. */
status etcd_keep_alive(bool *alive, etcd *e, int64_t lease);
void etcd_revoke(etcd *e, int64_t lease);

/* Reads all keys with this prefix: an array of {"key", "value", "revision"} (of its last change), which the caller
 * frees. An answer is bounded, and entries that were not requested are left out. */
status etcd_read(json_t **out, etcd *e, const char *prefix);
/* Returns the pairs in an answer to such a request. */
json_t *etcd_pairs(const json_t *answer, const char *prefix);
/* Writes a key; lease 0: it stays. A NULL value deletes it. */
status etcd_write(etcd *e, const char *key, const char *value, int64_t lease);

/* A condition of a transaction: the key last changed at this revision; 0: there is no such key. */
typedef struct etcd_condition {
    const char *key;
    int64_t revision;
} etcd_condition;

typedef struct etcd_change {
    const char *key, *value;
    int64_t lease;
} etcd_change;

/* Makes all changes if all conditions hold; else none, and *done is false. */
status etcd_transact(bool *done, etcd *e, const etcd_condition *conditions, int condition_count,
                     const etcd_change *changes, int change_count);
