/* Fusion: where an element-wise op takes a product's result, the two become one op of the table, which a backend may do
 * in one pass over the result (cuBLASLt's epilogues). Values are those of the two ops; only a rounding may be missing.
 *
 * It is done to recorded bodies, when it is decided what is kept and what is recomputed: each of the two can still be
 * kept or recomputed by itself (gelu from the kept sum, without the product), a recomputed op is fused like the first
 * one, and a result that nobody else reads is never stored.
 */
#pragma once

#include "kernels/record/recorder.h"

/* Fuse what can be in all bodies of a recorder. `ends`: `count` tensors (NULL allowed) that are read outside the
 * bodies. */
void fuse_recorded(recorder *r, tensor *const *ends, int count);

/* The two ops that `o` is made of: first the product, into the fused op's output where its result has no storage of its
 * own, then what is done to that, in place if need be. An op that is not fused is its own first. */
bool fuse_is_fused(const op *o);
op fuse_first(const op *o);
op fuse_second(const op *o);
