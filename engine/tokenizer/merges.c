#include "engine/tokenizer/merges.h"

#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

#define NONE  UINT32_MAX /* no merge: ranks after all others */
#define SHORT 64         /* up to this length a scan of all pairs beats a heap */

typedef struct entry {
    uint64_t pair; /* left << 32 | right; EMPTY */
    uint32_t rank;
    int32_t merged;
} entry;

#define EMPTY UINT64_MAX

struct merges {
    entry *entries; /* [mask + 1], open addressing, at most half full */
    uint64_t mask, count;
};

struct merges_scratch {
    int64_t room;
    int32_t *ids;    /* [room] token that begins here */
    int32_t *next;   /* [room] index of the next token; the count of symbols after the last */
    int32_t *before; /* [room] index of the preceding token, or -1 */
    uint32_t *rank;  /* [room] rank of the pair that begins here; NONE */
    int32_t *merged; /* [room] token into which that pair merges */
    uint64_t *heap;  /* [3 * room] rank << 32 | index */
};

static void allot_slots(merges *m, uint64_t slots)
{
    m->mask = slots - 1;
    m->entries = must_alloc(slots * sizeof *m->entries);
    for (uint64_t i = 0; i < slots; i++)
        m->entries[i] = (entry){EMPTY, NONE, 0};
}

merges *merges_open(int64_t expected)
{
    merges *m = must_calloc(1, sizeof *m);
    uint64_t slots = 1024;
    while (slots < 2 * (uint64_t)expected)
        slots *= 2;
    allot_slots(m, slots);
    return m;
}

void merges_close(merges *m)
{
    if (!m)
        return;
    free(m->entries);
    free(m);
}

static inline entry *slot_of(const merges *m, uint64_t pair)
{
    uint64_t h = (pair ^ pair >> 29) * 0x9E3779B97F4A7C15U;
    for (uint64_t slot = h >> 32 & m->mask;; slot = (slot + 1) & m->mask)
        if (m->entries[slot].pair == pair || m->entries[slot].pair == EMPTY)
            return &m->entries[slot];
}

static inline uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

void merges_add(merges *m, int32_t left, int32_t right, uint32_t rank, int32_t merged)
{
    MUST(left >= 0 && right >= 0 && rank < NONE, "merge %d + %d of rank %u", left, right, rank);
    if (2 * (m->count + 1) > m->mask + 1) {
        merges old = *m;
        allot_slots(m, 2 * (old.mask + 1));
        for (uint64_t i = 0; i <= old.mask; i++)
            if (old.entries[i].pair != EMPTY)
                *slot_of(m, old.entries[i].pair) = old.entries[i];
        free(old.entries);
    }
    entry *e = slot_of(m, pair_of(left, right));
    m->count += e->pair == EMPTY;
    *e = (entry){pair_of(left, right), rank, merged};
}

merges_scratch *merges_scratch_open(void)
{
    return must_calloc(1, sizeof(merges_scratch));
}

void merges_scratch_close(merges_scratch *s)
{
    if (!s)
        return;
    free(s->ids);
    free(s->next);
    free(s->before);
    free(s->rank);
    free(s->merged);
    free(s->heap);
    free(s);
}

static void reserve_scratch(merges_scratch *s, int64_t count)
{
    if (count <= s->room)
        return;
    s->room = count + count / 2 + SHORT;
    unsigned long room = (unsigned long)s->room;
    s->ids = must_realloc(s->ids, room * sizeof *s->ids);
    s->next = must_realloc(s->next, room * sizeof *s->next);
    s->before = must_realloc(s->before, room * sizeof *s->before);
    s->rank = must_realloc(s->rank, room * sizeof *s->rank);
    s->merged = must_realloc(s->merged, room * sizeof *s->merged);
    s->heap = must_realloc(s->heap, 3 * room * sizeof *s->heap);
}

/* Merges few tokens: scans all pairs for the lowest rank, closes the gap after each merge. */
static void apply_short(const merges *m, buffer_ids *out, const int32_t *ids, int count)
{
    int32_t token[SHORT], merged[SHORT];
    uint32_t rank[SHORT];
    memcpy(token, ids, (size_t)count * sizeof *ids);
    for (int i = 0; i + 1 < count; i++) {
        const entry *e = slot_of(m, pair_of(token[i], token[i + 1]));
        rank[i] = e->rank;
        merged[i] = e->merged;
    }
    for (;;) {
        uint32_t lowest = NONE;
        int at = 0;
        for (int i = 0; i + 1 < count; i++)
            if (rank[i] < lowest) {
                lowest = rank[i];
                at = i;
            }
        if (lowest == NONE)
            break;
        token[at] = merged[at];
        size_t left = (size_t)(count - at - 2);
        memmove(token + at + 1, token + at + 2, left * sizeof *token);
        if (left) {
            memmove(rank + at + 1, rank + at + 2, (left - 1) * sizeof *rank);
            memmove(merged + at + 1, merged + at + 2, (left - 1) * sizeof *merged);
        }
        count--;
        for (int i = at ? at - 1 : 0; i <= at && i + 1 < count; i++) {
            const entry *e = slot_of(m, pair_of(token[i], token[i + 1]));
            rank[i] = e->rank;
            merged[i] = e->merged;
        }
    }
    buffer_ids_append(out, token, count);
}

static void heap_push(uint64_t *heap, int64_t *size, uint64_t key)
{
    int64_t at = (*size)++;
    while (at > 0 && heap[(at - 1) / 2] > key) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = key;
}

static uint64_t heap_pop(uint64_t *heap, int64_t *size)
{
    uint64_t top = heap[0], last = heap[--*size];
    int64_t at = 0;
    for (int64_t child; (child = 2 * at + 1) < *size; at = child) {
        if (child + 1 < *size && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= last)
            break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return top;
}

/* Looks up the pair that begins at `at` and enters it into the heap if it can merge. */
static void consider_pair(const merges *m, merges_scratch *s, int64_t *size, int32_t at, int32_t count)
{
    s->rank[at] = NONE;
    if (s->next[at] >= count)
        return;
    const entry *e = slot_of(m, pair_of(s->ids[at], s->ids[s->next[at]]));
    s->rank[at] = e->rank;
    s->merged[at] = e->merged;
    if (e->rank != NONE)
        heap_push(s->heap, size, (uint64_t)e->rank << 32 | (uint32_t)at);
}

/* Merges many tokens: a linked list, and a heap of pairs that recognises outdated ones when they come up. At most count
 * - 1 pairs enter at first and two with each of count - 1 merges, hence 3 * count slots. */
static void apply_long(const merges *m, merges_scratch *s, buffer_ids *out, const int32_t *ids, int32_t count)
{
    reserve_scratch(s, count);
    memcpy(s->ids, ids, (size_t)count * sizeof *ids);
    for (int32_t i = 0; i < count; i++) {
        s->next[i] = i + 1;
        s->before[i] = i - 1;
    }
    int64_t size = 0;
    for (int32_t i = 0; i < count; i++)
        consider_pair(m, s, &size, i, count);
    while (size > 0) {
        uint64_t top = heap_pop(s->heap, &size);
        int32_t at = (int32_t)(uint32_t)top;
        if (s->rank[at] != (uint32_t)(top >> 32))
            continue;
        int32_t gone = s->next[at];
        s->ids[at] = s->merged[at];
        s->next[at] = s->next[gone];
        s->rank[gone] = NONE;
        if (s->next[gone] < count)
            s->before[s->next[gone]] = at;
        consider_pair(m, s, &size, at, count);
        if (s->before[at] >= 0)
            consider_pair(m, s, &size, s->before[at], count);
    }
    buffer_ids_reserve(out, count);
    for (int32_t i = 0; i < count; i = s->next[i])
        out->ids[out->count++] = s->ids[i];
}

void merges_apply(const merges *m, merges_scratch *s, buffer_ids *out, const int32_t *ids, int64_t count)
{
    MUST(count < INT32_MAX, "a word of %lld symbols", (long long)count);
    if (count <= SHORT)
        apply_short(m, out, ids, (int)count);
    else
        apply_long(m, s, out, ids, (int32_t)count);
}

words *words_open(void)
{
    unsigned long bytes = sizeof(words_slot) << WORDS_BITS;
    words *w = must_calloc(1, sizeof *w);
    w->slots = aligned_alloc(64, bytes);
    MUST(w->slots, "out of host memory: %lu bytes", bytes);
    memset(w->slots, 0xFF, bytes);
    return w;
}

void words_close(words *w)
{
    if (!w)
        return;
    free(w->slots);
    free(w);
}
