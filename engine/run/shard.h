/* Assigns the tokens of a micro-batch to context ranks. A `place` is a token position within the micro-batch, its
 * samples laid end to end; a `shard_shape` lists the positions of all ranks, rank after rank, equally many each.
 *
 * Zig-zag shards (shard_zigzag; 2407.21783): a sample is 2c chunks, of which rank i of c has the i-th and the i-th
 * last, first the one chunk of every sample, then the other. Under a causal mask all ranks have equal work. Document
 * masks break that: there blocks of tokens are assigned by cost, the most expensive first, each to the least loaded
 * rank that has room (longest processing time first; Graham 1969). The assignment depends on the batch alone.
 */
#pragma once

#include <stdint.h>

typedef struct shard_shape {
    int64_t samples, sequence;
    int ranks;
    int64_t run;    /* tokens of a chunk or block; a rank has whole ones */
    int64_t window; /* attention window; 0: none */
} shard_shape;

/* Writes the zig-zag shards' token positions, out[samples sequence]. */
void shard_zigzag(int32_t *out, const shard_shape *d);
/* Balances them by cost; document_start [samples sequence] has each token's, in order of position, as in
 * layers/inputs.def. */
void shard_documents(int32_t *out, const shard_shape *d, const int32_t *document_start);
/* Returns the attention work of the busiest rank over the mean: 1 if all are equal. `document_start` NULL: one document
 * per sample. */
double shard_imbalance(const int32_t *token_positions, const shard_shape *d, const int32_t *document_start);
/* Counts tokens of other ranks in a micro-batch, seen by no query of `rank` as keys. `document_start` as above. */
int64_t shard_unseen(const int32_t *token_positions, const shard_shape *d, const int32_t *document_start, int rank);
