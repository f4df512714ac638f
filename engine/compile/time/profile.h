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

/* GPU memory beside the arena: CUDA's context, kernels that libraries load, NCCL's buffers, which grow with the number
 * of communicators, and CUDA graphs, which grow with their launches. Assumed, until a run has measured it
 * (tuning.json). */
enum { RESERVE_ROWS = 9 };
typedef struct reserve {
    int64_t bytes[RESERVE_ROWS]; /* [communicators], the last row for as many or more */
    bool measured[RESERVE_ROWS];
    double node; /* bytes of each node of a CUDA graph */
    bool node_measured;
} reserve;

extern const reserve reserve_assumed;

/* Reserve with graphs of `nodes` nodes in total (compile_graph_nodes); 0: without graphs. */
int64_t reserve_bytes(const reserve *r, int communicators, int64_t nodes);
bool reserve_is_measured(const reserve *r, int communicators, int64_t nodes);
/* Records a run's `bytes` without graphs, and the `graphs` bytes of graphs with `nodes` nodes; 0: none. */
void reserve_note(reserve *r, int communicators, int64_t bytes, int64_t nodes, int64_t graphs);

enum { PROFILE_TILES = 4, PROFILE_LENGTHS = 8, PROFILE_NAME = 64 };

/* A tile of a product's output that one multiprocessor computes at a time, and the share of its peak that it
 * reaches. */
typedef struct profile_tile {
    int rows, columns;
    double share;
} profile_tile;

/* Rates of fused attention at a sequence length, as shares of the peak. */
typedef struct profile_length {
    double sequence, forward, gradient;
} profile_length;

/* One measurement: an op of this kind and these sizes took this long. */
typedef struct profile_point {
    op_kind kind;
    dtype type; /* type of its first operand */
    bool adds;  /* adds its result to the output */
    double size
        [3]; /* product: rows, columns, depth; attention: tokens, sequence, width; communication: bytes that a member
              * sends, and members (1: a message); else bytes */
    double seconds, model; /* that it took, and that the model of this profile says */
    int threads;           /* threads of the measured rank, on a host's cores; 0: all of them */
} profile_point;

typedef struct profile {
    char name[PROFILE_NAME];
    /* products */
    const devices_row *device; /* the profile began from its figures */
    double peak[PEAK_COUNT];   /* FLOP/s */
    int processors;            /* that share a product's tiles; 0: no tiles, products reach tile[0].share */
    profile_tile tile[PROFILE_TILES];
    double depth;         /* depth of a product that spends half its time on filling and draining */
    double product_start; /* seconds of a product beside its FLOPs */
    /* attention: share of the half-precision peak that the fused kernels reach; 0: not fused, scores pass through
     * memory. It is linear in the sequence's logarithm between the lengths of `length`, which ascend, and constant
     * beyond them; without lengths the two shares hold for all. */
    double attention, attention_gradient;
    profile_length length[PROFILE_LENGTHS];
    int lengths;
    /* bytes that the gradient, where it sums in one order, moves besides for each query and key of a head */
    double attention_pair;
    /* everything else */
    double memory;          /* bytes a second */
    double memory_share;    /* share of it that row-wise ops reach */
    double start;           /* seconds of an op beside its bytes */
    double bus;             /* bytes a second to host memory, and as many from it at the same time */
    int64_t capacity;       /* bytes of the device's memory that a process sees; 0: it has none of its own */
    const reserve *reserve; /* memory used beside the arena; borrowed */
    /* cores of a node, which its ranks share, where the host is the device; 0: each rank has a device of its own */
    int cores;
    int threads; /* cores of a rank; 0: all. Belongs to the priced program, not the machine (compile_options.threads) */
    /* Belongs to the priced program too: tokens that choose the experts of the slowest of the ranks that divide them,
     * over the ranks' mean; 0: 1, a balanced load */
    double load;
    bool tf32;      /* fp32 products may round their operands. Belongs to the priced program too: train.tf32 */
    bool any_order; /* attention_pair is not moved. Belongs to the priced program too: train.deterministic */
    /* the network */
    int node_ranks;
    double node, network;            /* bytes a second that a rank sends within its node, and beyond */
    double latency, network_latency; /* seconds until a message's first byte arrives */
    double hop;                      /* seconds for each further member of a ring */
    bool host_moves;                 /* ranks copy messages with the threads that compute: no transfer overlaps */
    bool as_lowered;                 /* prices programs without an order (order.h), sums of gradients following the
                                      * backward pass, as these runs were */
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

/* Makes `o` target the device of these prices, and prices match its computation. The CPU's choices do not depend on
 * prices: its bits hang on them. */
void profile_plan_for(compile_options *o, profile *p);
/* FLOP/s that large products reach. */
double profile_products(const profile *p, dtype type);
/* Seconds of op o, which is neither communication nor a wait. */
double profile_op(const profile *p, const op *o);
/* Seconds of the transfer that op `index` of the program launches, once all have launched it: a message, or a
 * collective (several launched as one count at the last). */
double profile_transfer(const profile *p, const grid *g, const program *of, int index);
/* Seconds of a message of `bytes` from this rank to another. */
double profile_message(const profile *p, const grid *g, int peer, double bytes);
/* Bytes a second that this rank sends in a collective along an axis, but of an all_to_all. */
double profile_rate(const profile *p, const grid *g, axis a);
/* Seconds of a collective along an axis, of which a member sends `bytes`. */
double profile_collective(const profile *p, const grid *g, axis a, op_kind kind, double bytes);
/* Makes a point: `o`, not a wait, took `seconds`; or communication of `kind`, of which a member sends `bytes`. */
profile_point profile_point_of(const profile *p, const op *o, double seconds);
profile_point profile_point_of_transfer(const profile *p, op_kind kind, double bytes, int members, double seconds);
/* Records the time of attention, or its gradient: the best at its length counts. A ninth length is skipped. */
void profile_take_attention(profile *p, const op *o, double seconds);
/* True if the axis leaves the node. */
bool profile_leaves_node(const profile *p, const grid *g, axis a);
