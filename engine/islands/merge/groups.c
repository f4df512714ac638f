#include "engine/islands/merge/groups.h"

#include <stdlib.h>

#include "engine/islands/meet/roster.h"
#include "kernels/philox.h"

typedef struct ticket {
    uint64_t draw;
    int slot;
} ticket;

static int by_draw(const void *a, const void *b)
{
    const ticket *x = a, *y = b;
    return x->draw != y->draw ? (x->draw < y->draw ? -1 : 1) : x->slot - y->slot;
}

uint64_t groups_draw(uint64_t among, int slot, int size, uint64_t seed, int64_t number)
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
    if (first > 0 && first == count - 1) /* alone */
        first -= size;
    int end = first + size == count - 1 ? count : first + size;
    for (int i = first; i < end && i < count; i++)
        group |= 1ull << order[i].slot;
    return group;
}
