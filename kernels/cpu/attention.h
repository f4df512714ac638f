/* What forward and backward attention share: sizes derived once from an op, and the masks of its tiles. */
#ifndef PHALANX_KERNELS_CPU_ATTENTION_H
#define PHALANX_KERNELS_CPU_ATTENTION_H

#include "kernels/cpu/tile.h"
#include "kernels/op.h"

typedef struct attention_shape {
    int64_t heads, kv_heads, group; /* query heads to a kv head */
    int64_t d, d_even, d_lanes;     /* head_size of q and k, padded for pairs, padded for vectors */
    int64_t e, e_even, e_lanes;     /* that of v and y */
    int64_t sequence, tiles, samples;
    float scale;
    int32_t window;
} attention_shape;

attention_shape attention_shape_of(const op *o, const tensor *q, const tensor *v);

/* What the queries of a tile see: low and high of each (tile.h), and their bounds over the tile. */
typedef struct attention_range {
    float low[TILE_QUERIES], high[TILE_QUERIES];
    float least_low, most_low, least_high, most_high;
} attention_range;

/* Of the queries from `first` on; queries beyond the sequence see nothing. document_start: the sample's, or NULL */
void attention_range_of(attention_range *out, const attention_shape *a, const int32_t *document_start, int64_t first);
/* The mask of a tile of keys; false where it surely hides every pair. */
bool attention_visible(tile_mask *mask, const attention_range *range, int64_t first_key, int64_t keys);

#define ATTENTION_LOG2_E 1.44269504088896341
#define ATTENTION_LN_2   0.693147180559945309

#endif
