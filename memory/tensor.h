/* A tensor: the description of an array that a program reads or writes. It owns no bytes; an arena does.
 *
 * A tensor without a base gets an address (an offset in the rank's arena) from the planner. A *view* has a base and
 * shares its bytes and its lifetime. Every tensor is row-major; a view may skip between rows of dimension 0 only
 * (`pitch`), so that a range of rows or of columns is a view. Tensors belong to the program that made them; persistent
 * ones (parameters, gradients, optimizer state, inputs) to the model's table of storage.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/dtype.h"

enum { TENSOR_DIMS = 3, TENSOR_SLOTS = 16 };

/* Use of a tensor's bytes: the columns of `phalanx plan`. All but the last three are persistent. */
typedef enum tensor_class {
    CLASS_INPUT,     /* tokens, scalars, tables: filled before a step */
    CLASS_WEIGHT,    /* parameters as matrix products read them */
    CLASS_GRADIENT,  /* fp32 sums over the micro-batches */
    CLASS_OPTIMIZER, /* master weights of narrower ones, optimizer states */
    CLASS_HOST,      /* tensors in a device's pinned host memory: addresses from TENSOR_HOST on */
    CLASS_KEPT,      /* written in the forward pass, read in the backward pass */
    CLASS_TEMPORARY, /* dies within the action that made it */
    CLASS_SCRATCH,   /* a library's or a kernel's working memory during one op */
    CLASS_COUNT,
} tensor_class;

/* Addresses from here on are offsets in host memory, of CLASS_HOST alone; no arena is so large. */
#define TENSOR_HOST ((int64_t)1 << 48)

/* Relation of one tensor's copies on the ranks along one axis. */
typedef enum placement_kind {
    PLACE_REPLICATE, /* every rank holds the value, and every rank's cotangent of it is the whole cotangent */
    PLACE_SHARED,  /* every rank holds the value for its own shard's use: the ranks' cotangents sum to the cotangent */
    PLACE_SHARD,   /* each rank holds its shard along `dim`, and of the cotangent */
    PLACE_PARTIAL, /* the ranks' values sum to the value; the cotangent is replicated */
    PLACE_OWNED,   /* one rank has it, the others have none of it */
} placement_kind;

typedef struct placement {
    uint8_t kind; /* placement_kind */
    int8_t dim;   /* dimension of a shard, else 0 */
} placement;

/* A placement along every axis; kernels/table/axis.h defines the slots. */
typedef struct placements {
    placement along[TENSOR_SLOTS];
} placements;

typedef struct tensor {
    const char *name;
    struct tensor *base;               /* NULL: it has bytes of its own */
    struct op *producer;               /* the op that writes it, in a recorded body; NULL for persistent tensors */
    const struct parameter *parameter; /* it is this parameter's weight or gradient; NULL: neither */
    int64_t shape[TENSOR_DIMS];
    int64_t pitch;       /* elements from one index of dimension 0 to the next; shape[1]*shape[2] when contiguous */
    int64_t offset;      /* views: bytes from the base's start */
    int64_t address;     /* bytes from the arena's start, views included; -1 before planning */
    int32_t id;          /* index in its program's table; persistent tensors: -1 */
    int32_t first, last; /* planned programs: the ops between which it is alive */
    uint8_t dims;
    uint8_t type;        /* dtype */
    uint8_t class;       /* tensor_class */
    bool keep;           /* kept for the backward pass despite recomputation: a block's input */
    bool per_microbatch; /* a step's input: row m is micro-batch m's */
    placements place;
} tensor;

static inline bool tensor_persistent(const tensor *t)
{
    return t->class < CLASS_KEPT;
}

/* Returns the tensor that has the bytes of `t`: itself, or the view's base. Views of views do not exist. */
static inline tensor *tensor_root(tensor *t)
{
    return t->base ? t->base : t;
}

int64_t tensor_elements(const tensor *t);
/* Returns bytes from the first to the last element; contiguous: elements times the element's size. */
int64_t tensor_bytes(const tensor *t);
bool tensor_contiguous(const tensor *t);
/* Describes a contiguous tensor in place: everything else zero, address -1, id -1. */
void tensor_describe(tensor *out, const char *name, tensor_class class, dtype type, int dims, const int64_t *shape);
/* Writes "[4096, 768] bf16" into out; returns out. */
const char *tensor_text(char *out, int bytes, const tensor *t);

placement place_replicate(void);
placement place_shared(void);
placement place_partial(void);
placement place_shard(int dim);
placement place_owned(void);
/* Returns `p` in one slot, replicate in the others. */
placements place_along(int slot, placement p);
/* Returns the placement of the cotangent of a tensor placed so, slot by slot: shared -> partial, partial -> replicate,
 * the others stay. */
placements place_cotangent(placements p);

/* Returns the address of `t` in the arena that starts at `arena` (host or device address). */
static inline void *tensor_at(const tensor *t, void *arena)
{
    return t ? (char *)arena + t->address : (void *)0;
}
