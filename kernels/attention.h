/* How much an op of class ATTENTION computes, for who prices it or looks for a measurement of its like, how wide its
 * values are, and how many of its queries are neighbours. Its exact cost, of the pairs that mask and window leave, is
 * in the op table. */
#pragma once

#include <stdbool.h>

#include "kernels/table/op.h"

/* Elements of a head of v, which v's columns say. */
static inline int64_t attention_v_head_size(const op *o, const tensor *v)
{
    return v->shape[1] / o->at.kv_heads;
}

/* Queries that are neighbours in a sample, and a row of lse: those of a run, or a whole sample's. */
static inline int32_t attention_run(const op *o)
{
    return o->at.run ? o->at.run : o->at.sequence;
}

/* Queries, the keys of a sample, and the width of all heads of q. */
void attention_work(double size[3], const op *o);

/* The sequence whose causal queries see as many keys in the mean as the op's do: its own, or about twice the window
 * where that is narrower. */
double attention_reach(const op *o);

/* Do ranks of one program do other amounts of the op's work, as the batch has it: where documents are masked, or where
 * ranks that divide a sample's queries look through a window? */
bool attention_work_varies(const op *o);

/* The sizes of multi-head latent attention (2405.04434), which its ops read from their operands. A head of q and k is
 * `nope` elements that do not rotate, then `rope` elements that do; of the keys the latter are one for all heads. */
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
