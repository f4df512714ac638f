#include "engine/guard/spike.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare_values(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the median. Sorts the values. */
static double sort_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare_values);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

/* Returns how far `x` lies above the values; the scale is at least least + share x |median|. */
static double score_value(const double *values, int count, double x, double share, double least)
{
    double work[SPIKE_WINDOW];
    if (!isfinite(x))
        return INFINITY;
    if (count < SPIKE_LEAST)
        return 0;
    memcpy(work, values, (size_t)count * sizeof *work);
    double middle = sort_median(work, count);
    for (int i = 0; i < count; i++)
        work[i] = fabs(values[i] - middle);
    double scale = 1.4826 * sort_median(work, count), floor = least + share * fabs(middle);
    return x > middle ? (x - middle) / (scale > floor ? scale : floor) : 0;
}

/* A norm of zero counts as 1e-30. */
static double log_norm(double norm)
{
    return log(norm > 1e-30 ? norm : 1e-30);
}

spike_scores spike_judge(const spike_window *w, double loss, double norm)
{
    double norms[SPIKE_WINDOW];
    for (int i = 0; i < w->count; i++)
        norms[i] = log_norm(w->norm[i]);
    return (spike_scores){.loss = score_value(w->loss, w->count, loss, SPIKE_LOSS_FLOOR, 0),
                          .norm = isfinite(norm) ? score_value(norms, w->count, log_norm(norm), 0, SPIKE_NORM_FLOOR)
                                                 : INFINITY};
}

void spike_add(spike_window *w, double loss, double norm)
{
    if (w->count == SPIKE_WINDOW) {
        memmove(w->loss, w->loss + 1, (SPIKE_WINDOW - 1) * sizeof *w->loss);
        memmove(w->norm, w->norm + 1, (SPIKE_WINDOW - 1) * sizeof *w->norm);
        w->count--;
    }
    w->loss[w->count] = loss;
    w->norm[w->count++] = norm;
}
