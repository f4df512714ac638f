/* The arithmetic of an outer step on one unit, in fp32 and in a fixed order, so that every island gets the same bits.
 *
 * D = reference - weights is an island's change since the last merge; g = sum of w_i D_i in the order of slots, w
 * summing to 1.
 *     average:  reference <- reference - lr g
 *     nesterov: v <- momentum v + g;  reference <- reference - lr (g + momentum v)      (DiLoCo, 2311.08105)
 * Islands that gossip (NoLoCo, 2506.10911) each have a reference of their own, and merge weights p:
 *     m <- momentum m + lr (mean p - reference);  reference <- reference + m
 * which is NoLoCo's step with one lr for the mean change, mean (p - o), and for the distance to the others, mean o - o.
 */
#pragma once

#include <stdint.h>

/* Has the order of outer.optimizer's words. */
typedef enum rule_kind { RULE_AVERAGE, RULE_NESTEROV } rule_kind;

typedef struct rule {
    rule_kind kind;
    float lr, momentum;
} rule;

/* values[n], the weights, become e + scale D; `error` NULL: none, else it is first scaled by `decay` */
void rule_change(float *values, const float *reference, const float *error, float decay, float scale, int64_t n);
/* sum[n] += weight * change */
void rule_add(float *sum, const float *change, float weight, int64_t n);
/* `momentum` NULL for average */
void rule_step(float *reference, float *momentum, const float *mean, const rule *r, int64_t n);
/* Returns the factor by which a server scales a change (staleness-aware, 1511.05950): weight / staleness, staleness
 * being the merges since the island took the model, at least 1. So an island with a round trip of n merges moves the
 * model like one of n in a mean. `tokens`: the change's; `all`: sum over the last changes of `islands` islands,
 * including this one; the weight is tokens over their mean. */
double rule_share(int64_t staleness, int64_t tokens, int64_t all, int islands);
/* values[n] *= by */
void rule_scale(float *values, float by, int64_t n);
/* `mean`: the group's mean weights; `momentum` NULL for average */
void rule_gossip(float *reference, float *momentum, const float *mean, const rule *r, int64_t n);

/* Returns the gossip group of `slot`, including itself, at exchange `number`, as bits of slots, drawn anew each time
 * from the islands present (NoLoCo). A pure function, so islands that see the same islands draw the same groups without
 * communication. Groups have `size` islands; one island left over joins the last group, more form a smaller group. */
uint64_t rule_group(uint64_t among, int slot, int size, uint64_t seed, int64_t number);

/* Differential privacy of an island: bounds the information that its clipped changes reveal about all of its data.
 *
 * Each change is scaled to a norm of at most C (outer.clip) and gets Gaussian noise of standard deviation z C
 * (outer.noise z) before it leaves the island: no other island and no holder of keys has to be trusted. One such
 * release is a Gaussian mechanism of sensitivity C, of Renyi divergence a / (2 z^2) at order a, and T of them add up
 * (Mironov, 1702.07476): for every delta
 *     epsilon = min over a of T a / (2 z^2) + ln(1 / delta) / (a - 1) = T / (2 z^2) + sqrt(2 T ln(1 / delta)) / z.
 * Two runs are neighbours if one of them lacks the island's change. The bound excludes attacks through the rounding of
 * fp32; an island's logs and its own checkpoints are not private.
 */

double privacy_epsilon(int64_t releases, double noise, double delta);
/* values[n] += normal draws times `deviation`, from the system's random numbers: unrepeatable. */
void privacy_add_noise(float *values, double deviation, int64_t n);
