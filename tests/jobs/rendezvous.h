/* An etcd of one node on the loopback, for tests of islands: phalanx islands --embedded, in a folder of its own. */
#pragma once

#include <stdbool.h>

typedef struct rendezvous rendezvous;

/* Is etcd installed, 3.4 or later? */
bool rendezvous_is_there(void);
/* Keys in top/keys, etcd's data in top/etcd. Dies if it cannot be started. */
rendezvous *rendezvous_open(const char *top);
void rendezvous_close(rendezvous *r);
/* "http://127.0.0.1:PORT" */
const char *rendezvous_address(const rendezvous *r);
/* Ends etcd as a crash would; and starts it again, with what it had. */
void rendezvous_kill(rendezvous *r);
void rendezvous_start(rendezvous *r);
