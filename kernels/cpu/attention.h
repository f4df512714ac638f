/* What forward and backward attention share: sizes derived once from an op, and the masks of its tiles. */
#pragma once

#include "kernels/cpu/tile.h"
#include "kernels/table/op.h"

typedef struct attention_shape {
    int32_t heads, kv_heads, group; /* query heads to a kv head */
    int64_t d, d_even, d_lanes;     /* head_size of q and k, padded for pairs, padded for vectors */
    int64_t e, e_even, e_lanes;     /* that of v and y */
    int64_t sequence, samples;      /* of keys */
    int64_t key_tiles;              /* of a sample */
    int64_t rows, run;              /* of queries; those in a run have neighbouring positions in one sample */
    int64_t run_tiles, tiles;       /* of a run, and the most of one sample's runs */
    float scale, cap;
    float exponent; /* what the softmax multiplies scores by: scale, or cap where it reads their tanh */
    int32_t window;
} attention_shape;

attention_shape attention_shape_of(const op *o, const tensor *q, const tensor *v);

/* A tile of queries: rows [row, row + count) of q, from `position` in their sample on. */
typedef struct attention_tile {
    int64_t row, position, count;
} attention_tile;

/* The `i`-th tile of the queries of a sample, in ascending rows; false: there are fewer. `places`: of the queries, as
 * the op attention has them; NULL: they are the samples, end to end. */
bool attention_tile_of(attention_tile *out, const attention_shape *a, const int32_t *places, int64_t sample, int64_t i);

/* What the queries of a tile see: low and high of each (tile.h), and their bounds over the tile. */
typedef struct attention_range {
    float low[TILE_QUERIES], high[TILE_QUERIES];
    float least_low, most_low, least_high, most_high;
} attention_range;

/* Of a tile's queries; what is beyond them in the tile sees nothing. document_start: of all rows of q, or NULL */
void attention_range_of(attention_range *out, const attention_shape *a, const int32_t *document_start,
                        const attention_tile *tile);
/* The mask of a tile of keys; false where it surely hides every pair. */
bool attention_visible(tile_mask *mask, const attention_range *range, int64_t first_key, int64_t keys);

#define ATTENTION_LOG2_E 1.44269504088896341
#define ATTENTION_LN_2   0.693147180559945309
