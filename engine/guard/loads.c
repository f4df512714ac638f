#include "engine/guard/loads.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/table/op.h"
#include "memory/log.h"

enum { NUMBER_BYTES = 14, LINE_BYTES = 64 }; /* bytes of a count with its separators; of the rest of a line */

struct loads {
    int layers, experts, ranks;
    int *layer;     /* [layers]: their indices in the model */
    int32_t *empty; /* [layers, experts]: steps in a row without a token */
    int32_t *full;  /* [layers]: steps in a row with an expert of more than LOADS_MOST times the mean */
    char *line;     /* buffer of one line */
};

loads *loads_open(const model_shape *shape, int ranks)
{
    const int layers = shape_routers(shape), experts = shape->experts;
    if (layers == 0)
        return NULL;
    loads *l = must_calloc(1, sizeof *l);
    *l = (loads){.layers = layers, .experts = experts, .ranks = ranks};
    l->layer = must_calloc((unsigned long)layers, sizeof *l->layer);
    l->empty = must_calloc((unsigned long)layers * (unsigned long)experts, sizeof *l->empty);
    l->full = must_calloc((unsigned long)layers, sizeof *l->full);
    l->line = must_alloc((unsigned long)layers * (unsigned long)experts * NUMBER_BYTES + LINE_BYTES);
    for (int i = 0; i < shape_blocks(shape); i++)
        if (shape_routers_before(shape, i) < shape_routers_before(shape, i + 1))
            l->layer[shape_routers_before(shape, i)] = i;
    return l;
}

void loads_close(loads *l)
{
    if (!l)
        return;
    free(l->layer);
    free(l->empty);
    free(l->full);
    free(l->line);
    free(l);
}

/* ---- one layer --------------------------------------------------------------------------------------------------- */

static int64_t sum_of(const int32_t *counts, int64_t first, int64_t count)
{
    int64_t sum = 0;
    for (int64_t e = first; e < first + count; e++)
        sum += counts[e];
    return sum;
}

static int largest_of(const int32_t *counts, int64_t first, int64_t count)
{
    int64_t largest = first;
    for (int64_t e = first; e < first + count; e++)
        largest = counts[e] > counts[largest] ? e : largest;
    return (int)largest;
}

/* Returns the largest count of a rank's experts over the mean of the ranks. */
static double most_of_ranks(const loads *l, const int32_t *counts, int64_t sum)
{
    int64_t first, count, most = 0;
    for (int rank = 0; rank < l->ranks; rank++) {
        shard_rows(&first, &count, l->experts, l->ranks, rank);
        int64_t own = sum_of(counts, first, count);
        most = own > most ? own : most;
    }
    return l->ranks > 1 ? (double)most * l->ranks / (double)sum : 0;
}

/* ---- all layers -------------------------------------------------------------------------------------------------- */

loads_facts loads_judge(const loads *l, const int32_t *counts)
{
    loads_facts f = {.entropy = 1};
    for (int i = 0; i < l->layers; i++, counts += l->experts) {
        int64_t sum = sum_of(counts, 0, l->experts);
        int largest = largest_of(counts, 0, l->experts);
        if (sum == 0)
            continue;
        double most = (double)counts[largest] * l->experts / (double)sum;
        if (most > f.expert_max) {
            f.expert_max = most;
            f.layer = l->layer[i];
            f.expert = largest;
        }
        f.rank_max = fmax(f.rank_max, most_of_ranks(l, counts, sum));
        double entropy = 0;
        for (int e = 0; e < l->experts; e++) {
            double share = (double)counts[e] / (double)sum;
            entropy -= counts[e] > 0 ? share * log(share) : 0;
            f.dead += counts[e] == 0;
        }
        f.entropy = l->experts > 1 ? fmin(f.entropy, entropy / log((double)l->experts)) : f.entropy;
    }
    return f;
}

char *loads_hottest(const loads *l, const int32_t *counts, int64_t first, int64_t count)
{
    double most = 0;
    int layer = 0, expert = 0;
    for (int i = 0; i < l->layers && count > 0; i++, counts += l->experts) {
        int64_t sum = sum_of(counts, 0, l->experts);
        int largest = largest_of(counts, first, count);
        if (sum == 0 || (double)counts[largest] * l->experts <= most * (double)sum)
            continue;
        most = (double)counts[largest] * l->experts / (double)sum;
        layer = l->layer[i];
        expert = largest;
    }
    return most > 0
               ? must_format("its expert %d of layer %d took %.1f x the mean of that layer's tokens in the last step",
                             expert, layer, most)
               : NULL;
}

/* Counts one layer in for a warning: adds to *dead the experts that have long had no token, the last of them *which;
 * *full: one has long had too many. */
static void count_in(loads *l, const int32_t *counts, int i, int *dead, int *which, bool *full)
{
    int64_t sum = sum_of(counts, 0, l->experts);
    if (sum == 0)
        return;
    for (int e = 0; e < l->experts; e++) {
        int32_t *empty = &l->empty[i * l->experts + e];
        *empty = counts[e] > 0 ? 0 : *empty + (*empty <= LOADS_STEPS);
        if (*empty == LOADS_STEPS) {
            ++*dead;
            *which = e;
        }
    }
    double most = (double)counts[largest_of(counts, 0, l->experts)] * l->experts / (double)sum;
    l->full[i] = most > LOADS_MOST ? l->full[i] + (l->full[i] <= LOADS_STEPS) : 0;
    *full = l->full[i] == LOADS_STEPS;
}

char *loads_warn(loads *l, const int32_t *counts)
{
    int dead = 0, dead_layer = -1, dead_expert = -1, full_layer = -1;
    for (int i = 0; i < l->layers; i++, counts += l->experts) {
        int before = dead;
        bool full = false;
        count_in(l, counts, i, &dead, &dead_expert, &full);
        dead_layer = dead > before ? l->layer[i] : dead_layer;
        full_layer = full ? l->layer[i] : full_layer;
    }
    static const char help[] = "raise model.router_bias_rate or model.router_loss";
    if (dead > 0)
        return must_format("%d expert%s had no token for %d steps, the last of them expert %d of layer %d: %s", dead,
                           dead == 1 ? " has" : "s have", LOADS_STEPS, dead_expert, dead_layer, help);
    if (full_layer >= 0)
        return must_format("an expert of layer %d has had more than %d x the mean of its tokens for %d steps: %s",
                           full_layer, LOADS_MOST, LOADS_STEPS, help);
    return NULL;
}

const char *loads_line(loads *l, const int32_t *counts, int64_t step)
{
    char *at = l->line + sprintf(l->line, "{\"step\": %lld, \"loads\": [", (long long)step);
    for (int i = 0; i < l->layers; i++)
        for (int e = 0; e < l->experts; e++)
            at += sprintf(at, "%s%d%s",
                          e > 0   ? ", "
                          : i > 0 ? ", ["
                                  : "[",
                          counts[i * l->experts + e], e == l->experts - 1 ? "]" : "");
    strcpy(at, "]}\n");
    return l->line;
}
