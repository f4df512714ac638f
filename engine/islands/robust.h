/* Combining the changes of islands of which some may be hostile: coordinate by coordinate, in float64.
 *
 * The mean of n values follows any one of them anywhere. Their median, or their mean without the robust_trimmed(n)
 * least and as many greatest, stays between values of honest islands as long as no more than that are hostile
 * (Byzantine-robust distributed learning, 1803.01498).
 */
#ifndef PHALANX_ENGINE_ISLANDS_ROBUST_H
#define PHALANX_ENGINE_ISLANDS_ROBUST_H

#include <stdint.h>

/* In the order of outer.robust's words. */
typedef enum robust_kind { ROBUST_NONE, ROBUST_CLIP, ROBUST_MEDIAN, ROBUST_TRIMMED } robust_kind;

enum { ROBUST_MOST = 64 }; /* islands of a merge */

/* Needs the changes one by one, and not their sum. */
static inline int robust_by_coordinate(robust_kind kind)
{
    return kind == ROBUST_MEDIAN || kind == ROBUST_TRIMMED;
}

/* How many of `count` are left out at each end: as many as may be hostile, (count - 1) / 3. */
int robust_trimmed(int count);
/* The median of x[count], of an even count the mean of the two in the middle; 0 of none. x is not changed; at most
 * ROBUST_MOST. */
double robust_median(const double *x, int count);
/* out[n] = the median or the trimmed mean of change[count][n], 1 <= count <= ROBUST_MOST. `out` may be none of them. */
void robust_combine(float *out, const float *const *change, int count, robust_kind kind, int64_t n);

#endif
