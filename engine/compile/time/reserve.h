/* What a GPU's memory holds beside the arena: CUDA's context, the kernels that libraries load, NCCL's buffers, which
 * grow with the number of communicators, and CUDA graphs, which grow with what they launch. Assumed, until a run has
 * measured it (tuning.json).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { RESERVE_ROWS = 9 };

typedef struct reserve {
    int64_t bytes[RESERVE_ROWS]; /* by communicators, the last row for as many or more */
    bool measured[RESERVE_ROWS];
    double node; /* bytes of each node of a CUDA graph */
    bool node_measured;
} reserve;

extern const reserve reserve_assumed;

/* With graphs of so many nodes (compile_graph_nodes); 0: without graphs. */
int64_t reserve_bytes(const reserve *r, int communicators, int64_t nodes);
bool reserve_is_measured(const reserve *r, int communicators, int64_t nodes);
/* A run with so many communicators has used so much, without graphs. */
void reserve_note(reserve *r, int communicators, int64_t bytes);
/* Graphs of so many nodes, more than 0, have taken so much. */
void reserve_note_graphs(reserve *r, int64_t nodes, int64_t bytes);
