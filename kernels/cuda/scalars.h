/* The scalars of a step as kernels read them: step_scalars and control of kernels/table/op.h, once more in a header
 * that is both C and C++ (bind.c asserts that the two agree). They lie in device memory, filled before the step.
 */
#pragma once

#include <stdint.h>

typedef struct scalars_device {
    uint64_t seed;
    int64_t step, updates, first_sample;
    float lr, beta1, beta2, epsilon, weight_decay;
    float muon_lr, momentum;
    float clip, loss_scale, loss_tokens, batch_tokens;
    float momentum_correction, variance_correction;
} scalars_device;

enum { SCALARS_NORM, SCALARS_FACTOR, SCALARS_SKIP };
