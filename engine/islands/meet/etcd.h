/* etcd, through its JSON gateway (/v3 over HTTP): keys and values, leases, transactions.
 *
 * A client knows some nodes of one cluster and asks them in turn until one answers; a call takes seconds at most. Keys
 * and values are text. One thread at a time may use a client, which is the caller's.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory/scope.h"
#include "memory/status.h"

typedef struct etcd etcd;

/* Whom to log in to etcd as. A name and a password come from a file that nobody else can read, or from the environment;
 * never from an address, whose text goes into config.yaml, manifests and logs. The caller's, who wipes it: it is in no
 * configuration, and nothing prints it. */
typedef struct etcd_login {
    char *user, *password; /* NULL: etcd asks for none */
} etcd_login;

/* From the file, one line USER:PASSWORD; refused if others than its owner may read it. `file` NULL: from the
 * environment, if it is there. The variable is overwritten and removed in any case: children and /proc do not show
 * it. */
status etcd_take_login(etcd_login *out, const char *file);
void etcd_wipe_login(etcd_login *c);

/* Addresses, "http://HOST:2379" or "https://HOST:2379", with commas between. Nothing is asked yet. */
status etcd_open(etcd **out, const char *addresses);
/* Whom every call logs in as, if it has a user. Refused where an address would send the password to another machine in
 * the clear; without a user such an address is warned of. */
status etcd_log_in(etcd *e, const etcd_login *who);
void etcd_close(etcd *e); /* NULL is accepted */
AUTO_CLOSES(etcd, etcd_close)

/* Asks the next of the cluster's nodes, if a second has passed since the last, and says so when one is away, and when
 * it is back: one of them is used until it fails, so a cluster that has lost its spare nodes would go unnoticed. Of a
 * cluster of one nothing is asked. `now` in seconds. */
void etcd_look_at_nodes(etcd *e, double now);

status etcd_lease(int64_t *lease, etcd *e, int seconds);
/* *alive false: it has run out. */
status etcd_keep_alive(bool *alive, etcd *e, int64_t lease);
void etcd_revoke(etcd *e, int64_t lease);

/* All keys that begin so: an array of {"key", "value", "revision"} (of its last change), the caller's. An answer is
 * bounded, and what in it was not asked for is left out. */
status etcd_read(json_t **out, etcd *e, const char *prefix);
/* The same of an answer to such a request. */
json_t *etcd_pairs(const json_t *answer, const char *prefix);
/* lease 0: it stays. A NULL value deletes the key. */
status etcd_write(etcd *e, const char *key, const char *value, int64_t lease);

/* A condition of a transaction: the key's last change was this revision; 0: there is no such key. */
typedef struct etcd_condition {
    const char *key;
    int64_t revision;
} etcd_condition;

typedef struct etcd_change {
    const char *key, *value;
    int64_t lease;
} etcd_change;

/* All changes, if all conditions hold; else none, and *done is false. */
status etcd_transact(bool *done, etcd *e, const etcd_condition *conditions, int condition_count,
                     const etcd_change *changes, int change_count);
