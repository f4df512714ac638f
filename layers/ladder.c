#include "layers/ladder.h"

#include <math.h>

/* An overflow pass is a fourth of the first pass on the first rung, and as large on others; the second rung has
 * SECOND_BEHIND of them. */
enum { SPILL_PART = 4, SECOND_BEHIND = 2 };

int64_t ladder_room(const ladder_waves *w)
{
    return w->rows + w->count * w->behind;
}

/* Returns at most `count` overflow passes, no more than the worst routing needs. */
static ladder_waves waves(int64_t rows, int64_t behind, int64_t count, int64_t most)
{
    int64_t needed = most > rows ? (most - rows + behind - 1) / behind : 0;
    return (ladder_waves){rows, behind, (int)(count < needed ? count : needed)};
}

static int list_rungs(ladder_waves list[LADDER_RUNGS], const ladder_shape *s)
{
    int held = (s->experts + s->ranks - 1) / s->ranks;
    int64_t most = s->tokens * (s->active < held ? s->active : held); /* every token may choose all that a rank has */
    int64_t mean = s->tokens * s->active / s->ranks;
    if (s->ranks == 1) {
        list[0] = (ladder_waves){most, most, 0};
        return 1;
    }
    int64_t rows = (int64_t)ceil(s->capacity * (double)mean);
    rows = rows < most ? rows : most;
    rows = (rows < 1 ? 1 : rows + SPILL_PART - 1) / SPILL_PART * SPILL_PART;
    rows = rows < SPILL_PART ? SPILL_PART : rows;
    const ladder_waves all[LADDER_RUNGS] = {waves(rows, rows / SPILL_PART, s->spill, most),
                                            waves(rows, rows, SECOND_BEHIND, most), waves(rows, rows, most, most)};
    int count = 0;
    for (int i = 0; i < (s->drop ? 1 : LADDER_RUNGS); i++) {
        bool more = count == 0 || ladder_room(&all[i]) > ladder_room(&list[count - 1]);
        if (more && (count == 0 || ladder_room(&list[count - 1]) < most))
            list[count++] = all[i];
    }
    return count;
}

ladder_waves ladder_waves_of(const ladder_shape *s, int rung)
{
    ladder_waves list[LADDER_RUNGS];
    int count = list_rungs(list, s);
    return list[rung < count ? rung : count - 1];
}

int ladder_rungs(const ladder_shape *s)
{
    ladder_waves list[LADDER_RUNGS];
    return list_rungs(list, s);
}
