/* Who may hold connections to a listening socket of ZeroMQ. Who reaches its port can open connections before any key
 * is looked at, and each takes a descriptor of the training process, which checkpoints and metrics need.
 *
 * Connections are counted by the address that they come from. One address has at most half of them; all together have
 * at most half of the process's descriptors; beyond that the address with the most loses one. One thread uses a gate,
 * that which uses its socket.
 */
#pragma once

#include <stdint.h>

#include "memory/scope.h"
#include "memory/status.h"

typedef struct gate gate;

/* Connections that a process of so many descriptors admits: half of them, at most 1024. */
int gate_most(int64_t descriptors);
/* Before the socket is bound. It admits gate_most of this process's limit. */
status gate_open(gate **out, void *zmq, void *socket);
/* NULL is accepted. Before the sockets' context ends. */
void gate_close(gate *g);
AUTO_CLOSES(gate, gate_close)
/* To be polled for input, when gate_look has something to do. */
void *gate_socket(const gate *g);
/* Looks at what has been connected to `endpoint`, as ZeroMQ writes it, and cuts off what is too much: returns how many,
 * and the address of one of them in `from`. */
int gate_look(gate *g, char from[64], const char *endpoint);
