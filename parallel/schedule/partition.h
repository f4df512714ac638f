/* Which layers go to which chunk of the pipeline: contiguous runs, automatic or as the user gives them.
 *
 * Counts are by global chunk (chunk * stages + stage), so that with virtual stages the list has stages * chunks
 * entries. */
#pragma once

#include "memory/status.h"

typedef struct partition_costs {
    const double *layers; /* [layers], in any unit; NULL: every layer costs 1 */
    double first;         /* what the first chunk does in addition to its layers: the embedding, in the same unit */
    double last;          /* what the last does: final norm, head and loss */
} partition_costs;

/* `counts`: [chunks]. At least one layer a chunk. The division whose most expensive chunk is cheapest; among those the
 * one with the least sum of squares (even); among those the one that gives more layers to the earlier chunks. Exact. */
status partition_automatic(int *counts, const partition_costs *costs, int layers, int chunks);

/* As given by parallel.layers_per_stage: checked to have `chunks` entries of at least 1 that sum to `layers`. */
status partition_given(int *counts, const int *given, int entries, int layers, int stages, int chunks_per_stage);
