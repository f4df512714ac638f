#include "parallel/watch/watchdog_slot.h"

#include <stddef.h>

/* The fields' releases keep them after the odd version, the readers' acquires before the second look at it: no fences,
 * which the thread sanitizer does not know. */
#define PUT(member, value) atomic_store_explicit(&s->member, value, memory_order_release)
#define GET(member)        atomic_load_explicit(&s->member, memory_order_acquire)

static uint64_t begin(watchdog_slot *s)
{
    uint64_t version = atomic_load_explicit(&s->version, memory_order_relaxed);
    atomic_store_explicit(&s->version, version + 1, memory_order_relaxed);
    return version + 2;
}

void watchdog_slot_move(watchdog_slot *s, const watchdog_position *p)
{
    uint64_t version = begin(s);
    PUT(step, p->step);
    PUT(micro_batch, p->micro_batch);
    PUT(action, p->action);
    PUT(op, p->op);
    PUT(version, version);
}

void watchdog_slot_enter(watchdog_slot *s, incident_phase phase, bool storage, int64_t step, const char *what)
{
    uint64_t version = begin(s);
    PUT(phase, (int)phase);
    PUT(storage, storage);
    PUT(step, step);
    PUT(micro_batch, -1);
    PUT(action, what);
    PUT(op, (const char *)NULL);
    PUT(version, version);
}

watchdog_view watchdog_slot_read(const watchdog_slot *s)
{
    for (int tries = 0;; tries++) {
        uint64_t before = atomic_load_explicit(&s->version, memory_order_acquire);
        watchdog_view v = {
            .moves = before / 2,
            .at = {.step = GET(step), .micro_batch = GET(micro_batch), .action = GET(action), .op = GET(op)},
            .phase = (incident_phase)GET(phase),
            .storage = GET(storage)};
        uint64_t after = atomic_load_explicit(&s->version, memory_order_relaxed);
        if (tries == 1000 || (before % 2 == 0 && after == before))
            return v;
    }
}
