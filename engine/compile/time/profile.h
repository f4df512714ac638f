/* A device profile prices an op from its shapes; a network profile prices a transfer between ranks. Seconds, FLOPs,
 * bytes.
 *
 * Built-in profiles ("a100", "h100", "h200", "b200", "cpu", and "a100-2022", the published runs of that year) are
 * models: data sheets and the shares of them that libraries are known to reach. A measured profile is a file that
 * `phalanx bench --profile` wrote: for each kind of op how long it took at which sizes. A profile is a plain value but
 * for `points`, which profile_free frees.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/compile/model/compiled.h"
#include "kernels/record/program.h"
#include "kernels/table/devices.h"
#include "kernels/table/precision.h"
#include "parallel/comm/grid.h"

/* What a GPU's memory holds beside the arena: CUDA's context, the kernels that libraries load, NCCL's buffers, which
 * grow with the number of communicators, and CUDA graphs, which grow with what they launch. Assumed, until a run has
 * measured it (tuning.json).
 */
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
/* A run with so many communicators has used `bytes` without graphs, `graphs` for graphs of `nodes` nodes; 0: none. */
void reserve_note(reserve *r, int communicators, int64_t bytes, int64_t nodes, int64_t graphs);

enum { PROFILE_TILES = 4, PROFILE_LENGTHS = 8, PROFILE_NAME = 64 };

/* A tile of a product's output that one multiprocessor computes at a time, and the share of its peak that it
 * reaches. */
typedef struct profile_tile {
    int rows, columns;
    double share;
} profile_tile;

/* What fused attention reaches at a sequence of so many tokens, as shares of the peak. */
typedef struct profile_length {
    double sequence, forward, gradient;
} profile_length;

/* One measurement: an op of this kind and these sizes took this long. */
typedef struct profile_point {
    op_kind kind;
    dtype type; /* of its first operand */
    bool adds;  /* to what its output holds */
    double size
        [3]; /* of a product rows, columns, depth; of attention tokens, sequence, width; of communication the bytes that
                     * a member sends, and members (1: a message); else bytes */
    double seconds, model; /* that it took, and that the model of this profile says */
    int threads;           /* of the rank that was measured, on a host's cores; 0: all of them */
} profile_point;

typedef struct profile {
    char name[PROFILE_NAME];
    /* products */
    const devices_row *device; /* whose figures it began from */
    double peak[PEAK_COUNT];   /* FLOP/s */
    int processors;            /* that share a product's tiles; 0: no tiles, products reach tile[0].share */
    profile_tile tile[PROFILE_TILES];
    double depth;         /* of a product whose time is half for filling and draining */
    double product_start; /* seconds of a product beside its FLOPs */
    /* attention: share of the half-precision peak that the fused kernels reach; 0: not fused, scores pass through
     * memory. At lengths between those of `length`, which ascend, it is linear in the sequence's logarithm, and beyond
     * them that of the nearest; without lengths the two shares are of all. */
    double attention, attention_gradient;
    profile_length length[PROFILE_LENGTHS];
    int lengths;
    /* bytes that the gradient, where it sums in one order, moves besides for each query and key of a head */
    double attention_pair;
    /* everything else */
    double memory;          /* bytes a second */
    double memory_share;    /* of it that row-wise ops reach */
    double start;           /* seconds of an op beside its bytes */
    double bus;             /* bytes a second to host memory, and as many from it at the same time */
    int64_t capacity;       /* bytes of the device's memory that a process sees; 0: it has none of its own */
    const reserve *reserve; /* what is taken of it beside the arena; borrowed */
    /* of a node, which its ranks share, where the host is the device; 0: each rank has a device of its own */
    int cores;
    int threads; /* of a rank, of those; 0: all. Not of the machine: of what is priced (compile_options.threads) */
    /* Of what is priced, too: tokens that choose the experts of the slowest of the ranks that divide them, over the
     * ranks' mean; 0: 1, all ranks have as many */
    double load;
    bool tf32;      /* fp32 products may round their operands. Of what is priced, too: train.tf32 */
    bool any_order; /* attention_pair is not moved. Of what is priced, too: train.deterministic */
    /* the network */
    int node_ranks;
    double node, network;            /* bytes a second that a rank sends within its node, and beyond */
    double latency, network_latency; /* seconds until a message's first byte arrives */
    double hop;                      /* seconds for each further member of a ring */
    bool host_moves;                 /* ranks copy messages with the threads that compute: nothing travels beside */
    bool as_lowered;                 /* programs are priced without an order (order.h), sums of gradients behind the
                                      * backward pass: so these runs were */
    double taken;                    /* share of the multiprocessors that communication takes while it lasts */
    /* measured */
    profile_point *points;
    int count;
} profile;

/* A built-in one; without a name where there is none of that name. profile_names lists them for messages. */
profile profile_named(const char *name);
const char *profile_names(void);
/* That of the device that is compiled for: choices by price are the same on all ranks, and in plans. */
profile profile_compiled_for(const compile_options *o);
/* A built-in's name or a file. STATUS_USAGE with the names, where it is neither. */
status profile_open(profile *out, const char *name);
/* Only the network's numbers of a file: node_ranks, node, network, latency, network_latency, hop, taken, host_moves,
 * and oversubscription, by which `network` is divided. */
status profile_take_network(profile *p, const char *path);
/* All of it, as profile_open reads it. */
status profile_save(const char *path, const profile *p);
void profile_free(profile *p);

/* What is compiled is planned for the device of these prices, and priced as it computes. The CPU's choices are its own
 * whatever the prices: its bits hang on them. */
void profile_plan_for(compile_options *o, profile *p);
/* FLOP/s that large products reach. */
double profile_products(const profile *p, dtype type);
/* Seconds of op o, which is neither communication nor a wait. */
double profile_op(const profile *p, const op *o);
/* Seconds of what op `index` of the program launches, once all have launched it: a message, or a collective (of several
 * launched as one, at the last). */
double profile_transfer(const profile *p, const grid *g, const program *of, int index);
/* Seconds of a message of so many bytes from this rank to another. */
double profile_message(const profile *p, const grid *g, int peer, double bytes);
/* Bytes a second that this rank sends in a collective along an axis, but of an all_to_all. */
double profile_rate(const profile *p, const grid *g, axis a);
/* Seconds of a collective along an axis, of which a member sends so many bytes. */
double profile_collective(const profile *p, const grid *g, axis a, op_kind kind, double bytes);
/* That an op which is not a wait took so long; or communication of `kind`, of which a member sends so many bytes. */
profile_point profile_point_of(const profile *p, const op *o, double seconds);
profile_point profile_point_of_transfer(const profile *p, op_kind kind, double bytes, int members, double seconds);
/* That attention, or its gradient, took so long: the best at its length counts. A ninth length is passed over. */
void profile_take_attention(profile *p, const op *o, double seconds);
/* Does it leave the node? */
bool profile_leaves_node(const profile *p, const grid *g, axis a);
