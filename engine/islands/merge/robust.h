/* Combines the changes of islands, some of which may be hostile, in float64.
 *
 * The mean of n values follows any one of them anywhere. Their median, or their mean without the robust_trimmed(n)
 * smallest and as many largest, stays between values of honest islands as long as no more than that are hostile
 * (Byzantine-robust distributed learning, 1803.01498).
 *
 * Between those values is room for a bias: two of seven changes that are flipped, or shifted, take two honest values of
 * the other side with them in every element, at every merge. Therefore ROBUST_TRIMMED judges changes as a whole first:
 *
 *     1. No norm exceeds the median of the norms: larger changes are scaled down to it.
 *     2. The agreement of a change is the median, over the other changes, of the cosine between it and them. Changes
 *        below half of the median agreement are left out, the least agreement first, at most robust_trimmed(n).
 *     3. Every element is the mean of the others, without the smallest and the largest for each change that might have
 *        been left out and was not.
 *
 * Krum (1703.02757) sums the squared distances to the nearest others, and two hostile changes that are alike pass as
 * each other's neighbours. A median of distances does not see them (1307.1827 chooses among estimates by it), and
 * between changes of one norm the distance is a function of the cosine. Whatever fewer than a third send, the agreement
 * of an honest change lies between two of its cosines with honest changes, and the median agreement between two of all
 * cosines of honest changes: an honest change can be left out only if one of these is less than half of another.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Has the order of outer.robust's words. */
typedef enum robust_kind { ROBUST_NONE, ROBUST_CLIP, ROBUST_MEDIAN, ROBUST_TRIMMED } robust_kind;

enum { ROBUST_MOST = 64, ROBUST_PRODUCTS = ROBUST_MOST * (ROBUST_MOST + 1) / 2 }; /* islands of a merge, and pairs */

/* True if the kind needs single changes, not only their sum. */
static inline int robust_by_coordinate(robust_kind kind)
{
    return kind == ROBUST_MEDIAN || kind == ROBUST_TRIMMED;
}

/* Scales and agreement of whole changes, from comparing them. */
typedef struct robust_judgement {
    double scale[ROBUST_MOST];     /* scale of each change, at most 1 */
    double agreement[ROBUST_MOST]; /* median cosine with the others */
    double least;                  /* changes with less agreement may be left out */
    bool left_out[ROBUST_MOST];
    int count; /* number of changes left out */
} robust_judgement;

/* Returns the number of `count` changes that may be hostile, and are left out at each end: (count - 1) / 3. */
int robust_trimmed(int count);
/* Returns the number of products of `count` changes: each with itself and with each one before it. */
static inline int robust_product_count(int count)
{
    return count * (count + 1) / 2;
}
/* Returns the median of x[count]; for an even count the mean of the middle two; 0 for none. x stays unchanged; at most
 * ROBUST_MOST. */
double robust_median(const double *x, int count);
/* products[robust_product_count(count)] = the scalar products of changes i and j <= i, at i (i + 1) / 2 + j, over n
 * elements of each, in float64. Every machine comes to the same bits: products of two floats are exact there, and the
 * sequence of additions is fixed. */
void robust_products(double *products, const float *const *change, int count, int64_t n);
/* scale[count] = factors that reduce each norm to their median; 1 for norms below it. */
void robust_clip(double *scale, const double *norm, int count);
/* Judges changes by their products, 1 <= count <= ROBUST_MOST. */
void robust_judge(robust_judgement *out, const double *products, int count);
/* out[n] = the median of change[count][n], or their trimmed mean as judged (NULL for a median), 1 <= count <=
 * ROBUST_MOST. `out` must differ from all changes. */
void robust_combine(float *out, const float *const *change, int count, robust_kind kind, const robust_judgement *judged,
                    int64_t n);
