/* Fusion: where an element-wise op takes a product's result, the two become one op of the table, which a backend may do
 * in one pass over the result (cuBLASLt's epilogues). Values equal the two ops' values; only a rounding may be missing.
 *
 * It is applied to recorded bodies, once the choice between keeping and recomputing is made: each of the two can still
 * be kept or recomputed by itself (gelu from the kept sum, without the product), a recomputed op is fused like the
 * first one, and a result without other readers is never stored.
 */
#pragma once

#include "kernels/record/recorder.h"

/* Fuses ops in all bodies of a recorder wherever possible. `ends`: `count` tensors (NULL allowed) that are read outside
 * the bodies. */
void fuse_recorded(recorder *r, tensor *const *ends, int count);

/* Return the two ops that `o` fuses: first the product, into the fused op's output where its result has no storage of
 * its own; second the op on that result, in place if need be. An op that is not fused is its own first. */
bool fuse_is_fused(const op *o);
op fuse_first(const op *o);
op fuse_second(const op *o);
