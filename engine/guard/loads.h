/* Measures how evenly a step's tokens are spread over the experts, from the counts of all ranks (values.choices):
 * int32[layers with experts, experts].
 *
 * `loads` owns its memory of past steps, used for warnings only; it needs no checkpoint.
 */
#pragma once

#include "models/shape.h"

typedef struct loads loads;

/* The worst of a step's layers. */
typedef struct loads_facts {
    double expert_max; /* the most loaded expert's tokens over the mean; 0: no token was counted */
    int layer, expert; /* location of that expert */
    double rank_max;   /* the same over the experts of a rank, if experts are sharded; else 0 */
    int64_t dead;      /* experts over all layers without a token */
    double entropy;    /* entropy of the expert shares of a layer over its maximum: 1 if all are equal */
} loads_facts;

enum {
    LOADS_STEPS = 100, /* steps in a row until a warning */
    LOADS_MOST = 4     /* an expert with this many times the mean is overloaded */
};

/* `ranks` shard the experts. NULL: the model has none. */
loads *loads_open(const model_shape *shape, int ranks);
void loads_close(loads *l);
loads_facts loads_judge(const loads *l, const int32_t *counts);
/* Describes the most loaded of experts `first` to `first + count - 1` of any layer, or returns NULL. The caller frees
 * it. */
char *loads_hottest(const loads *l, const int32_t *counts, int64_t first, int64_t count);
/* Counts the step in. Returns a warning, which the caller frees, if an expert had no token, or too many, for
 * LOADS_STEPS steps in a row, once each time; else NULL. */
char *loads_warn(loads *l, const int32_t *counts);
/* Returns the line of loads.jsonl: {"step": 7, "loads": [[tokens of expert 0, ...] of each layer with experts]}. Valid
 * until the next call. */
const char *loads_line(loads *l, const int32_t *counts, int64_t step);
