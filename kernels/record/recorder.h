/* The recorder: backward_starts a layer's calls into ops of a body, and a recorded forward pass into its backward pass.
 *
 * One recorder records one chunk of layers for one micro-batch, which is the pattern of all: record the forward ops,
 * then call recorder_differentiate(). Tensors and ops live in the recorder's pool, which the caller owns; the recorder
 * keeps its own table of parameters, so that recordings of one model do not touch each other. Each `record_` function
 * below appends one op and returns its (first) output; operands' shapes, types and placements are checked then and
 * there, so a forgotten collective is an error at the layer that forgot it.
 *
 * Keep or recompute is asked per tensor when the backward pass first wants it: a tensor that is not to be kept is
 * recomputed by re-recording its producer, after the same question for the producer's inputs.
 */
#pragma once

#include "kernels/record/program.h"
#include "kernels/record/recompute.h"
#include "kernels/record/storage.h"

/* The ranks around this one, as recording needs to know them. */
typedef struct recorder_grid {
    axis_group group[AXIS_COUNT]; /* AXIS_VOCABULARY has one rank, where the stages do not divide it */
    bool ends_apart;              /* the embedding and the head are on different stages */
    bool ends_folded;             /* the ends are on one of several stages, in chunks of their own */
    unsigned divided; /* coordinates, bit by bit, along which more than one rank divides samples or tokens */
    bool sequence;    /* activations between blocks are shards over tokens */
} recorder_grid;

/* Returns the grid of a rank without others around it. */
recorder_grid recorder_alone(void);
/* Computes this rank's part, from `first`, of `rows` that the ranks along an axis divide. */
void recorder_part(int64_t *first, int64_t *count, const recorder_grid *g, axis a, int64_t rows);

/* State of a parameter in one recording. */
typedef struct recorder_parameter {
    int uses, used;   /* uses by forward ops; uses by their gradients, within the micro-batch */
    bool written;     /* some op of the recording already wrote the gradient */
    tensor *partial;  /* the micro-batch's own gradient, where it is reduced each micro-batch */
    tensor *gathered; /* the whole weight in the body being recorded */
} recorder_parameter;

/* The most tensors of one recording where the backward pass starts. */
enum { RECORDER_BACKWARD_STARTS = 2 };

typedef struct recorder {
    pool *pool;
    recorder_grid grid;
    const storage *storage; /* one per parameter number; the caller's, const */
    /* Whole weights of sharded parameters, by number, gathered before the body runs; NULL: each body gathers them. */
    tensor *const *whole;
    recorder_parameter *known; /* one per parameter number */
    int parameters;
    dtype compute; /* T */
    bool training; /* a backward pass will follow */
    bool split;    /* weight gradients go to PHASE_WEIGHT */
    recompute recompute;
    const uint8_t *drop; /* RECOMPUTE_CHOSEN: drop[i] of forward op i: recompute its outputs */
    int64_t tokens;      /* tokens of a micro-batch, over the whole tensor group */

    program body[PHASE_COUNT];
    phase phase;
    tensor **tensors; /* indexed by tensor id */
    int tensor_count, tensor_capacity;
    tensor **cotangent, **again; /* indexed by a forward tensor's id */
    int64_t *unwritten;          /* columns of its cotangent that are yet to be written, indexed by its id */
    bool *divided;               /* true if its cotangent is written by columns, indexed by its id */
    int forward_tensors;
    int layer;               /* layer of ops to come; -1: none */
    bool recomputed, joined; /* flags of ops to come (kernels/table/op.h) */
    int bucket;              /* capacity bucket of the program's row capacity for experts */
    int recomputed_ops;      /* recomputed ops of the forward pass so far */
    const op *backward;      /* the op differentiated at present: its site begins the sites of its gradient's ops */
    int sites;               /* dropout sites so far */
    /* Where the backward pass begins: tensors, and their cotangents, of losses or of another body. */
    tensor *backward_start[RECORDER_BACKWARD_STARTS], *backward_start_cotangent[RECORDER_BACKWARD_STARTS];
    int backward_starts;
} recorder;

/* `table`: one for each number below `parameters`. */
void recorder_open(recorder *r, pool *p, const recorder_grid *grid, dtype compute, const storage *table,
                   int parameters);
void recorder_close(recorder *r); /* lists and tables; ops and tensors stay in the pool */

/* Assigns ops from now on to this layer of the model ("layer 3" begins their labels); -1: to none. */
void recorder_layer(recorder *r, int layer);

/* Keeps a tensor for the backward pass, whatever is recomputed. */
void recorder_keep(tensor *t);
/* Makes a tensor of this body without a producer: the chunk's input, a received cotangent. */
tensor *recorder_input(recorder *r, const char *name, dtype type, int dims, const int64_t *shape, placements place);
/* Places an activation: `place` along the tensor axis, divided along the axes that divide samples and tokens. */
placements recorder_activation(const recorder_grid *g, placement place);
/* Makes rows [first, first + count) of dimension 0, sharing bytes. Not differentiable: for ops recorded by hand. */
tensor *recorder_rows(recorder *r, tensor *of, int64_t first, int64_t count);
/* Makes columns [first, first + count) of a matrix, sharing bytes. Differentiable where an op made the matrix: the
 * cotangents of its columns are written side by side into one tensor, and every column must have one. The matrix must
 * then not be read as a whole. */
tensor *recorder_columns(recorder *r, tensor *of, int64_t first, int64_t count);
/* Makes one row of a matrix, as a vector. */
tensor *recorder_row(recorder *r, tensor *of, int64_t row);
/* The weight of `p` as a product reads it: all rows, gathered over the data axis first where it is sharded. Each call
 * is a use, and each use answers with one recorder_gradient_done() when its gradient is complete. NULL where `p` is. */
tensor *recorder_weight(recorder *r, const parameter *p);

/* Starts differentiation at `t`, too; another body makes its cotangent. */
void recorder_begin_at(recorder *r, tensor *t, tensor *cotangent);
/* Starts differentiation at `t`, too: a loss has made its cotangent within the forward pass. */
void recorder_start_backward(recorder *r, tensor *t, tensor *cotangent);
/* Assigns ops from now on to the backward pass, for parts differentiated by hand; recorder_differentiate() begins with
 * it. */
void recorder_begin_backward(recorder *r);
/* Differentiates from `output` (its cotangent is `cotangent`; both are NULL where losses have begun the backward pass)
 * back to the chunk's input. Returns the cotangent of `input`, or NULL if none flows there (an embedding's tokens). */
tensor *recorder_differentiate(recorder *r, tensor *input, tensor *output, tensor *cotangent);
/* Returns, after it, the cotangent of `t`, another tensor without a producer; NULL: none flows there. */
tensor *recorder_cotangent(recorder *r, const tensor *t);

/* ---- used by gradient rules ---------------------------------------------------------------------------------- */

/* Returns a forward tensor for the backward pass: kept, or recomputed. */
tensor *recorder_use(recorder *r, tensor *t);
/* Adds `value` to the cotangent of `of`: the first call writes, later ones add. */
void recorder_flow(recorder *r, tensor *of, tensor *value);
/* The cotangent of `of` so far, for an op that adds it itself (NULL: none yet); recorder_flow_set() gives the sum. */
tensor *recorder_flow_take(recorder *r, const tensor *of);
void recorder_flow_set(recorder *r, const tensor *of, tensor *sum);
/* Where the op about to be recorded is to write the cotangent of `of`: into columns of that of its base. NULL:
 * anywhere. */
tensor *recorder_flow_into(recorder *r, const tensor *of);
bool recorder_wants(const recorder *r, const tensor *of); /* true if a tensor upstream has a gradient */
/* The fp32 tensor that the gradient of weight `w` is to be written or added to by the op about to be recorded, and
 * which (enum op_accumulate). Call recorder_gradient_done() after it. */
tensor *recorder_gradient(recorder *r, const tensor *w, uint8_t *accumulate);
void recorder_gradient_done(recorder *r, const tensor *w, bool weight_phase);

/* ---- recording ----------------------------------------------------------------------------------------------- */

/* Appends an op like `like`, which has the kind, inputs and attributes (and given outputs): calls op_make() of
 * kernels/record/op_make.h with a label, at its place in the body. */
op *recorder_record(recorder *r, const char *name, const op *like, unsigned outputs, tensor *const *into);
