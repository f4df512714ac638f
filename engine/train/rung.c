#include "engine/train/rung.h"

int rung_needed(const float over[LADDER_RUNGS], int rungs)
{
    int i = 0;
    while (i < rungs - 1 && over[i] > 0)
        i++;
    return i;
}

void rung_after(rung_state *s, int needed)
{
    if (needed >= s->at) {
        *s = (rung_state){.at = needed};
        return;
    }
    s->most = needed > s->most ? needed : s->most;
    if (++s->quiet == RUNG_QUIET)
        *s = (rung_state){.at = s->most};
}
