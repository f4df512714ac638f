/* How evenly a step's tokens are spread over the experts, by what all ranks have counted (values.choices): int32[layers
 * with experts, experts].
 *
 * `loads` owns what it remembers of the steps so far, for its warnings; it needs no checkpoint.
 */
#pragma once

#include "models/shape.h"

typedef struct loads loads;

/* The worst of a step's layers. */
typedef struct loads_facts {
    double expert_max; /* the most loaded expert's tokens over the mean; 0: no token was counted */
    int layer, expert; /* whose they are */
    double rank_max;   /* the same of a rank's experts together, of the ranks that divide them; 0: none do */
    int64_t dead;      /* experts of all layers without a token */
    double entropy; /* of the shares of a layer's experts, over the logarithm of their number: 1 where all are alike */
} loads_facts;

enum {
    LOADS_STEPS = 100, /* in a row, after which a warning comes */
    LOADS_MOST = 4     /* times the mean that no expert should have for so long */
};

/* `ranks` divide the experts. NULL: the model has none. */
loads *loads_open(const model_shape *shape, int ranks);
void loads_close(loads *l);
loads_facts loads_judge(const loads *l, const int32_t *counts);
/* Words that the caller frees about the most loaded of experts `first` to `first + count - 1` of any layer, or NULL. */
char *loads_hottest(const loads *l, const int32_t *counts, int64_t first, int64_t count);
/* Counts the step in. Words that the caller frees where some expert has had no token, or too many, for LOADS_STEPS
 * steps in a row, once each time; else NULL. */
char *loads_warn(loads *l, const int32_t *counts);
/* The line of loads.jsonl: {"step": 7, "loads": [[tokens of expert 0, ...] of each layer with experts]}. It is there
 * until the next one. */
const char *loads_line(loads *l, const int32_t *counts, int64_t step);
