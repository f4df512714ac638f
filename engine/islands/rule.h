/* The arithmetic of an outer step on one unit, in fp32 and in a fixed order, so that every island gets the same bits.
 *
 * D = reference - weights is an island's change since the last merge; g = sum of w_i D_i in the order of slots, w summing to 1.
 *     average:  reference <- reference - lr g
 *     nesterov: v <- momentum v + g;  reference <- reference - lr (g + momentum v)      (DiLoCo, 2311.08105)
 */
#ifndef PHALANX_ENGINE_ISLANDS_RULE_H
#define PHALANX_ENGINE_ISLANDS_RULE_H

#include <stdint.h>

/* In the order of outer.optimizer's words. */
typedef enum rule_kind { RULE_AVERAGE, RULE_NESTEROV } rule_kind;

typedef struct rule {
    rule_kind kind;
    float lr, momentum;
} rule;

/* values[n], the weights, become e + D; `error` NULL: there is none, else it is scaled by `decay` first */
void rule_change(float *values, const float *reference, const float *error, float decay, int64_t n);
/* sum[n] += weight * change */
void rule_add(float *sum, const float *change, float weight, int64_t n);
/* `momentum` NULL for average */
void rule_step(float *reference, float *momentum, const float *mean, const rule *r, int64_t n);
/* values[n] = reference + mix (values - reference): Streaming DiLoCo (2501.18512) */
void rule_mix(float *values, const float *reference, float mix, int64_t n);

#endif
