#include "engine/islands/merge/robust.h"

#include <math.h>
#include <string.h>

#include "memory/log.h"

int robust_trimmed(int count)
{
    return (count - 1) / 3;
}

/* Sorts ascending; insertion is the fastest at this size. */
static void sort_values(double *x, int count)
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
    sort_values(sorted, count);
    return count > 0 ? middle_of(sorted, count) : 0;
}

/* ---- whole changes ----------------------------------------------------------------------------------------------- */

enum { LANES = 8, BLOCK = 1024 }; /* sums of every eighth product; elements of all changes that fit a cache */

static double dot_product(const float *x, const float *y, int64_t n)
{
    double lane[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += (double)x[i + l] * (double)y[i + l];
    for (; i < n; i++)
        lane[i % LANES] += (double)x[i] * (double)y[i];
    for (int l = 0; l < LANES; l++)
        sum += lane[l];
    return sum;
}

void robust_products(double *products, const float *const *change, int count, int64_t n)
{
    memset(products, 0, (size_t)robust_product_count(count) * sizeof *products);
    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t length = n - at < BLOCK ? n - at : BLOCK;
        double *next = products;
        for (int i = 0; i < count; i++)
            for (int j = 0; j <= i; j++)
                *next++ += dot_product(change[i] + at, change[j] + at, length);
    }
}

void robust_clip(double *scale, const double *norm, int count)
{
    double most = robust_median(norm, count);
    for (int i = 0; i < count; i++)
        scale[i] = norm[i] > most ? most / norm[i] : 1;
}

static double product_at(const double *products, int i, int j)
{
    return i > j ? products[robust_product_count(i) + j] : products[robust_product_count(j) + i];
}

/* Returns the median, over the others, of the cosine with change i; a change of zeros has a cosine of 0. */
static double agreement_of(const double *products, const double *norm, int i, int count)
{
    double cosine[ROBUST_MOST];
    int others = 0;
    for (int j = 0; j < count; j++) {
        double both = norm[i] * norm[j];
        if (j != i)
            cosine[others++] = both > 0 ? product_at(products, i, j) / both : 0;
    }
    return robust_median(cosine, others);
}

void robust_judge(robust_judgement *out, const double *products, int count)
{
    static const double SHARE = 0.5; /* fraction of the median agreement */
    double norm[ROBUST_MOST];
    MUST(count >= 1 && count <= ROBUST_MOST, "a merge of %d", count);
    memset(out, 0, sizeof *out);
    for (int i = 0; i < count; i++)
        norm[i] = sqrt(product_at(products, i, i));
    robust_clip(out->scale, norm, count);
    for (int i = 0; i < count; i++)
        out->agreement[i] = agreement_of(products, norm, i, count);
    double usual = robust_median(out->agreement, count);
    out->least = usual > 0 ? SHARE * usual : -1; /* if most disagree, no change is left out */
    while (out->count < robust_trimmed(count)) {
        /* The remaining change with the least agreement. */
        int stranger = -1;
        for (int i = 0; i < count; i++)
            if (!out->left_out[i] && (stranger < 0 || out->agreement[i] < out->agreement[stranger]))
                stranger = i;
        if (!(out->agreement[stranger] < out->least))
            return;
        out->left_out[stranger] = true;
        out->count++;
    }
}

/* ---- elements ---------------------------------------------------------------------------------------------------- */

static void take_medians(float *out, const float *const *change, int count, int64_t n)
{
    double x[ROBUST_MOST];
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < count; k++)
            x[k] = change[k][i];
        sort_values(x, count);
        out[i] = (float)middle_of(x, count);
    }
}

static void take_trimmed_means(float *out, const float *const *change, int count, const robust_judgement *judged,
                               int64_t n)
{
    double x[ROBUST_MOST], scale[ROBUST_MOST];
    const float *kept[ROBUST_MOST];
    int left = 0, trimmed = robust_trimmed(count) - judged->count;
    for (int k = 0; k < count; k++)
        if (!judged->left_out[k]) {
            scale[left] = judged->scale[k];
            kept[left++] = change[k];
        }
    for (int64_t i = 0; i < n; i++) {
        for (int k = 0; k < left; k++)
            x[k] = scale[k] * (double)kept[k][i];
        sort_values(x, left);
        double sum = 0;
        for (int k = trimmed; k < left - trimmed; k++)
            sum += x[k];
        out[i] = (float)(sum / (left - 2 * trimmed));
    }
}

void robust_combine(float *out, const float *const *change, int count, robust_kind kind, const robust_judgement *judged,
                    int64_t n)
{
    MUST(count >= 1 && count <= ROBUST_MOST, "a merge of %d", count);
    if (kind == ROBUST_MEDIAN)
        take_medians(out, change, count, n);
    else
        take_trimmed_means(out, change, count, judged, n);
}
