/* Limits the connections to a listening socket of ZeroMQ. Any peer can open connections before its key is checked, and
 * each takes a descriptor of the training process, which checkpoints and metrics need.
 *
 * Connections are counted by their source address. One address has at most half of them; all together have at most half
 * of the process's descriptors; beyond that the address with the most loses one. The thread that uses the socket uses
 * the gate.
 */
#pragma once

#include <stdint.h>

#include "memory/scope.h"
#include "memory/status.h"

typedef struct gate gate;

/* Returns the connections that a process with this limit of descriptors admits: half, at most 1024. */
int gate_most(int64_t descriptors);
/* Opens a gate; call it before the socket is bound. It admits gate_most of this process's limit. */
status gate_open(gate **out, void *zmq, void *socket);
/* NULL is accepted. Call it before the sockets' context ends. */
void gate_close(gate *g);
AUTO_CLOSES(gate, gate_close)
/* Returns a socket to poll for input, which means that gate_look has work. */
void *gate_socket(const gate *g);
/* Looks at the connections to `endpoint`, as ZeroMQ writes it, and cuts off the excess: returns the number cut off, and
 * the address of one of them in `from`. */
int gate_look(gate *g, char from[64], const char *endpoint);
