/* A schedule found for given costs within given memory.
 *
 * Candidates are the named schedules, their orders with the weights' gradients woven in anew (weave()), 1F1B with other
 * numbers of forwards first, repeated blocks, and the neighbours of the best of these: actions moved by a few places.
 * So the result is never worse than the best named schedule that fits. The same result for the same terms, after a
 * bounded number of tries: no clock decides.
 */
#pragma once

#include "parallel/schedule/simulate.h"

/* Costs and memory are by global chunk: [stages * chunks], the same however chunks are mapped to stages. */
typedef struct schedule_search_terms {
    int stages, chunks, microbatches;
    const simulate_cost *costs;
    double hop;
    const double *holds;    /* memory that a forward takes */
    const double *defers;   /* of it, what stays between the input's gradient and the weights' */
    const double *limit[2]; /* [stages] of memory: round and round, and folded; NULL: not to be mapped so */
    /* shortest from the first action of all to the last; else the longest stage's span: a stage that is done goes on to
     * the next step while others still work */
    bool barrier;
} schedule_search_terms;

/* A usage failure if nothing fits. `out->kind` is the name's if a named one is best. */
status schedule_search(schedule *out, const schedule_search_terms *terms);

/* The most that each stage, [stages], holds of `s` in these terms. */
void schedule_search_peaks(double *peaks, const schedule *s, const double *holds, const double *defers);
