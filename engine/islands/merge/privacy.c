#include "engine/islands/merge/privacy.h"

#include <math.h>
#include <sys/random.h>

#include "memory/log.h"

double privacy_epsilon(int64_t releases, double noise, double delta)
{
    double t = (double)releases;
    return t / (2 * noise * noise) + sqrt(2 * t * log(1 / delta)) / noise;
}

/* In (0, 1), of 53 bits. */
static double uniform(uint64_t draw)
{
    return ((double)(draw >> 11) + 0.5) * 0x1p-53;
}

void privacy_add_noise(float *values, double deviation, int64_t n)
{
    enum { DRAWS = 32 }; /* 256 bytes: getrandom gives so many whole */
    static const double turn = 6.283185307179586;
    uint64_t draws[DRAWS];
    for (int64_t first = 0; first < n; first += DRAWS) {
        MUST(getrandom(draws, sizeof draws, 0) == sizeof draws, "the system has no random numbers");
        for (int i = 0; i < DRAWS && first + i < n; i++) { /* Box and Muller */
            double radius = sqrt(-2 * log(uniform(draws[i & ~1]))), angle = turn * uniform(draws[i | 1]);
            values[first + i] += (float)(deviation * radius * (i & 1 ? sin(angle) : cos(angle)));
        }
    }
}
