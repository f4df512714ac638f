#include "parallel/comm/grid.h"

#include <stdio.h>
#include <string.h>

#include "memory/log.h"

/* Bounds each size far above any cluster's, so that the product of four does not overflow. */
enum { MAX_AXIS_SIZE = 32768 };

grid grid_for_rank(const grid *g, int rank)
{
    grid other = *g;
    other.rank = rank;
    for (int i = 0; i < GRID_AXES; i++) {
        other.at[i] = rank % g->size[i];
        rank /= g->size[i];
    }
    return other;
}

void grid_single(int size[GRID_AXES])
{
    for (int i = 0; i < GRID_AXES; i++)
        size[i] = 1;
}

int64_t grid_ranks_of(const int size[GRID_AXES])
{
    int64_t ranks = 1;
    for (int i = 0; i < GRID_AXES; i++)
        ranks *= size[i] ? size[i] : 1;
    return ranks;
}

unsigned grid_shown(const int size[GRID_AXES])
{
    unsigned named = 0;
    for (int i = 0; i < GRID_AXES; i++)
        named |= (unsigned)(size[i] != 1 || axis_coordinates[i].named) << i;
    return named;
}

void grid_words(char out[GRID_WORDS], const int value[GRID_AXES], unsigned shown, const char *between,
                const char *const *note)
{
    int used = 0;
    out[0] = 0;
    for (int i = 0; i < GRID_AXES && used < GRID_WORDS; i++)
        if (shown >> i & 1)
            used += snprintf(out + used, (size_t)(GRID_WORDS - used), "%s%s %d%s", used ? between : "",
                             axis_coordinates[i].name, value[i], note && note[i] ? note[i] : "");
}

status grid_make(grid *out, int ranks, int rank, const int size[GRID_AXES])
{
    for (int i = 0; i < GRID_AXES; i++)
        if ((size[i] < 1 && !(i == GRID_DATA && size[i] == 0)) || size[i] > MAX_AXIS_SIZE)
            return status_fail(STATUS_USAGE, "parallel.%s=%d: a layout's sizes are from 1 to %d",
                               axis_coordinates[i].name, size[i], MAX_AXIS_SIZE);
    MUST(ranks > 0 && rank >= 0 && rank < ranks, "rank %d of %d", rank, ranks);
    grid g = {.ranks = ranks};
    memcpy(g.size, size, sizeof g.size);
    g.size[GRID_DATA] = 1;
    int data = size[GRID_DATA];
    long long model = grid_ranks_of(g.size);
    char sizes[GRID_WORDS];
    grid_words(sizes, size, grid_shown(size) & ~(1u << GRID_DATA), " x ", NULL);
    if (ranks % model)
        return status_fail(STATUS_USAGE,
                           "%d rank%s cannot be laid out as %s x data: start a multiple of %lld, or change parallel.*",
                           ranks, ranks == 1 ? "" : "s", sizes, model);
    if (data && model * data != ranks)
        return status_fail(STATUS_USAGE,
                           "parallel.data %d x %s is %lld ranks, and %d %s started: leave out parallel.data or start "
                           "%lld",
                           data, sizes, model * data, ranks, ranks == 1 ? "was" : "were", model * data);
    g.size[GRID_DATA] = (int)(ranks / model);
    for (int a = 0; a < AXIS_COUNT; a++)
        g.block[a] = 1;
    *out = grid_for_rank(&g, rank);
    return STATUS_OK;
}

bool grid_is_first(const grid *g, axis a)
{
    bool first = true;
    for (int i = 0; i < GRID_AXES; i++)
        first &= axis_spans(a, i) || g->at[i] == 0;
    return first;
}

int grid_rank_at(const grid *g, const int at[GRID_AXES])
{
    int rank = 0;
    for (int i = GRID_AXES - 1; i >= 0; i--) {
        MUST(at[i] >= 0 && at[i] < g->size[i], "coordinate %d of %d on the %s axis", at[i], g->size[i],
             axis_coordinates[i].name);
        rank = rank * g->size[i] + at[i];
    }
    return rank;
}

/* ---- groups along an axis --------------------------------------------------------------------------------------- */

/* Ranks that share all other coordinates are numbered, the first spanned coordinate fastest; this rank's number is
 * `own`. A group's members are the numbers first, first + step, ... */
typedef struct members {
    int first, step, count, own;
} members;

static int checked_block(const grid *g, axis a, int all)
{
    int block = g->block[a];
    MUST(block >= 1 && all % block == 0, "%d ranks along %s in blocks of %d", all, axis_name(a), block);
    return block;
}

static members group_along(const grid *g, axis a)
{
    int all = 1, own = 0, block;
    for (int i = GRID_AXES - 1; i >= 0; i--) {
        all *= axis_spans(a, i) ? g->size[i] : 1;
        own = axis_spans(a, i) ? own * g->size[i] + g->at[i] : own;
    }
    switch (axis_rows[a].rule) {
    case AXIS_ENDS:
        return all == 1 ? (members){0, 1, 1, own} : (members){0, all - 1, own == 0 || own == all - 1 ? 2 : 0, own};
    case AXIS_BLOCKS:
        block = checked_block(g, a, all);
        return (members){own - own % block, 1, block, own};
    case AXIS_ACROSS:
        block = checked_block(g, axis_rows[a].across, all);
        return (members){own % block, block, all / block, own};
    default:
        return (members){0, 1, all, own};
    }
}

int grid_group_size(const grid *g, axis a)
{
    return group_along(g, a).count;
}

int grid_index(const grid *g, axis a)
{
    members m = group_along(g, a);
    return m.count ? (m.own - m.first) / m.step : -1;
}

axis_group grid_group(const grid *g, axis a)
{
    axis_group out = {.ranks = grid_group_size(g, a), .rank = grid_index(g, a)};
    if (out.ranks <= 1)
        return out;
    out.slots = axis_slots(a);
    for (int i = 0; i < GRID_AXES; i++) /* a coordinate of one rank divides no tensor */
        if (g->size[i] == 1)
            out.slots &= ~(1u << i);
    return out;
}

int grid_member(const grid *g, axis a, int i)
{
    members m = group_along(g, a);
    MUST(i >= 0 && i < m.count, "member %d of %d along %s", i, m.count, axis_name(a));
    int at[GRID_AXES], number = m.first + i * m.step;
    for (int k = 0; k < GRID_AXES; k++) {
        at[k] = axis_spans(a, k) ? number % g->size[k] : g->at[k];
        number = axis_spans(a, k) ? number / g->size[k] : number;
    }
    return grid_rank_at(g, at);
}

int grid_members(int *list, const grid *g, axis a)
{
    int count = grid_group_size(g, a);
    for (int i = 0; i < count; i++)
        list[i] = grid_member(g, a, i);
    return count;
}

int grid_span(const grid *g, axis a)
{
    int span = 1, all = 1;
    bool apart = false, neighbours = true; /* neighbours along the axis are consecutive ranks */
    for (int i = 0; i < GRID_AXES; i++) {
        all *= g->size[i];
        if (axis_spans(a, i)) {
            span = all;
            neighbours &= !apart || g->size[i] == 1;
        } else {
            apart |= g->size[i] > 1;
        }
    }
    return axis_rows[a].rule == AXIS_BLOCKS && neighbours ? checked_block(g, a, span) : span;
}
