#include "models/rope.h"

#include <math.h>

void rope_size(int64_t size[2], const model_shape *shape, int64_t positions)
{
    size[0] = shape_has(shape, TRAIT_ROTARY) ? positions : 0;
    size[1] = shape->head_size;
}

void rope_fill(float *table, const model_shape *shape, int64_t positions)
{
    int d = shape->head_size;
    const shape_rope_scaling *s = &shape->rope_scaling;
    for (int i = 0; i < d / 2; i++) {
        double frequency = pow(shape->rope_theta, -2.0 * i / d);
        if (s->factor > 0) {
            /* Long waves are stretched by the factor, short ones kept, those between blended smoothly (Llama 3.1). */
            double turns = (double)s->original_max_sequence * frequency / (2 * M_PI);
            double blend = (turns - s->low_frequency_factor) / (s->high_frequency_factor - s->low_frequency_factor);
            blend = blend < 0 ? 0 : blend > 1 ? 1 : blend;
            frequency = frequency * blend + frequency / s->factor * (1 - blend);
        }
        for (int64_t p = 0; p < positions; p++) {
            table[p * d + i] = (float)cos((double)p * frequency);
            table[p * d + d / 2 + i] = (float)sin((double)p * frequency);
        }
    }
}
