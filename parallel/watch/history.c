#include "parallel/watch/history.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "memory/log.h"

/* Fields are atomic so that a reader in another thread is no data race; relaxed, so that they cost what plain ones
 * do. */
typedef struct slot {
    _Atomic int64_t time, step, bytes;
    _Atomic int32_t micro_batch, peer;
    const char *_Atomic action;
    const char *_Atomic op;
    const char *_Atomic kind;
} slot;

struct history {
    _Atomic uint64_t added;
    slot slots[HISTORY_ENTRIES];
};

history *history_new(void)
{
    return must_calloc(1, sizeof(history));
}

void history_free(history *h)
{
    free(h);
}

#define PUT(member) atomic_store_explicit(&s->member, e->member, memory_order_relaxed)
#define GET(member) .member = atomic_load_explicit(&s->member, memory_order_relaxed)

void history_add(history *h, const history_entry *e)
{
    struct timespec now;
    uint64_t added = atomic_load_explicit(&h->added, memory_order_relaxed);
    slot *s = &h->slots[added % HISTORY_ENTRIES];
    clock_gettime(CLOCK_MONOTONIC, &now);
    atomic_store_explicit(&s->time, (int64_t)now.tv_sec * 1000000000 + now.tv_nsec, memory_order_relaxed);
    PUT(step);
    PUT(bytes);
    PUT(micro_batch);
    PUT(peer);
    PUT(action);
    PUT(op);
    PUT(kind);
    atomic_store_explicit(&h->added, added + 1, memory_order_release);
}

int history_read(const history *h, history_entry *out)
{
    uint64_t added = atomic_load_explicit(&h->added, memory_order_acquire);
    uint64_t count = added < HISTORY_ENTRIES ? added : HISTORY_ENTRIES;
    for (uint64_t i = 0; i < count; i++) {
        const slot *s = &h->slots[(added - count + i) % HISTORY_ENTRIES];
        out[i] = (history_entry){GET(time),  GET(step),   GET(micro_batch), GET(peer),
                                 GET(bytes), GET(action), GET(op),          GET(kind)};
    }
    return (int)count;
}
