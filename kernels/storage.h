/* The storage of a parameter on this rank: the tensors that have bytes for as long as it trains, and the rows that it owns.
 *
 * The data axis may divide a parameter's rows: the rank *owns* rows [own_first, own_first + own_rows), updates them and
 * keeps their optimizer state. The other rows of a weight are up to date once a step has gathered them (engine/compile/step/update.c). Where a setting makes two tensors one (fp32: own_weight and master), they are the same or
 * views of the same bytes. Made by engine/compile/model/storage.c, const afterwards: any number of recordings and programs may
 * read it at a time. Tensors belong to whoever made the storage.
 */
#ifndef PHALANX_KERNELS_STORAGE_H
#define PHALANX_KERNELS_STORAGE_H

#include "kernels/parameter.h"

enum { STORAGE_STATES = 3 };

typedef struct storage {
    const parameter *of;
    int owner; /* the data rank that owns all of it, or -1: rows are divided */
    int64_t own_first, own_rows;
    bool shard_weight;   /* ZeRO 3: only the owned rows of the weight have bytes */
    bool shard_gradient; /* so of the gradient: it is reduced each micro-batch */
    tensor *weight;      /* what the products read: all rows, T; only a description where shard_weight */
    tensor *shard;       /* the owned rows of the weight where shard_weight, else NULL */
    tensor *gradient;    /* fp32: all rows, or the owned rows where shard_gradient */
    tensor *own_weight;  /* the owned rows of weight, or shard: a view */
    tensor *own_gradient;
    tensor *master;                /* fp32, owned rows; in fp32 own_weight itself */
    tensor *state[STORAGE_STATES]; /* the optimizer's, owned rows: of AdamW the first and second moment */
    int states;
    /* fp32, what compressing left for the next step: of this rank's gradient, all rows; of the sum (ZeRO 0), those that it adds up.
     * NULL: nothing is compressed, or it has no rows. */
    tensor *feedback, *feedback_sum;
} storage;

#endif
