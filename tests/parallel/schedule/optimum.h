/* Exhaustive search: is there any schedule, of the same stages, chunks, micro-batches and memory, that ends in `length`
 * units? A unit is one F = one I = one W of a chunk; a whole backward takes two. Small cases only. */
#pragma once

#include <stdbool.h>

#include "parallel/schedule/schedule.h"

/* The candidates hold at most what `s` holds at its peak on each stage (M_W = M_B / 2), go through the micro-batches of
 * a chunk in ascending order, and split the backward if and only if `s` does. */
bool optimum_reachable(const schedule *s, int length);
/* Does the case fit in the search's 64-bit states? Chunks are not folded. */
bool optimum_fits(const schedule *s);
