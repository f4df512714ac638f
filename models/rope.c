#include "models/rope.h"

#include <math.h>

void rope_size(int64_t size[3], const model_shape *shape, int64_t positions)
{
    size[0] = shape_has(shape, TRAIT_ROTARY) ? positions : 0;
    size[1] = shape_rotated(shape);
    size[2] = shape->rope_local_theta > 0 ? size[0] : 0;
}

static double clamped_ramp(double x, double low, double high)
{
    double y = (x - low) / (high - low);
    return y < 0 ? 0 : y > 1 ? 1 : y;
}

/* Returns the fractional index of the frequency that makes `turns` rotations within the original sequence. */
static double frequency_index(const model_shape *shape, double turns)
{
    double length = (double)shape->rope_scaling.original_max_sequence;
    return shape_rotated(shape) * log(length / (turns * 2 * M_PI)) / (2 * log(shape->rope_theta));
}

/* Returns the share of frequency i that YaRN keeps (2309.00071, bounded as in transformers): 1 above beta_fast
 * rotations in the original sequence, 0 below beta_slow, where the factor divides the frequency, blended between. */
static double yarn_share(const model_shape *shape, int i)
{
    const shape_rope_scaling *s = &shape->rope_scaling;
    double low = frequency_index(shape, s->beta_fast), high = frequency_index(shape, s->beta_slow);
    if (!s->fractional) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, shape_rotated(shape) - 1);
    return 1 - clamped_ramp(i, low, low == high ? high + 0.001 : high);
}

/* Returns the share of a frequency that is kept; the rest is divided by the factor. Dynamic scaling changes only
 * sequences above max_sequence, which do not occur here. */
static double kept_share(const model_shape *shape, int i, double frequency)
{
    const shape_rope_scaling *s = &shape->rope_scaling;
    switch (s->kind) {
    case ROPE_LLAMA3: /* blends by the number of rotations (Llama 3.1) */
        return clamped_ramp((double)s->original_max_sequence * frequency / (2 * M_PI), s->low_frequency_factor,
                            s->high_frequency_factor);
    case ROPE_YARN:
        return yarn_share(shape, i);
    case ROPE_LINEAR:
        return 0;
    case ROPE_DYNAMIC:
    case ROPE_LONGROPE: /* rope_fill divides each frequency by a factor of its own */
    case ROPE_KINDS:
        break;
    }
    return 1;
}

void rope_fill(float *table, const model_shape *shape, int64_t positions, bool local)
{
    int d = shape_rotated(shape);
    const shape_rope_scaling *scaling = &shape->rope_scaling;
    double factor = local ? 0 : scaling->factor, theta = local ? shape->rope_local_theta : shape->rope_theta;
    bool multiplies = !local && (shape_scales(shape, ROPE_YARN) || shape_scales(shape, ROPE_LONGROPE));
    double times = multiplies ? scaling->attention_factor : 1;
    for (int i = 0; i < d / 2; i++) {
        double frequency = pow(theta, -2.0 * i / d);
        if (factor > 0) {
            double kept = kept_share(shape, i, frequency);
            frequency = frequency * kept + frequency / factor * (1 - kept);
            if (shape_scales(shape, ROPE_LONGROPE)) /* 2402.13753 */
                frequency /=
                    positions > scaling->original_max_sequence ? scaling->long_factor[i] : scaling->short_factor[i];
        }
        for (int64_t p = 0; p < positions; p++) {
            table[p * d + i] = (float)(times * cos((double)p * frequency));
            table[p * d + d / 2 + i] = (float)(times * sin((double)p * frequency));
        }
    }
}
