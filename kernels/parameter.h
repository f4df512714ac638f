/* A parameter: one array of weights as this rank holds it, and everything about it that training needs.
 *
 * `rows x columns` is the rank's tensor-parallel part (a vector is one row). The data axis may divide it further:
 * the rank *owns* rows [own_first, own_first + own_rows), updates them and keeps their optimizer state. The weights the
 * products read, the gradient, the master copy and the moments are tensors with storage, described here; where a
 * setting makes two of them one (fp32: weight and master), they are one tensor.
 *
 * A parameter is known to the world by Hugging Face's names: each *piece* says which rectangle of which named tensor
 * stands where in the rank's part. What no piece covers is padding: zero, never stored, its gradient never counted.
 */
#ifndef PHALANX_KERNELS_PARAMETER_H
#define PHALANX_KERNELS_PARAMETER_H

#include "memory/tensor.h"

typedef enum parameter_init { INIT_NORMAL, INIT_ZERO, INIT_ONE } parameter_init;

typedef struct parameter_piece {
    const char *name;  /* Hugging Face's */
    int dims;          /* 1 or 2 of the named tensor */
    int64_t global[2]; /* its shape */
    int64_t start[2];  /* the rectangle that this piece is, in its indices */
    int64_t size[2];
    bool transposed;     /* element (i, j) of the named tensor is (j, i) here (GPT-2's Conv1D) */
    int64_t row, column; /* where the rectangle starts in the rank's part */
} parameter_piece;

enum { PARAMETER_PIECES = 4 };

typedef struct parameter {
    const char *name; /* "layer 3/attention/qkv" */
    int64_t rows, columns;
    bool vector; /* shape [columns], one row */
    placement place;
    bool decay;
    parameter_init init;
    float deviation; /* of INIT_NORMAL */
    int chunk;       /* of this stage */
    /* Rows from here on are copies, held by every rank of AXIS_KV (key/value heads fewer than ranks); -1: none. */
    int64_t copied_from;
    bool tied; /* the last stage's copy of the embedding: counted and stored by the first stage */
    parameter_piece pieces[PARAMETER_PIECES];
    int piece_count;

    int number; /* in the stage's order of parameters: the same on every rank of the tensor group, whichever it lacks */
    int owner;  /* the data rank that owns all of it, or -1: rows are divided */
    int64_t own_first, own_rows;

    tensor weight;                   /* what the products read: all rows, T */
    tensor shard;                    /* ZeRO 3: the owned rows, T; weight has no storage then */
    tensor gradient;                 /* fp32: all rows, or the owned rows where gradients are sharded */
    tensor own_gradient;             /* the owned rows: a view of gradient, or gradient itself */
    tensor own_weight;               /* the owned rows of weight, or shard */
    tensor master, moment1, moment2; /* owned rows, fp32; in fp32 master is own_weight */
    bool shard_weight, shard_gradient;

    /* while recording */
    int uses, used;   /* by forward ops; by their gradients so far, within the micro-batch */
    bool written;     /* some op of the recording already wrote the gradient */
    tensor *partial;  /* the micro-batch's own gradient, where it is reduced each micro-batch */
    tensor *gathered; /* the whole weight in the body being recorded */
} parameter;

#endif
