/* How many tokens' logits exist at a time. Each chunk of tokens reads and writes the whole gradient of the head, in
 * fp32: small chunks cost time, large ones memory.
 */
#pragma once

#include "engine/compile/model/compiled.h"

/* The chunk by price alone, of a rank with these options. */
int64_t loss_chunk_by_price(const compile_options *o);
/* The largest chunk worth a try where memory is left: all tokens of a micro-batch, unless the matrix of their logits
 * has 2^31 elements or more. */
int64_t loss_chunk_largest(const compile_options *o);
/* The next smaller chunk worth a try, or 0. */
int64_t loss_chunk_below(const compile_options *o, int64_t tokens);
/* Seconds that a micro-batch's loss takes, in chunks of `tokens`, on a device of so many FLOPs and bytes a second. */
double loss_chunk_seconds(const compile_options *o, int64_t tokens, double flops, double memory);
/* Bytes of a chunk's logits on each rank. */
int64_t loss_chunk_bytes(const compile_options *o, int64_t tokens);
