/* Which nodes of etcd's cluster answer. Islands use one of them until it fails, so a cluster that has lost its spare
 * nodes would go unnoticed. Each node is asked in turn, and a line says when one is away, and when it is back. */
#pragma once

#include "engine/islands/meet/etcd.h"

typedef struct nodes nodes;

/* The client is used by nodes_look alone meanwhile; it stays the caller's. */
nodes *nodes_open(etcd *e);
void nodes_close(nodes *n); /* NULL is accepted */
/* Asks the next one, if a second has passed since the last; of a cluster of one nothing is asked. `now` in seconds. */
void nodes_look(nodes *n, double now);
