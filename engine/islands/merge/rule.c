#include "engine/islands/merge/rule.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/random.h>

#include "engine/islands/meet/roster.h"
#include "kernels/philox.h"
#include "memory/log.h"

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

/* ---- gossip: drawing groups -------------------------------------------------------------------------------------- */

typedef struct ticket {
    uint64_t draw;
    int slot;
} ticket;

static int by_draw(const void *a, const void *b)
{
    const ticket *x = a, *y = b;
    return x->draw != y->draw ? (x->draw < y->draw ? -1 : 1) : x->slot - y->slot;
}

uint64_t rule_group(uint64_t among, int slot, int size, uint64_t seed, int64_t number)
{
    ticket order[ROSTER_SLOTS];
    int count = 0, at = 0;
    uint64_t group = 0;
    among |= 1ull << slot;
    for (int s = 0; s < ROSTER_SLOTS; s++) {
        uint32_t draws[4];
        if (!(among >> s & 1))
            continue;
        philox_draws(draws, seed, 0, (uint64_t)number, (uint64_t)s, 0);
        order[count++] = (ticket){(uint64_t)draws[0] << 32 | draws[1], s};
    }
    qsort(order, (size_t)count, sizeof *order, by_draw);
    while (order[at].slot != slot)
        at++;
    int first = at - at % size;
    if (first > 0 && first == count - 1) /* an island left over */
        first -= size;
    int end = first + size == count - 1 ? count : first + size;
    for (int i = first; i < end && i < count; i++)
        group |= 1ull << order[i].slot;
    return group;
}

double privacy_epsilon(int64_t releases, double noise, double delta)
{
    double t = (double)releases;
    return t / (2 * noise * noise) + sqrt(2 * t * log(1 / delta)) / noise;
}

/* Maps a draw to (0, 1), with 53 bits. */
static double to_uniform(uint64_t draw)
{
    return ((double)(draw >> 11) + 0.5) * 0x1p-53;
}

void privacy_add_noise(float *values, double deviation, int64_t n)
{
    enum { DRAWS = 32 }; /* 256 bytes, which getrandom always gives in full */
    static const double turn = 6.283185307179586;
    uint64_t draws[DRAWS];
    for (int64_t first = 0; first < n; first += DRAWS) {
        MUST(getrandom(draws, sizeof draws, 0) == sizeof draws, "the system has no random numbers");
        for (int i = 0; i < DRAWS && first + i < n; i++) { /* Box-Muller transform */
            double radius = sqrt(-2 * log(to_uniform(draws[i & ~1]))), angle = turn * to_uniform(draws[i | 1]);
            values[first + i] += (float)(deviation * radius * (i & 1 ? sin(angle) : cos(angle)));
        }
    }
}
