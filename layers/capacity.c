#include "layers/capacity.h"

#include <math.h>

/* An overflow pass is a fourth of the first pass on the first bucket, and as large on others; the second bucket has
 * SECOND_PASSES of them. */
enum { SPILL_PART = 4, SECOND_PASSES = 2 };

int64_t capacity_rows(const capacity_passes *w)
{
    return w->rows + w->count * w->overflow;
}

static int list_buckets(capacity_passes list[CAPACITY_BUCKETS], const capacity_shape *s)
{
    int held = (s->experts + s->ranks - 1) / s->ranks;
    int64_t most = s->tokens * (s->active < held ? s->active : held); /* every token may choose all that a rank has */
    int64_t mean = s->tokens * s->active / s->ranks;
    if (s->ranks == 1) {
        list[0] = (capacity_passes){most, most, 0};
        return 1;
    }
    int64_t rows = (int64_t)ceil(s->capacity * (double)mean);
    rows = rows < most ? rows : most;
    rows = (rows < 1 ? 1 : rows + SPILL_PART - 1) / SPILL_PART * SPILL_PART;
    rows = rows < SPILL_PART ? SPILL_PART : rows;
    const int64_t overflow[CAPACITY_BUCKETS] = {rows / SPILL_PART, rows, rows};
    const int64_t passes[CAPACITY_BUCKETS] = {s->spill, SECOND_PASSES, most};
    int count = 0;
    for (int i = 0; i < (s->drop ? 1 : CAPACITY_BUCKETS); i++) {
        int64_t needed = most > rows ? (most - rows + overflow[i] - 1) / overflow[i] : 0; /* by the worst routing */
        capacity_passes next = {rows, overflow[i], (int)(passes[i] < needed ? passes[i] : needed)};
        bool more = count == 0 || capacity_rows(&next) > capacity_rows(&list[count - 1]);
        if (more && (count == 0 || capacity_rows(&list[count - 1]) < most))
            list[count++] = next;
    }
    return count;
}

capacity_passes capacity_passes_of(const capacity_shape *s, int bucket)
{
    capacity_passes list[CAPACITY_BUCKETS];
    int count = list_buckets(list, s);
    return list[bucket < count ? bucket : count - 1];
}

int capacity_buckets(const capacity_shape *s)
{
    capacity_passes list[CAPACITY_BUCKETS];
    return list_buckets(list, s);
}
