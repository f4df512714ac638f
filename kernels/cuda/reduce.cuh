/* The second stage of every deterministic gradient sum: rows of partial sums added in order. */
#pragma once

#include <stdint.h>

/* sum[columns] (+)= the sum of the rows of partials[rows, columns], row r at partials + r pitch */
int reduce_partials(void *stream, float *sum, const float *partials, int64_t rows, int64_t columns, int64_t pitch,
                    bool accumulate);
