/* How much an op of class ATTENTION computes, for who prices it or looks for a measurement of its like, how wide its
 * values are, and how many of its queries are neighbours. Its exact cost, of the pairs that mask and window leave, is
 * in the op table. */
#pragma once

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
