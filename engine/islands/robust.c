#include "engine/islands/robust.h"

#include "memory/log.h"

int robust_trimmed(int count)
{
    return (count - 1) / 3;
}

/* Ascending; insertion is the fastest for so few. */
static void sort(double *x, int count)
{
    for (int i = 1; i < count; i++) {
        double value = x[i];
        int at = i;
        for (; at > 0 && x[at - 1] > value; at--)
            x[at] = x[at - 1];
        x[at] = value;
    }
}

static double middle_of(const double *sorted, int count)
{
    return count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

double robust_median(const double *x, int count)
{
    double sorted[ROBUST_MOST];
    MUST(count <= ROBUST_MOST, "a median of %d", count);
    for (int i = 0; i < count; i++)
        sorted[i] = x[i];
    sort(sorted, count);
    return count > 0 ? middle_of(sorted, count) : 0;
}

static double trimmed_mean(const double *sorted, int count)
{
    int left_out = robust_trimmed(count);
    double sum = 0;
    for (int i = left_out; i < count - left_out; i++)
        sum += sorted[i];
    return sum / (count - 2 * left_out);
}

void robust_combine(float *out, const float *const *change, int count, robust_kind kind, int64_t n)
{
    double x[ROBUST_MOST];
    MUST(count >= 1 && count <= ROBUST_MOST, "a merge of %d", count);
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < count; k++)
            x[k] = change[k][i];
        sort(x, count);
        out[i] = (float)(kind == ROBUST_MEDIAN ? middle_of(x, count) : trimmed_mean(x, count));
    }
}
