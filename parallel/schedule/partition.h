/* Divides layers among the chunks of the pipeline: contiguous runs, automatic or as the user gives them.
 *
 * Counts are by global chunk (chunk * stages + stage), so that with virtual stages the list has stages * chunks
 * entries. */
#pragma once

#include "memory/status.h"

typedef struct partition_costs {
    const double *layers; /* [layers], in any unit; NULL: every layer costs 1 */
    double first;         /* cost of the embedding, on the first chunk, in the same unit */
    double last;          /* cost of final norm, head and loss, on the last */
} partition_costs;

/* Fills counts[chunks], at least one layer each where there are so many layers. With one fewer the last chunk has none,
 * with two the first, too: head and embedding are alone there, as Llama 3 405B was trained (2407.21783). Minimises the
 * most expensive chunk exactly; then the sum of squares (even); then prefers more layers in the earlier chunks. */
status partition_automatic(int *counts, const partition_costs *costs, int layers, int chunks);

/* Takes parallel.layers_per_stage: checks that it has `chunks` entries with the sum `layers`, each at least 1 but the
 * first and the last. */
status partition_given(int *counts, const int *given, int entries, int layers, int stages, int chunks_per_stage);
