#include "engine/compile/compile_schedule.h"

#include <string.h>

#include "memory/log.h"
#include "parallel/schedule_make.h"

static bool is_found(const compile_options *o)
{
    return o->schedule == SCHEDULE_AUTO && o->grid.size[GRID_PIPELINE] > 1;
}

/* Every schedule of one stage is the same list. */
static schedule_kind kind_of(const compile_options *o)
{
    return o->grid.size[GRID_PIPELINE] == 1 ? SCHEDULE_1F1B : o->schedule;
}

status compile_schedule(schedule *out, const compile_options *o, int microbatches)
{
    if (!is_found(o))
        return schedule_make(out, kind_of(o), o->grid.size[GRID_PIPELINE], o->chunks, microbatches);
    const schedule *s = o->found;
    MUST(s && s->microbatches == microbatches, "a schedule was found for another number of micro-batches");
    schedule_alloc(out, s->kind, schedule_map(s), microbatches, 3 * s->chunks * microbatches);
    for (int stage = 0; stage < s->stages; stage++) {
        memcpy(out->actions[stage], s->actions[stage], sizeof **s->actions * (unsigned long)s->counts[stage]);
        out->counts[stage] = s->counts[stage];
    }
    return STATUS_OK;
}

bool compile_schedule_splits(const compile_options *o)
{
    return is_found(o) ? schedule_splits(o->found) : schedule_kind_splits(kind_of(o));
}
