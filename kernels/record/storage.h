/* The storage of a parameter on this rank: the tensors that have bytes for as long as it trains, and the rows that it
 * owns.
 *
 * The replicas of a parameter (kernels/record/parameter.h) may divide its rows: the rank *owns* rows [own_first,
 * own_first + own_rows), updates them and keeps their optimizer state. Other jobs' owners by row:
 * engine/compile/model/owner_role.h. Where a setting makes two tensors one (fp32: own_weight and master), they are the
 * same or views of the same bytes. Made by engine/compile/model/storage.c, const afterwards: any number of recordings
 * and programs may read it at a time. The maker of the storage owns the tensors.
 */
#pragma once

#include "kernels/record/parameter.h"

enum { STORAGE_STATES = 3, STORAGE_LEVELS = 4 };

/* True if ZeRO (1910.02054) of this level lets a rank keep only its share of tensors of this class, if there are
 * replicas. */
static inline bool storage_shares(int level, tensor_class class)
{
    static const int from[CLASS_COUNT] = {[CLASS_OPTIMIZER] = 1, [CLASS_GRADIENT] = 2, [CLASS_WEIGHT] = 3};
    return from[class] > 0 && level >= from[class];
}

typedef struct storage {
    const parameter *of;
    bool divided; /* each replica owns other rows; else each owns and updates all */
    int owner;    /* the replica that owns all of it, or -1: rows are divided by shard_rows() */
    int64_t own_first, own_rows;
    bool shard_weight;   /* only the owned rows of the weight have bytes */
    bool shard_gradient; /* so of the gradient: it is reduced each micro-batch */
    tensor *weight;      /* operand of products: all rows, T; only a description where shard_weight */
    tensor *shard;       /* the owned rows of the weight where shard_weight, else NULL */
    tensor *gradient;    /* fp32: all rows, or the owned rows where shard_gradient */
    tensor *own_weight;  /* the owned rows of weight, or shard: a view */
    tensor *own_gradient;
    tensor *master;                /* fp32, owned rows; in fp32 own_weight itself */
    tensor *state[STORAGE_STATES]; /* the optimizer's, owned rows: of AdamW the first and second moment */
    int states;
    /* Compressed gradient exchange: rows of the sum that this rank makes (its own rows where rows are divided), and the
     * replica that makes all of it, or -1. */
    int sum_owner;
    int64_t sum_first, sum_rows;
    /* fp32 error feedback that compressing left for the next step: all rows of this rank's gradient; the rows above of
     * the sum, where it is compressed too because all replicas get all of it. NULL: no compression, or no rows. */
    tensor *feedback, *feedback_sum;
} storage;

/* True if a step begins by gathering the whole weight from the rows that the replicas have updated. */
static inline bool storage_is_gathered(const storage *s)
{
    return s->divided && !s->shard_weight;
}
