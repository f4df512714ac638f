#include "engine/islands/rule.h"

#include <stddef.h>

void rule_change(float *values, const float *reference, const float *error, float decay, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float change = reference[i] - values[i];
        values[i] = error ? decay * error[i] + change : change;
    }
}

void rule_add(float *sum, const float *change, float weight, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += weight * change[i];
}

void rule_step(float *reference, float *momentum, const float *mean, const rule *r, int64_t n)
{
    if (r->kind == RULE_AVERAGE) {
        for (int64_t i = 0; i < n; i++)
            reference[i] -= r->lr * mean[i];
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        momentum[i] = r->momentum * momentum[i] + mean[i];
        reference[i] -= r->lr * (mean[i] + r->momentum * momentum[i]);
    }
}

void rule_mix(float *values, const float *reference, float mix, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        values[i] = reference[i] + mix * (values[i] - reference[i]);
}
