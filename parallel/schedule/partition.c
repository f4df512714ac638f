/* Partitions by dynamic programming over (layers left, chunks left), as partition.h promises. */
#include "parallel/schedule/partition.h"

#include <math.h>
#include <stdlib.h>

#include "memory/log.h"
#include "memory/scope.h"

/* Costs with a smaller relative difference are equal: the same layers were summed in another order. */
static const double TOLERANCE = 1e-9;

typedef struct partition_problem {
    const partition_costs *costs;
    double *before; /* [layers + 1]: before[l] is the cost of layers 0..l-1 */
    int layers, chunks;
} partition_problem;

/* The cost of chunk `chunk` with layers [from, to). */
static double cost_of(const partition_problem *p, int chunk, int from, int to)
{
    return p->before[to] - p->before[from] + (chunk == 0 ? p->costs->first : 0) +
           (chunk == p->chunks - 1 ? p->costs->last : 0);
}

/* Fills best[c][l] with the least objective over divisions of layers l.. among chunks c.. (INFINITY: none). With
 * `limit` < 0 the objective is the most expensive chunk; else the sum of squares, no chunk above `limit`. */
static void fill_best(double *best, const partition_problem *p, double limit)
{
    int L = p->layers, width = L + 1;
    for (int l = 0; l <= L; l++)
        best[(long)p->chunks * width + l] = l == L ? 0 : INFINITY;
    for (int c = p->chunks - 1; c >= 0; c--)
        for (int l = 0; l <= L; l++) {
            double least = INFINITY;
            for (int to = l + 1; to <= L; to++) {
                double cost = cost_of(p, c, l, to), rest = best[(long)(c + 1) * width + to];
                if (cost > (limit < 0 ? least : limit))
                    break; /* each further layer only adds cost */
                double value = limit < 0 ? fmax(cost, rest) : cost * cost + rest;
                least = value < least ? value : least;
            }
            best[(long)c * width + l] = least;
        }
}

/* Walks down a solved table and gives each chunk the most layers that keep the optimum. */
static void read_counts(int *counts, const double *best, const partition_problem *p, double limit)
{
    int width = p->layers + 1, from = 0;
    for (int c = 0; c < p->chunks; c++) {
        double goal = best[(long)c * width + from];
        int taken = 0;
        for (int to = from + 1; to <= p->layers; to++) {
            double cost = cost_of(p, c, from, to);
            if (cost <= limit && cost * cost + best[(long)(c + 1) * width + to] <= goal + TOLERANCE * fabs(goal))
                taken = to - from;
        }
        MUST(taken > 0, "chunk %d of %d has no division", c, p->chunks);
        counts[c] = taken;
        from += taken;
    }
}

status partition_automatic(int *counts, const partition_costs *costs, int layers, int chunks)
{
    if (chunks < 1 || layers < 1 || layers < chunks - 2)
        return status_fail(
            STATUS_USAGE,
            "%d layers cannot be divided over %d pipeline chunks (stages x virtual stages): each but the first and the "
            "last needs at least one layer",
            layers, chunks);
    if (layers < chunks) { /* one layer each; none on the last, which has the head, then none on the first */
        for (int c = 0; c < chunks; c++)
            counts[c] = c < chunks - 1 && (c > 0 || layers == chunks - 1);
        return STATUS_OK;
    }
    partition_problem p = {.costs = costs, .layers = layers, .chunks = chunks};
    p.before = must_alloc(sizeof *p.before * (layers + 1));
    p.before[0] = 0;
    for (int l = 0; l < layers; l++)
        p.before[l + 1] = p.before[l] + (costs->layers ? costs->layers[l] : 1);
    AUTO_FREE double *best = must_alloc(sizeof *best * (chunks + 1) * (layers + 1));
    fill_best(best, &p, -1);
    double limit = best[0] + TOLERANCE * fabs(best[0]);
    fill_best(best, &p, limit);
    read_counts(counts, best, &p, limit);
    free(p.before);
    return STATUS_OK;
}

status partition_given(int *counts, const int *given, int entries, int layers, int stages, int chunks_per_stage)
{
    int chunks = stages * chunks_per_stage;
    if (entries != chunks)
        return status_fail(STATUS_USAGE,
                           "parallel.layers_per_stage has %d entries, but there are %d chunks (%d stages x %d virtual "
                           "stages): give one number for each",
                           entries, chunks, stages, chunks_per_stage);
    long sum = 0;
    for (int c = 0; c < chunks; c++) {
        if (given[c] < (c > 0 && c < chunks - 1))
            return status_fail(STATUS_USAGE,
                               "parallel.layers_per_stage: entry %d is %d: each chunk but the first and the last needs "
                               "at least one layer",
                               c + 1, given[c]);
        sum += given[c];
    }
    if (sum != layers)
        return status_fail(STATUS_USAGE, "parallel.layers_per_stage sums to %ld, but the model has %d layers", sum,
                           layers);
    for (int c = 0; c < chunks; c++)
        counts[c] = given[c];
    return STATUS_OK;
}
