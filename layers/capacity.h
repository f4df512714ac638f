/* Capacity buckets of experts that ranks divide: programs that differ in the number of rows they have room for.
 *
 * The number of tokens that choose a rank's experts is known only when the step runs. A first pass has room for
 * `capacity` times a rank's mean; smaller overflow passes reuse its memory for more. Higher buckets have more
 * passes, and the last has room for any choice of tokens. A step without enough room leaves the model unchanged and is
 * repeated on a higher bucket.
 *
 * Or rows are dropped (2006.16668), where the configuration asks for it: the assignments to a rank's experts, in the
 * order of (expert, token, choice), that exceed the first bucket's room. Their tokens' residual stream goes on without
 * them; the weights of a token's other experts stay as they are. Evaluation never drops rows.
 */
#pragma once

#include "kernels/table/op.h"

/* Sizes that decide the buckets, the same on all ranks. */
typedef struct capacity_shape {
    int64_t tokens;      /* a micro-batch's tokens on all ranks that divide experts; where they travel in slots of as
                            many rows as a pass, on one rank */
    int ranks;           /* ranks that divide experts */
    int experts, active; /* experts of a layer; experts of a token */
    double capacity;     /* rows of the first pass, as a multiple of a rank's mean */
    int spill;           /* overflow passes on the first bucket */
    bool drop;           /* the first bucket is the only one: rows that it has no room for are dropped */
} capacity_shape;

/* A first pass of `rows`, and `count` overflow passes of `overflow` rows. */
typedef struct capacity_passes {
    int64_t rows, overflow;
    int count;
} capacity_passes;

/* Returns the passes of a bucket, from 0 on; buckets above the last have the last one's. */
capacity_passes capacity_passes_of(const capacity_shape *s, int bucket);
/* Returns the number of buckets, from 1 to CAPACITY_BUCKETS. */
int capacity_buckets(const capacity_shape *s);
/* Returns the rows that it has room for. */
int64_t capacity_rows(const capacity_passes *w);
