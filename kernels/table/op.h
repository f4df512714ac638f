/* An op: one row of the op table (ops.def) with operands, attributes and a label.
 *
 * Ops are plain records owned by their program. The table `op_rows` has, by an op's kind, everything that is
 * known about it. Implementations are found per backend in an `op_kernel` table, one function an op, all of one type.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/table/axis.h"
#include "memory/status.h"
#include "memory/tensor.h"

enum { OP_MAX_IN = 8, OP_MAX_OUT = 5 };

typedef enum op_kind {
#define OP(name, ...) OP_##name,
#include "kernels/table/ops.def"
    OP_COUNT,
} op_kind;

/* Sorts ops for the passes that ask more than flags tell. */
typedef enum op_class {
#define CLASS(name, ...) OP_CLASS_##name,
#include "kernels/table/ops.def"
    OP_CLASS_COUNT,
} op_class;

enum op_trait { OP_MIXES = 1, OP_PAIRS = 2, OP_LONG = 4 }; /* traits of a class */

enum op_flag {
    OP_CHEAP = 1,
    OP_SUMS = 2,
    OP_GATHER = 4,
    OP_WEIGHT = 8,
    OP_STATEFUL = 16,
    OP_GRADIENT = 32,
    OP_MESSAGE = 64,
    OP_LEAVES = 128,
    OP_DRAWS = 256,
    OP_ROOM = 512,
    OP_CONTROLS = 1024,
    OP_SCATTER = 2048,
    OP_PITCHED = 4096,
    OP_EXCHANGE = 8192,
};

/* How an accumulated output is written. Kernels test for 0 only. */
enum op_accumulate {
    OP_WRITES,
    OP_ADDS,
    OP_WRITES_FIRST, /* op of a body: writes for the first micro-batch, adds for later ones */
};

/* How compress and decompress encode. */
typedef struct op_compression {
    int64_t messages; /* decompress: number of summed messages */
    float density;    /* the share of elements that some methods send */
    uint8_t kind;     /* compress_kind */
} op_compression;

/* This rank's rows or columns of the vocabulary. */
typedef struct op_vocabulary {
    int64_t first; /* id of the first */
    int64_t ids;   /* columns that are real, not padding */
} op_vocabulary;

/* Which random numbers dropout draws. */
typedef struct op_dropout {
    int32_t sample;        /* the micro-batch's first sample, after scalars.first_sample */
    int32_t sample_tokens; /* tokens of a sample */
    int32_t site;          /* the place in the model that draws */
    float probability;
} op_dropout;

enum { ROUTING_EXPERTS = 512, ROUTING_ACTIVE = 32 }; /* the most experts, and the most of one token */

/* How tokens choose experts, and which of them this rank has. */
typedef struct op_routing {
    int64_t skip;        /* assign: rows of earlier passes, a multiple of the pass's rows; slots: rows of each slot in
                            earlier passes */
    int32_t experts;     /* columns of the logits */
    int32_t active;      /* experts of a token */
    int32_t groups;      /* groups of equally many experts, the best of which a token chooses from; 0: none */
    int32_t groups_kept; /* groups that a token chooses from */
    int32_t group_best;  /* a group's score is the sum of its `group_best` best experts' scores */
    int32_t local;       /* assign: experts of this rank, from `first` on */
    int64_t first;       /* assign: the first of them */
    int64_t rows;        /* rows that assign numbers, and that slots and dispatch make */
    int32_t slots;       /* slots, dispatch, combine: runs of rows, one for each expert-parallel rank; 0: one run */
    float scale;         /* weights are multiplied by it; 1: they are not */
    uint8_t sigmoid;     /* scores are sigmoids; else a softmax over all experts */
    uint8_t renormalise; /* weights are divided by their sum */
} op_routing;

enum { CAPACITY_BUCKETS = 3 }; /* the most training programs that differ in their row capacity for experts */

/* Row capacity of the ranks that divide experts, by capacity bucket. */
typedef struct op_capacity {
    /* rows per layer and micro-batch in each bucket but the last, which has enough */
    int64_t room[CAPACITY_BUCKETS - 1];
    int32_t bucket;         /* the program's bucket */
    int64_t first;          /* the first of this rank's experts */
    int32_t local;          /* number of these; or */
    int32_t slots, experts; /* ranks that divide `experts`, each with that capacity; 0: none */
} op_capacity;

/* Losses of a router's logits for its load (ops expert_load, balance and their like). */
typedef struct op_balance {
    float load, z;           /* coefficients of the losses p load and (log sum exp)^2 */
    float scale;             /* expert_load: factor of counts; expert_bias: the rate */
    int32_t sequence;        /* neighbouring tokens of one group; 0: all are one */
    int32_t groups, experts; /* expert_load: rows and columns of load */
    uint8_t sigmoid;         /* probabilities are sigmoids divided by their sum, else a softmax */
} op_balance;

/* Maps rows of a weight to the heads of q or k that they make (op qk_factors). */
typedef struct op_qk_clip {
    int32_t heads;         /* heads of this rank */
    int32_t blocks;        /* blocks of rows, from the first: block b belongs to head b mod heads */
    int32_t size;          /* rows of a block */
    int32_t whole;         /* the last `whole` rows of a block take the whole factor, the others its root */
    float threshold;       /* limit of attention scores */
    int64_t layer, layers; /* the layer among the rank's, and their number: rows of each rank */
} op_qk_clip;

/* Heads of q and of k and v, in the ops that work by head. */
typedef struct op_heads {
    int32_t q, kv, size; /* kv 0, in rope: k has one head for all of q's */
} op_heads;

typedef struct op_attention {
    int32_t sequence;    /* tokens of a sample */
    int32_t window;      /* sliding window in tokens; 0: none */
    int32_t run;         /* length of each run of neighbouring queries, given their places; else 0 */
    int32_t ranks, rank; /* ranks that hold zig-zag shards of samples, and this one's place among them; 0: none do */
    float scale;         /* factor of scores */
    float cap;           /* a tanh keeps scores between -cap and cap; 0: none does */
    int64_t workspace;   /* attention_grad: bytes of scratch that a device's library may ask for; 0: a few */
} op_attention;

/* Which elements of a head rotate together; arrange has a direction, too. */
typedef struct op_rotation {
    uint8_t inverse;     /* rotates, or arranges, back */
    uint8_t interleaved; /* elements 2i and 2i + 1 are a pair, not i and i + half */
} op_rotation;

typedef struct op_norm {
    float epsilon;    /* added to the mean square */
    float offset;     /* RMS norm: values are multiplied by w + offset */
    int64_t width[2]; /* width_norm and its like: elements of all ranks' rows of q and of k, copied heads each time */
} op_norm;

/* Elementwise functions with constants: scale, soft_cap, swiglu_clamped. */
typedef struct op_constants {
    float scale, cap;
} op_constants;

typedef struct op_update {
    int64_t first_element; /* the number, in the named tensor, of the first element */
    int64_t stride;        /* elements of the named tensor from one row to the next */
    uint64_t stream;       /* the name that seeds the stochastic rounding to bf16 */
    int32_t rounding_site; /* rounding site of the first rounded operand */
    float scale, epsilon;  /* muon: factor of the learning rate; muon_scale: the smallest norm */
    uint8_t decay;         /* weight decay applies */
    uint8_t nesterov;      /* the direction looks one step of the momentum ahead */
} op_update;

/* What an op does with its operands: a union with one struct a family, which passes read after its kind or class. */
typedef struct op_attributes {
    uint8_t accumulate; /* enum op_accumulate */
    op_heads heads;
    union {
        op_attention attention; /* attention, latent_decode and their like */
        op_rotation rotation;   /* rope, arrange */
        op_norm norm;
        op_constants constants;
        op_update update;
        op_dropout dropout;
        op_vocabulary vocabulary; /* embed, cross_entropy and their like */
        op_compression compression;
        op_routing routing;   /* route, route_grad, assign, slots, dispatch, combine */
        op_capacity capacity; /* overflow */
        op_balance balance;   /* expert_load, expert_bias, balance and their like */
        op_qk_clip qk;
    };
} op_attributes;

/* Says with whom an op communicates, and of which rows: COMMUNICATION, HOST, WAIT, and ops that go with them
 * (copy_to_shards, regroup, compress, decompress). */
typedef struct op_where {
    uint8_t axis;                   /* enum axis */
    uint8_t upstream;               /* a message along an axis with edges goes towards its first rank */
    uint8_t replicate;              /* all_gather: the result's cotangents will not be summed */
    int16_t bundle;                 /* its place among the ops that are launched as one, at the last of them */
    int16_t bundle_of;              /* the number of these ops; 0: it is alone */
    int32_t request;                /* index of the asynchronous op's request slot */
    int32_t group_size, group_rank; /* ranks along `axis`, and this one's place among them */
    int32_t owner; /* the one member with all of a gathered or scattered tensor; -1: split by shard_rows() */
    int32_t peer;  /* world rank of a message's other end */
    /* slots of placements, bit by bit, in which more than one rank communicates; regroup: in which y is divided */
    uint32_t slots;
    int64_t first; /* all_reduce: the first of the rows that it sums */
    int64_t rows;  /* rows of the whole that shard_rows() divides, 0: evenly; rows that an all_reduce sums, 0: all */
} op_where;

typedef struct op {
    uint8_t kind;  /* op_kind */
    uint8_t phase; /* program.h: the action that it belongs to */
    int16_t chunk;
    int16_t layer;      /* the model's layer; -1: none */
    int32_t microbatch; /* -1: outside the micro-batches */
    int32_t index;      /* index in its program, or in its body while recording */
    bool detached;      /* recorded by hand within the forward pass: differentiation skips it */
    int32_t lasting;    /* its number among the ops of its body that are not recomputed */
    bool recomputed;    /* the backward pass recomputes its outputs, whatever else is kept */
    bool joined;        /* gradients of its weights are made in the action of its inputs' gradients */
    tensor *in[OP_MAX_IN];
    tensor *out[OP_MAX_OUT];
    tensor *scratch;                    /* working memory of the implementation, or NULL */
    const struct op_prepared *prepared; /* the device's; NULL: the backend's kernel computes the op by itself */
    const char *label;                  /* "layer 3/mlp/down" */
    const char *site;                   /* its name within its layer, "mlp/down": the end of the label */
    op_attributes at;
    op_where where;
} op;

/* One planned tensor, filled before the step, read by the ops that list `scalars` among their inputs. */
typedef struct step_scalars {
#define SCALAR(type, name, value) type name;
#include "kernels/table/scalars.def"
} step_scalars;

/* Results of the op `clip` for the optimizer and for the log. */
enum control { CONTROL_NORM, CONTROL_FACTOR, CONTROL_SKIP, CONTROL_COUNT };

/* An implementation's arguments beside its op. */
typedef struct run_context {
    char *arena;  /* host or device address of the rank's arena: tensor_at(t, arena) */
    int threads;  /* OpenMP threads of this rank */
    void *stream; /* the device's stream */
    void *device; /* the backend's own */
} run_context;

typedef void (*op_kernel)(const op *o, const run_context *r);

/* A device's preparation of an op, made before the first step: a oneDNN primitive, a cuBLASLt plan, cuDNN's graph with
 * its addresses. It is the first member of its maker's struct; the maker owns it at least as long as the device is
 * open, and several ops may share one. */
typedef struct op_prepared {
    /* Computes all of `o` and returns true, or leaves `o` to the backend's kernel and returns false. */
    bool (*run)(const struct op_prepared *self, const op *o, const run_context *r);
} op_prepared;

/* Runs the op's preparation; true if that computed `o`. */
static inline bool op_run_prepared(const op *o, const run_context *r)
{
    return o->prepared && o->prepared->run(o->prepared, o, r);
}

typedef struct op_cost {
    double flops;
    double bytes; /* read and written once each */
} op_cost;

struct recorder;

typedef struct op_row {
    const char *name, *formula, *in_names, *out_names;
    uint8_t class;             /* op_class */
    uint8_t takes[OP_MAX_OUT]; /* mask, by output, of the inputs that may lend it their storage */
    uint32_t flags;
    void (*infer)(op *o);
    op_cost (*cost)(const op *o);
    /* Records the gradient's ops, given the op and the cotangents of its outputs (NULL where none flows back). */
    void (*gradient)(struct recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT]);
} op_row;

extern const op_row op_rows[OP_COUNT];
extern const uint8_t op_class_traits[OP_CLASS_COUNT];

static inline const op_row *op_row_of(const op *o)
{
    return &op_rows[o->kind];
}

static inline bool op_is(const op *o, op_class class)
{
    return op_row_of(o)->class == class;
}

/* True if its class has one of these traits. */
static inline bool op_does(const op *o, unsigned traits)
{
    return (op_class_traits[op_row_of(o)->class] & traits) != 0;
}

/* True if it has one of these flags. */
static inline bool op_has(const op *o, unsigned flags)
{
    return (op_row_of(o)->flags & flags) != 0;
}

/* True for communication, which runs on a queue of its axis. */
static inline bool op_communicates(const op *o)
{
    return op_is(o, OP_CLASS_COMMUNICATION);
}

/* True for a copy between a device and host memory. */
static inline bool op_copies(const op *o)
{
    return op_is(o, OP_CLASS_HOST);
}

/* True if asynchronous: it is done at the wait that names its request. */
static inline bool op_starts(const op *o)
{
    return op_communicates(o) || op_copies(o);
}

static inline bool op_waits(const op *o)
{
    return op_is(o, OP_CLASS_WAIT);
}

/* True if a backend's kernel computes it, where and when it stands in the program. */
static inline bool op_computes(const op *o)
{
    return !op_starts(o) && !op_waits(o);
}

/* Returns the place of communication along an axis: its group's size and rank. */
op_where op_along(const axis_group groups[AXIS_COUNT], axis a);

/* "layer 3/mlp/down: linear" for messages; returns out */
const char *op_text(char *out, int bytes, const op *o);

/* Rows [first, first + count) of `rows` that belong to `rank` of `ranks`: as even as can be, the first ranks one
 * more. */
void shard_rows(int64_t *first, int64_t *count, int64_t rows, int ranks, int rank);
/* Returns the rank that `row` belongs to, and in *within its number there. */
int shard_owner(int64_t *within, int64_t rows, int ranks, int64_t row);

/* ---- a backend's implementations ----------------------------------------------------------------------------- */

typedef struct op_backend {
    const char *name;
    const op_kernel *kernels; /* [OP_COUNT] */
    /* Bytes of working memory that the implementation of `o` wants during the op; 0 for most. */
    int64_t (*scratch_bytes)(const op *o, int threads);
    /* Sets o->prepared before the first step, or leaves it NULL. NULL where the device does it. */
    status (*prepare)(op *o, int threads);
    bool
        communicates; /* its device has a communication backend of its own, which wants no working memory of the plan */
    const char
        *device; /* word of the device (devices.def) that plans are for where they name none; NULL: DEVICES_ASSUMED */
    void (*words)(char *out,
                  int bytes); /* libraries and instructions, for a self-check; NULL where the device prints them */
    bool same_bits;           /* no choice that a memory budget makes changes a bit of the results */
} op_backend;

extern const op_backend cpu_backend;
/* True if this machine's processor multiplies bf16, as its kernels do then. */
bool cpu_multiplies_bf16(void);
