#include "engine/islands/merge/norms.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/islands/merge/robust.h"

void norms_note(norms *n, int slot, const char *key, double norm)
{
    n->of[slot].known = true;
    n->of[slot].norm = norm;
    snprintf(n->of[slot].key, sizeof n->of[slot].key, "%s", key);
}

static bool same_key(const norms *n, int a, int b)
{
    return n->of[a].known && n->of[b].known && !strcmp(n->of[a].key, n->of[b].key);
}

/* x[] = the norms of all slots with this slot's key, of which none is before it; their number, or 0. */
static int take_key(double *x, const norms *n, int slot)
{
    int count = 0;
    for (int s = 0; s < slot; s++)
        if (same_key(n, s, slot))
            return 0;
    for (int s = slot; s < ROSTER_SLOTS; s++)
        if (same_key(n, s, slot))
            x[count++] = n->of[s].norm;
    return count;
}

double norms_usual(const norms *n, int slot, int self)
{
    double by_slot[ROSTER_SLOTS], by_key[ROSTER_SLOTS];
    int slots = 0, groups = 0;
    for (int s = 0; s < ROSTER_SLOTS; s++) {
        int count = take_key(by_slot, n, s);
        slots = count > 0 ? count : slots; /* of the key seen last: of all, where there is one */
        if (count > 0)
            by_key[groups++] = robust_median(by_slot, count);
    }
    const double *x = groups == 1 ? by_slot : by_key;
    int count = groups == 1 ? slots : groups;
    if (count >= 3)
        return robust_median(x, count);
    if (count == 2)
        return fmax(x[0], x[1]);
    if (self >= 0 && n->of[self].known)
        return n->of[self].norm;
    return n->of[slot].known ? n->of[slot].norm : 0;
}
