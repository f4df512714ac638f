/* What forward and backward attention share: sizes derived once from an op, and the masks of its tiles. */
#ifndef PHALANX_KERNELS_CPU_ATTENTION_H
#define PHALANX_KERNELS_CPU_ATTENTION_H

#include "kernels/cpu/tile.h"
#include "kernels/op.h"

typedef struct attention_shape {
    int64_t heads, kv_heads, group; /* query heads to a kv head */
    int64_t d, d_even, d_lanes;     /* head_size, padded for pairs, padded for vectors */
    int64_t sequence, tiles, samples;
    float scale;
    int32_t window;
} attention_shape;

attention_shape attention_shape_of(const op *o, const tensor *qkv);
/* low and high [TILE_QUERIES] of the queries from `first` on; queries beyond the sequence see nothing. document_start:
 * the sample's, or NULL */
void attention_mask(float *low, float *high, const attention_shape *a, const int32_t *document_start, int64_t first);
/* The mask of one tile of keys; false where it hides every pair. */
bool attention_tile_visible(tile_mask *mask, const float *low, const float *high, int64_t first_key, int64_t keys);

#endif
