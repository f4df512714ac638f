#include "engine/islands/merge/rule.h"

#include <stddef.h>

void rule_change(float *values, const float *reference, const float *error, float decay, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float change = scale * (reference[i] - values[i]);
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

double rule_share(int64_t staleness, int64_t tokens, int64_t all, int islands)
{
    double weight = all > 0 ? (double)tokens * islands / (double)all : 1;
    return weight / (double)(staleness > 1 ? staleness : 1);
}

void rule_scale(float *values, float by, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        values[i] *= by;
}

void rule_gossip(float *reference, float *momentum, const float *mean, const rule *r, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float move = r->lr * (mean[i] - reference[i]);
        if (momentum)
            move = momentum[i] = r->momentum * momentum[i] + move;
        reference[i] += move;
    }
}

void rule_mix(float *values, const float *reference, float mix, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        values[i] = reference[i] + mix * (values[i] - reference[i]);
}
