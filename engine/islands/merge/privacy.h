/* Differential privacy of an island: what its clipped changes tell of all of its data, to whoever sees them.
 *
 * Each change is scaled to a norm of at most C (outer.clip) and gets Gaussian noise of standard deviation z C
 * (outer.noise z) before it leaves the island: no other island, and nobody who holds keys, has to be trusted. One such
 * release is a Gaussian mechanism of sensitivity C, of Renyi divergence a / (2 z^2) at order a, and T of them add up
 * (Mironov, 1702.07476): for every delta
 *     epsilon = min over a of T a / (2 z^2) + ln(1 / delta) / (a - 1) = T / (2 z^2) + sqrt(2 T ln(1 / delta)) / z.
 * Two runs are neighbours if one of them lacks the island's change. Nothing is said of attacks through the rounding of
 * fp32, and what an island logs and its own checkpoints are not private.
 */
#pragma once

#include <stdint.h>

double privacy_epsilon(int64_t releases, double noise, double delta);
/* values[n] += normal draws times `deviation`, from the system's random numbers: nobody can draw them again. */
void privacy_add_noise(float *values, double deviation, int64_t n);
