/* The sizes of multi-head latent attention (2405.04434), which its ops read from their operands. A head of q and k is
 * `nope` elements that do not rotate, then `rope` elements that do; of the keys the latter are one for all heads. */
#pragma once

#include "kernels/table/op.h"

typedef struct latent_sizes {
    int64_t heads, nope, rope, v_head_size, rank;
    int64_t width; /* of a row of the cache: rank + rope */
} latent_sizes;

/* Of latent_decode. */
static inline latent_sizes latent_sizes_of(const op *o)
{
    int64_t heads = o->at.heads, rope = o->in[2]->shape[1], nope = o->in[0]->shape[1] / heads - rope;
    int64_t rank = o->in[1]->shape[1];
    return (latent_sizes){.heads = heads,
                          .nope = nope,
                          .rope = rope,
                          .v_head_size = o->in[3]->shape[0] / heads - nope,
                          .rank = rank,
                          .width = rank + rope};
}

/* The heads of k that the op rope turns: without kv_heads it is one, which all heads of q read. */
static inline int32_t latent_key_heads(const op *o)
{
    return o->at.kv_heads ? o->at.kv_heads : 1;
}

/* The first elements of each head of q that the op rope leaves as they are. */
static inline int64_t latent_unrotated(const op *o)
{
    return o->at.kv_heads ? 0 : o->at.head_size - o->in[1]->shape[1];
}
