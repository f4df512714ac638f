/* Sizes of an op of class ATTENTION: its work, for prices and for finding similar measurements, the width of its
 * values, and the number of its queries that are neighbours. The op table has its exact cost, of the pairs that mask
 * and window leave. */
#pragma once

#include <stdbool.h>

#include "kernels/table/op.h"

/* Elements of a head of v, from v's columns. */
static inline int64_t attention_v_head_size(const op *o, const tensor *v)
{
    return v->shape[1] / o->at.heads.kv;
}

/* Queries that are neighbours in a sample, and the length of a row of lse: a run, or a whole sample. */
static inline int32_t attention_run(const op *o)
{
    return o->at.attention.run ? o->at.attention.run : o->at.attention.sequence;
}

/* Fills `size` with the queries, the keys of a sample, and the width of all heads of q. */
void attention_work(double size[3], const op *o);

/* The sequence length at which causal queries see as many keys on average as the op's do: its own, or about twice the
 * window where that is narrower. */
double attention_reach(const op *o);

/* True if ranks of one program do different amounts of the op's work on a batch: where documents are masked, or where
 * ranks that divide a sample's queries use a window. */
bool attention_work_varies(const op *o);

/* The sizes of multi-head latent attention (2405.04434), which its ops read from their operands. A head of q and k is
 * `nope` elements that do not rotate, then `rope` elements that do; of the keys the latter are one for all heads. */
typedef struct latent_sizes {
    int64_t heads, nope, rope, v_head_size, rank;
    int64_t width; /* columns of a row of the cache: rank + rope */
} latent_sizes;

/* Sizes of a latent_decode. */
static inline latent_sizes latent_sizes_of(const op *o)
{
    int64_t heads = o->at.heads.q, rope = o->in[2]->shape[1], nope = o->in[0]->shape[1] / heads - rope;
    int64_t rank = o->in[1]->shape[1];
    return (latent_sizes){.heads = heads,
                          .nope = nope,
                          .rope = rope,
                          .v_head_size = o->in[3]->shape[0] / heads - nope,
                          .rank = rank,
                          .width = rank + rope};
}

/* Heads of k that the op rope rotates: without kv_heads it is one, which all heads of q read. */
static inline int32_t latent_key_heads(const op *o)
{
    return o->at.heads.kv ? o->at.heads.kv : 1;
}

/* Number of elements that the op rope leaves unrotated at the start of each head of q. */
static inline int64_t latent_unrotated(const op *o)
{
    return o->at.heads.kv ? 0 : o->at.heads.size - o->in[1]->shape[1];
}
