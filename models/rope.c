#include "models/rope.h"

#include <math.h>

void rope_size(int64_t size[3], const model_shape *shape, int64_t positions)
{
    size[0] = shape_has(shape, TRAIT_ROTARY) ? positions : 0;
    size[1] = shape_rotated(shape);
    size[2] = shape->rope_local_theta > 0 ? size[0] : 0;
}

static double ramp(double x, double low, double high)
{
    double y = (x - low) / (high - low);
    return y < 0 ? 0 : y > 1 ? 1 : y;
}

/* Returns the index, with a fraction, of the frequency that turns `turns` times in the original sequence. */
static double place_of(const model_shape *shape, double turns)
{
    double length = (double)shape->rope_scaling.original_max_sequence;
    return shape_rotated(shape) * log(length / (turns * 2 * M_PI)) / (2 * log(shape->rope_theta));
}

/* Share of a frequency that YaRN (2309.00071, bounded as transformers does) keeps: long waves are stretched by the
 * factor, short ones kept, waves that turn between beta_slow and beta_fast times in the original sequence blended. */
static double keeps_yarn(const model_shape *shape, int i)
{
    const shape_rope_scaling *s = &shape->rope_scaling;
    double low = place_of(shape, s->beta_fast), high = place_of(shape, s->beta_slow);
    if (!s->fractional) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, shape_rotated(shape) - 1);
    return 1 - ramp(i, low, low == high ? high + 0.001 : high);
}

/* Share of a frequency that is kept; the rest is divided by the factor. The dynamic kind changes only sequences longer
 * than the model is made for, which do not occur here. */
static double keeps(const model_shape *shape, int i, double frequency)
{
    const shape_rope_scaling *s = &shape->rope_scaling;
    switch (s->kind) {
    case ROPE_LLAMA3: /* the same, by the number of their rotations (Llama 3.1) */
        return ramp((double)s->original_max_sequence * frequency / (2 * M_PI), s->low_frequency_factor,
                    s->high_frequency_factor);
    case ROPE_YARN:
        return keeps_yarn(shape, i);
    case ROPE_LINEAR:
        return 0;
    case ROPE_DYNAMIC:
    case ROPE_LONGROPE: /* each frequency has a factor of its own: divisor() */
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
            double kept = keeps(shape, i, frequency);
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
