/* A segment tree over time. A lifetime splits into O(log times) nodes whose ranges of time it covers whole. Each node
 * keeps two sorted lists of disjoint address intervals, in which neighbours that touch are merged into one:
 *     cover   taken by lifetimes that were split into this very node,
 *     below   taken by lifetimes that were split into this node or any beneath it.
 * A lifetime collides with what `below` says of its own nodes and with what `cover` says of their ancestors: at most
 * 4 log2(times) lists. First-fit fills from one end, so that merged lists are short where the arena is full.
 *
 * Node numbering: a node over [low, high] with middle m has its left child at node + 1 and its right child at
 * node + 2 (m - low + 1), so that exactly 2 times - 1 nodes exist for any number of times.
 */
#include "memory/planner_internal.h"

#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

enum {
    MOST_LISTS = 4 * 32, /* two paths of at most 32 levels, each with a cover and a sibling's below */
    CLASSES = 31,        /* list capacities are powers of two */
    SLAB_INTERVALS = 1 << 16,
};

typedef struct interval {
    int64_t start, end;
} interval;

typedef struct list {
    interval *at;
    int32_t count;
    int32_t capacity_class; /* capacity 1 << class; meaningless while `at` is NULL */
} list;

typedef struct node {
    list cover, below;
} node;

/* Memory of the lists: slabs are filled from the front, outgrown lists wait in `free_lists` by capacity. */
typedef struct slab {
    struct slab *next;
    int64_t used, capacity;
    interval space[];
} slab;

typedef union free_list {
    union free_list *next;
    interval room;
} free_list;

struct planner_tree {
    node *nodes;
    int32_t times;
    slab *slabs, *current;
    free_list *free_lists[CLASSES];
    int lists; /* of the query at hand */
    const list *found[MOST_LISTS];
};

planner_tree *planner_tree_open(int32_t times)
{
    MUST(times >= 1 && times <= 1 << 30, "a program of %d times", times);
    planner_tree *tree = must_calloc(1, sizeof *tree);
    tree->times = times;
    tree->nodes = must_calloc(2 * (unsigned long)times - 1, sizeof *tree->nodes);
    return tree;
}

void planner_tree_close(planner_tree *tree)
{
    if (!tree)
        return;
    for (slab *s = tree->slabs, *next; s; s = next) {
        next = s->next;
        free(s);
    }
    free(tree->nodes);
    free(tree);
}

void planner_tree_clear(planner_tree *tree)
{
    memset(tree->nodes, 0, (2 * (size_t)tree->times - 1) * sizeof *tree->nodes);
    memset(tree->free_lists, 0, sizeof tree->free_lists);
    for (slab *s = tree->slabs; s; s = s->next)
        s->used = 0;
    tree->current = tree->slabs;
}

static interval *take_room(planner_tree *tree, int capacity_class)
{
    free_list *reused = tree->free_lists[capacity_class];
    if (reused) {
        tree->free_lists[capacity_class] = reused->next;
        return &reused->room;
    }
    int64_t need = (int64_t)1 << capacity_class;
    while (tree->current && tree->current->capacity - tree->current->used < need && tree->current->next)
        tree->current = tree->current->next;
    if (!tree->current || tree->current->capacity - tree->current->used < need) {
        int64_t capacity = need > SLAB_INTERVALS ? need : SLAB_INTERVALS;
        slab *fresh = must_alloc(sizeof *fresh + (unsigned long)capacity * sizeof(interval));
        *fresh = (slab){.capacity = capacity};
        if (tree->current)
            tree->current->next = fresh;
        else
            tree->slabs = fresh;
        tree->current = fresh;
    }
    interval *room = tree->current->space + tree->current->used;
    tree->current->used += need;
    return room;
}

static void grow(planner_tree *tree, list *l)
{
    int wider = l->at ? l->capacity_class + 1 : 0;
    MUST(wider < CLASSES, "more than 2^30 intervals in one list");
    interval *room = take_room(tree, wider);
    if (l->at) {
        memcpy(room, l->at, (size_t)l->count * sizeof *room);
        free_list *given = (free_list *)(void *)l->at;
        given->next = tree->free_lists[l->capacity_class];
        tree->free_lists[l->capacity_class] = given;
    }
    l->at = room;
    l->capacity_class = wider;
}

/* The first interval that ends at or after `start`: the first that [start, ...) touches, overlaps or precedes. */
static int32_t first_ending_from(const list *l, int64_t start)
{
    int32_t low = 0, high = l->count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (l->at[middle].end < start)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* l := l united with [start, end) */
static void unite(planner_tree *tree, list *l, int64_t start, int64_t end)
{
    int32_t from = first_ending_from(l, start), to = from;
    while (to < l->count && l->at[to].start <= end)
        to++;
    if (from == to) {
        if (!l->at || l->count == (int32_t)1 << l->capacity_class)
            grow(tree, l);
        memmove(l->at + from + 1, l->at + from, (size_t)(l->count - from) * sizeof *l->at);
        l->at[from] = (interval){start, end};
        l->count++;
        return;
    }
    interval *merged = l->at + from;
    merged->start = start < merged->start ? start : merged->start;
    merged->end = end > l->at[to - 1].end ? end : l->at[to - 1].end;
    if (to - from > 1) {
        memmove(merged + 1, l->at + to, (size_t)(l->count - to) * sizeof *l->at);
        l->count -= to - from - 1;
    }
}

static void collect(planner_tree *tree, int32_t at, int32_t low, int32_t high, int32_t first, int32_t last)
{
    const node *n = tree->nodes + at;
    if (n->below.count == 0)
        return;
    if (first <= low && high <= last) {
        tree->found[tree->lists++] = &n->below;
        return;
    }
    if (n->cover.count)
        tree->found[tree->lists++] = &n->cover;
    int32_t middle = low + (high - low) / 2;
    if (first <= middle)
        collect(tree, at + 1, low, middle, first, last);
    if (last > middle)
        collect(tree, at + 2 * (middle - low + 1), middle + 1, high, first, last);
}

int64_t planner_tree_lowest(planner_tree *tree, int32_t first, int32_t last, int64_t bytes)
{
    const interval *cursor[MOST_LISTS], *end[MOST_LISTS];
    tree->lists = 0;
    collect(tree, 0, 0, tree->times - 1, first, last);
    for (int i = 0; i < tree->lists; i++) {
        cursor[i] = tree->found[i]->at;
        end[i] = cursor[i] + tree->found[i]->count;
    }
    int64_t offset = 0;
    /* Each list in turn lifts the offset past its conflicts, until all have agreed to one offset. */
    for (int agreed = 0, i = 0; agreed < tree->lists; i = i + 1 == tree->lists ? 0 : i + 1) {
        const interval *c = cursor[i];
        agreed++;
        for (; c < end[i] && c->start < offset + bytes; c++)
            if (c->end > offset) {
                offset = c->end;
                agreed = 1;
            }
        cursor[i] = c;
    }
    return offset;
}

int64_t planner_tree_highest(planner_tree *tree, int32_t first, int32_t last, int64_t bytes, int64_t ceiling)
{
    const interval *cursor[MOST_LISTS], *end[MOST_LISTS]; /* the cursor is one past the interval it looks at */
    tree->lists = 0;
    collect(tree, 0, 0, tree->times - 1, first, last);
    for (int i = 0; i < tree->lists; i++) {
        end[i] = tree->found[i]->at;
        cursor[i] = end[i] + tree->found[i]->count;
    }
    int64_t offset = ceiling - bytes;
    for (int agreed = 0, i = 0; agreed < tree->lists && offset >= 0; i = i + 1 == tree->lists ? 0 : i + 1) {
        const interval *c = cursor[i];
        agreed++;
        for (; c > end[i] && c[-1].end > offset; c--)
            if (c[-1].start < offset + bytes) {
                offset = c[-1].start - bytes;
                agreed = 1;
            }
        cursor[i] = c;
    }
    return offset < 0 ? -1 : offset;
}

static void mark(planner_tree *tree, int32_t at, int32_t low, int32_t high, int32_t first, int32_t last, interval taken)
{
    node *n = tree->nodes + at;
    unite(tree, &n->below, taken.start, taken.end);
    if (first <= low && high <= last) {
        if (low < high) /* a leaf has no descendants that would ask for its cover */
            unite(tree, &n->cover, taken.start, taken.end);
        return;
    }
    int32_t middle = low + (high - low) / 2;
    if (first <= middle)
        mark(tree, at + 1, low, middle, first, last, taken);
    if (last > middle)
        mark(tree, at + 2 * (middle - low + 1), middle + 1, high, first, last, taken);
}

void planner_tree_take(planner_tree *tree, int32_t first, int32_t last, int64_t offset, int64_t bytes)
{
    mark(tree, 0, 0, tree->times - 1, first, last, (interval){offset, offset + bytes});
}
