/* Merges of islands of which some are hostile (islands/robust.h), against formulas in float64. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/islands/merge/robust.h"
#include "tests/test.h"

enum { ELEMENTS = 2000 };

static void draw(float *out, int island, int step)
{
    uint64_t state = (uint64_t)(island * 1000 + step * 10 + 7);
    for (int i = 0; i < ELEMENTS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        double x = (double)(state >> 40) / 16777216.0 - 0.5;
        out[i] = (float)(x * x * x);
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Products of whole changes, then the judgement, then element by element. */
static void combine(float *out, const float *const *change, int count, robust_kind kind)
{
    double products[ROBUST_PRODUCTS];
    robust_judgement judged;
    robust_products(products, change, count, ELEMENTS);
    robust_judge(&judged, products, count);
    robust_combine(out, change, count, kind, &judged, ELEMENTS);
}

/* A trimmed mean as a former version had it: nobody is judged. */
static void combine_by_element(float *out, const float *const *change, int count)
{
    robust_judgement none = {.least = -1};
    for (int k = 0; k < count; k++)
        none.scale[k] = 1;
    robust_combine(out, change, count, ROBUST_TRIMMED, &none, ELEMENTS);
}

/* 1 to 64 islands, with equal values and wild ones among them, against sorting in float64. */
TEST(medians_are_those_of_sorted_values)
{
    enum { N = 40 };
    static float change[ROBUST_MOST][N], median[N];
    const float *each[ROBUST_MOST];
    for (int count = 1; count <= ROBUST_MOST; count++) {
        for (int k = 0; k < count; k++) {
            float drawn[ELEMENTS];
            draw(drawn, k, count);
            for (int i = 0; i < N; i++)
                change[k][i] = i % 3 ? drawn[i] : roundf(4 * drawn[i]) + (k % 5 == 4 ? -3e38f : 0);
            each[k] = change[k];
        }
        robust_combine(median, each, count, ROBUST_MEDIAN, NULL, N);
        for (int i = 0; i < N; i++) {
            double x[ROBUST_MOST];
            for (int k = 0; k < count; k++)
                x[k] = change[k][i];
            qsort(x, (size_t)count, sizeof *x, by_value);
            double middle = (x[(count - 1) / 2] + x[count / 2]) / 2;
            assert_true(median[i] == (float)middle);
            assert_true(robust_median(x, count) == middle);
        }
    }
}

/* change[count][ELEMENTS]: each a common part, as changes of one model have, and a part of its own. */
static void draw_alike(float change[][ELEMENTS], int count, int drawn, double own)
{
    float common[ELEMENTS];
    draw(common, 500, drawn);
    for (int k = 0; k < count; k++) {
        draw(change[k], k, drawn);
        for (int i = 0; i < ELEMENTS; i++)
            change[k][i] = (float)(common[i] + own * (double)change[k][i]);
    }
}

static double norm_of(const float *x)
{
    double sum = 0;
    for (int i = 0; i < ELEMENTS; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* The median over the others of the cosine with change k. */
static double reference_agreement(float change[][ELEMENTS], int count, int k)
{
    double cosine[ROBUST_MOST];
    int others = 0;
    for (int j = 0; j < count; j++) {
        double sum = 0;
        for (int i = 0; i < ELEMENTS; i++)
            sum += (double)change[j][i] * (double)change[k][i];
        if (j != k)
            cosine[others++] = sum / (norm_of(change[j]) * norm_of(change[k]));
    }
    qsort(cosine, (size_t)others, sizeof *cosine, by_value);
    return (cosine[(others - 1) / 2] + cosine[others / 2]) / 2;
}

/* Which are left out, written down anew: at most (count - 1) / 3, those that agree least. */
static int reference_left_out(bool *out, float change[][ELEMENTS], int count)
{
    double agreement[ROBUST_MOST], sorted[ROBUST_MOST];
    int left_out = 0;
    for (int k = 0; k < count; k++)
        sorted[k] = agreement[k] = reference_agreement(change, count, k);
    qsort(sorted, (size_t)count, sizeof *sorted, by_value);
    double usual = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
    for (int k = 0; k < count; k++) {
        out[k] = usual > 0 && agreement[k] < usual / 2 && (count < 4 || agreement[k] <= sorted[(count - 1) / 3 - 1]);
        out[k] &= count >= 4;
        left_out += out[k];
    }
    return left_out;
}

/* 4 to 64 islands, of which some are flipped, some large and some like no other: against a formula in float64. */
TEST(trimmed_means_are_those_of_changes_that_agree)
{
    static float change[ROBUST_MOST][ELEMENTS], trimmed[ELEMENTS];
    int all_left_out = 0;
    for (int count = 1; count <= ROBUST_MOST; count++) {
        const float *each[ROBUST_MOST];
        double norm[ROBUST_MOST], sorted[ROBUST_MOST];
        bool out[ROBUST_MOST];
        draw_alike(change, count, count, 0.8);
        for (int k = 0; k < count; k++) {
            for (int i = 0; i < ELEMENTS; i++)
                change[k][i] *= (k % 7 == 3 ? -1.0f : 1.0f) * (k % 5 == 4 ? 30.0f : 1.0f);
            each[k] = change[k];
            sorted[k] = norm[k] = norm_of(change[k]);
        }
        qsort(sorted, (size_t)count, sizeof *sorted, by_value);
        double most = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
        int left_out = reference_left_out(out, change, count), rest = (count - 1) / 3 - left_out;
        all_left_out += left_out;
        combine(trimmed, each, count, ROBUST_TRIMMED);
        for (int i = 0; i < ELEMENTS; i++) {
            double x[ROBUST_MOST], sum = 0;
            int n = 0;
            for (int k = 0; k < count; k++)
                if (!out[k])
                    x[n++] = change[k][i] * fmin(1, most / norm[k]);
            qsort(x, (size_t)n, sizeof *x, by_value);
            for (int k = rest; k < n - rest; k++)
                sum += x[k];
            assert_true(fabs(trimmed[i] - sum / (n - 2 * rest)) <= 1e-6 * fabs(sum / (n - 2 * rest)) + 1e-9);
        }
    }
    assert_true(all_left_out > 200);
}

/* Up to (n - 1) / 3 islands that send anything at all move no element out of what honest ones span, whose changes may
 * be scaled down to the median norm. */
TEST(hostile_islands_stay_within_what_honest_ones_span)
{
    static const float wild[] = {3e38f, -3e38f, 1e4f, -1e4f, 0};
    for (int count = 4; count <= 13; count++)
        for (int w = 0; w < 5; w++)
            for (int kind = ROBUST_MEDIAN; kind <= ROBUST_TRIMMED; kind++) {
                static float change[ROBUST_MOST][ELEMENTS], out[ELEMENTS];
                const float *each[ROBUST_MOST];
                int hostile = robust_trimmed(count);
                assert_true(hostile >= 1 && 3 * hostile < count);
                draw_alike(change, count, w, 1);
                for (int k = 0; k < count; k++) {
                    for (int i = 0; i < ELEMENTS && k < hostile; i++)
                        change[k][i] = wild[w];
                    each[k] = change[k];
                }
                combine(out, each, count, (robust_kind)kind);
                for (int i = 0; i < ELEMENTS; i++) {
                    float least = kind == ROBUST_TRIMMED ? 0 : INFINITY, most = -least;
                    for (int k = hostile; k < count; k++) {
                        least = fminf(least, change[k][i]);
                        most = fmaxf(most, change[k][i]);
                    }
                    assert_true(out[i] >= least && out[i] <= most);
                }
            }
}

/* ---- hostile kinds ---- */

static void do_nothing(float *x)
{
    (void)x;
}

static void flip(float *x)
{
    for (int i = 0; i < ELEMENTS; i++)
        x[i] = -x[i];
}

static void enlarge(float *x)
{
    for (int i = 0; i < ELEMENTS; i++)
        x[i] *= 10;
}

static void shift(float *x)
{
    float bias = (float)(3 * norm_of(x) / sqrt(ELEMENTS));
    for (int i = 0; i < ELEMENTS; i++)
        x[i] += bias;
}

static void blow_up(float *x)
{
    for (int i = 0; i < ELEMENTS; i++)
        x[i] = 3e38f;
}

static void empty(float *x)
{
    memset(x, 0, ELEMENTS * sizeof *x);
}

enum { SEVEN = 7, HOSTILE = 2 };

/* |merge - mean| / |mean| of a merge of seven changes, of which the first two are hostile, and of the honest mean. */
static double apart_from_honest(void (*hostile)(float *), int drawn, bool by_element)
{
    static float change[SEVEN][ELEMENTS], out[ELEMENTS];
    const float *each[SEVEN];
    int first = hostile == do_nothing ? 0 : HOSTILE;
    double apart = 0, size = 0;
    draw_alike(change, SEVEN, drawn, 1.2); /* honest changes have a cosine of 0.4 with each other */
    for (int k = 0; k < SEVEN; k++) {
        if (k < HOSTILE)
            hostile(change[k]);
        each[k] = change[k];
    }
    if (by_element)
        combine_by_element(out, each, SEVEN);
    else
        combine(out, each, SEVEN, ROBUST_TRIMMED);
    for (int i = 0; i < ELEMENTS; i++) {
        double mean = 0;
        for (int k = first; k < SEVEN; k++)
            mean += change[k][i] / (double)(SEVEN - first);
        apart += (out[i] - mean) * (out[i] - mean);
        size += mean * mean;
    }
    return sqrt(apart / size);
}

/* Where whole changes give hostile ones away the merge is the honest mean, but for norms that are scaled down; trimming
 * by element alone leaves it. Ten times an honest change is honest once it is scaled down, and stays. */
TEST(two_hostile_changes_of_seven_leave_the_honest_mean)
{
    static const struct {
        const char *name;
        void (*hostile)(float *);
        double most, by_element;
    } kinds[] = {{"none is hostile", do_nothing, 0.3, 0},
                 {"flipped", flip, 0.05, 0.35},
                 {"10 x", enlarge, 0.37, 0.42},
                 {"3 rms", shift, 0.05, 0.4},
                 {"3e38", blow_up, 0.05, 0.4},
                 {"zeros", empty, 0.05, 0.35}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        double worst = 0, former = INFINITY;
        for (int drawn = 0; drawn < 20; drawn++) {
            worst = fmax(worst, apart_from_honest(kinds[i].hostile, drawn, false));
            former = fmin(former, apart_from_honest(kinds[i].hostile, drawn, true));
        }
        printf("%-16s at most %.3f from the honest mean; by element at least %.3f\n", kinds[i].name, worst, former);
        assert_true(worst <= kinds[i].most);
        assert_true(former >= kinds[i].by_element);
    }
}

/* An island of other data, that agrees with the others two thirds as much as they with each other, is merged. */
TEST(an_island_of_somewhat_different_data_stays)
{
    static float change[SEVEN][ELEMENTS], other[ELEMENTS];
    double products[ROBUST_PRODUCTS];
    const float *each[SEVEN];
    robust_judgement judged;
    for (int drawn = 0; drawn < 20; drawn++) {
        draw_alike(change, SEVEN, drawn, 1);
        for (int k = 0; k < SEVEN; k++)
            each[k] = change[k];
        draw(other, 900, drawn);
        for (int i = 0; i < ELEMENTS; i++)
            change[SEVEN - 1][i] += 1.5f * other[i];
        robust_products(products, each, SEVEN, ELEMENTS);
        robust_judge(&judged, products, SEVEN);
        assert_int_equal(judged.count, 0);
        assert_true(judged.agreement[SEVEN - 1] < 0.8 * 2 * judged.least);
    }
}

/* Where most changes disagree nobody is left out, nor of fewer than four. */
TEST(nobody_is_left_out_without_a_majority)
{
    static float change[SEVEN][ELEMENTS];
    double products[ROBUST_PRODUCTS];
    const float *each[SEVEN];
    robust_judgement judged;
    draw_alike(change, SEVEN, 1, 1);
    for (int k = 0; k < SEVEN; k++)
        each[k] = change[k];
    flip(change[0]);
    robust_products(products, each, 3, ELEMENTS);
    robust_judge(&judged, products, 3);
    assert_int_equal(judged.count, 0);
    for (int k = 1; k < 3; k++)
        flip(change[k]);
    robust_products(products, each, SEVEN - 1, ELEMENTS);
    robust_judge(&judged, products, SEVEN - 1);
    assert_int_equal(judged.count, 0);
}

TEST_MAIN(NULL, NULL)
