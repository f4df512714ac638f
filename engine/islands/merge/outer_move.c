#include "engine/islands/merge/outer_island_internal.h"

#include <stdlib.h>
#include <string.h>

#include "engine/state/rank/state.h"
#include "memory/log.h"
#include "memory/scope.h"

/* A rectangle of the tensor: the part of a unit in one piece of one rank. */
typedef struct overlap {
    int unit, rank, piece;
    box part;
} overlap;

typedef struct overlaps {
    checkpoint_piece *pieces; /* pieces of this rank */
    overlap *list;            /* shares of all ranks, by unit, then rank, then piece */
    int count;
    int *first; /* [units + 1] */
} overlaps;

struct outer_move {
    const compiled *compiled;
    executor *executor;
    const outer *core;
    overlaps given, held;
};

/* ---- shares of all ranks ----------------------------------------------------------------------------------------- */

static bool intersect_unit(overlap *out, const unit *u, const checkpoint_piece *p)
{
    bool matrix = p->of.dims > 1;
    box rows = {{u->first, 0}, {u->rows, matrix ? p->of.global[1] : 1}}, held = p->of.part;
    held.size[1] = matrix ? held.size[1] : 1;
    return box_intersect(&out->part, 2, &rows, &held);
}

static int compare_shares(const void *a, const void *b)
{
    const overlap *x = a, *y = b;
    int by_unit = (x->unit > y->unit) - (x->unit < y->unit), by_rank = (x->rank > y->rank) - (x->rank < y->rank);
    return by_unit ? by_unit : by_rank ? by_rank : (x->piece > y->piece) - (x->piece < y->piece);
}

static int list_mine(overlap **out, const outer *o, const checkpoint_piece *pieces, int count)
{
    int n = 0;
    *out = NULL;
    for (int i = 0; i < count; i++) {
        int wanted = 0;
        while (wanted < o->units.tensor_count && strcmp(o->units.tensors[wanted].name, pieces[i].of.name) != 0)
            wanted++;
        MUST(wanted < o->units.tensor_count, "%s is no tensor of the model", pieces[i].of.name);
        for (int u = 0; u < o->units.count; u++) {
            overlap s = {.unit = u, .rank = comm_rank(o->world), .piece = i};
            if (o->units.list[u].tensor == wanted && intersect_unit(&s, &o->units.list[u], &pieces[i]))
                APPEND(*out, n) = s;
        }
    }
    return n;
}

/* Gathers the shares of all ranks on every rank. */
static void gather_lists(overlaps *s, const outer *o, overlap *mine, int count)
{
    int ranks = comm_ranks(o->world), me = comm_rank(o->world), at = 0;
    AUTO_FREE int *counts = must_alloc((unsigned long)ranks * sizeof *counts);
    comm_all_gather_bytes(comm_world(o->world), counts, &count, sizeof count);
    for (int i = 0; i < ranks; i++)
        s->count += counts[i];
    s->list = must_calloc((unsigned long)s->count + 1, sizeof *s->list);
    for (int i = 0; i < ranks; i++) {
        if (i == me && mine)
            memcpy(&s->list[at], mine, (size_t)count * sizeof *mine);
        if (counts[i] > 0)
            comm_broadcast_bytes(comm_world(o->world), &s->list[at], counts[i] * (int64_t)sizeof *s->list, i);
        at += counts[i];
    }
    qsort(s->list, (size_t)s->count, sizeof *s->list, compare_shares);
    s->first = must_calloc((unsigned long)o->units.count + 1, sizeof *s->first);
    for (int i = 0, u = 0; u <= o->units.count; u++) {
        while (i < s->count && s->list[i].unit < u)
            i++;
        s->first[u] = i;
    }
}

static void open_overlaps(overlaps *s, const outer_move *m, const state_section *sections, int count, bool writing)
{
    int pieces = 0;
    for (int i = 0; i < count; i++)
        state_pieces(&s->pieces, &pieces, m->compiled, m->executor, sections[i], writing);
    AUTO_FREE overlap *mine = NULL;
    int n = list_mine(&mine, m->core, s->pieces, pieces);
    gather_lists(s, m->core, mine, n);
}

/* Checks that exactly one rank gives each element of every unit. */
static status check_given(const outer_move *m)
{
    for (int u = 0; u < m->core->units.count; u++) {
        int64_t elements = 0;
        for (int i = m->given.first[u]; i < m->given.first[u + 1]; i++)
            elements += box_volume(2, m->given.list[i].part.size);
        if (elements != m->core->units.list[u].elements)
            return status_fail(STATUS_FAILED, "%s: %lld of %lld elements are held by ranks",
                               m->core->units.tensors[m->core->units.list[u].tensor].name, (long long)elements,
                               (long long)m->core->units.list[u].elements);
    }
    return STATUS_OK;
}

status outer_move_open(outer_move **out, const compiled *k, executor *e, const outer *core)
{
    AUTO(outer_move) *m = must_calloc(1, sizeof *m);
    const state_section sections[] = {STATE_MODEL, STATE_MASTER};
    int apart = optimizer_has_master(&k->options);
    *m = (outer_move){.compiled = k, .executor = e, .core = core};
    open_overlaps(&m->given, m, &sections[apart], 1, true);
    open_overlaps(&m->held, m, sections, 1 + apart, false);
    TRY(check_given(m));
    *out = TAKE(m);
    return STATUS_OK;
}

static void free_overlaps(overlaps *s)
{
    free(s->pieces);
    free(s->list);
    free(s->first);
}

void outer_move_close(outer_move *m)
{
    if (!m)
        return;
    free_overlaps(&m->given);
    free_overlaps(&m->held);
    free(m);
}

/* ---- moving ------------------------------------------------------------------------------------------------------ */

/* Copies a share's elements between a piece and a row-major block; `to_piece` says which way. */
static void copy_piece(const outer_move *m, const checkpoint_piece *p, const overlap *s, const box_memory *block,
                       bool to_piece)
{
    executor *e = m->executor;
    checkpoint_piece part = *p;
    int64_t at = 0;
    for (int d = 0; d < p->of.dims; d++)
        at += (s->part.start[d] - p->of.part.start[d]) * p->at.stride[d];
    part.of.part = s->part;
    char *data = (char *)p->at.data + at * dtype_bytes(p->at.type);
    int64_t address = data - executor_context(e)->arena, bytes = checkpoint_extent(&part);
    part.at.data = executor_borrow(e, address, bytes);
    if (to_piece)
        box_convert(&part.at, block, p->of.dims, s->part.size);
    else
        box_convert(block, &part.at, p->of.dims, s->part.size);
    executor_give_back(e, part.at.data, address, bytes, to_piece);
}

/* Returns the memory of a share within its unit's values: its start and row layout. */
static box_memory in_unit(float *values, const outer_move *m, const overlap *s)
{
    const unit *u = &m->core->units.list[s->unit];
    int64_t columns = u->elements / u->rows;
    float *at = values + (s->part.start[0] - u->first) * columns + s->part.start[1];
    return (box_memory){at, DTYPE_FP32, {columns, 1}};
}

/* Returns the memory of a share's elements alone, in the scratch. */
static box_memory in_scratch(const outer_move *m, const overlap *s)
{
    return (box_memory){m->core->memory.scratch, DTYPE_FP32, {s->part.size[1], 1}};
}

static void send_values(const outer_move *m, int64_t count, int to)
{
    comm_run(&(comm_call){.kind = COMM_SEND,
                          .group = comm_world(m->core->world),
                          .type = DTYPE_FP32,
                          .send = m->core->memory.scratch,
                          .count = count,
                          .peer = to});
}

static void receive_values(const outer_move *m, int64_t count, int from)
{
    comm_run(&(comm_call){.kind = COMM_RECEIVE,
                          .group = comm_world(m->core->world),
                          .type = DTYPE_FP32,
                          .receive = m->core->memory.scratch,
                          .count = count,
                          .source = from});
}

void outer_move_gather(outer_move *m, float *values, int u)
{
    int me = comm_rank(m->core->world), owner = m->core->units.owner[u];
    for (int i = m->given.first[u]; i < m->given.first[u + 1]; i++) {
        const overlap *s = &m->given.list[i];
        int64_t count = box_volume(2, s->part.size);
        box_memory scratch = in_scratch(m, s), to = owner == me ? in_unit(values, m, s) : scratch;
        if (s->rank == me)
            copy_piece(m, &m->given.pieces[s->piece], s, &to, false);
        if (s->rank == me && owner != me)
            send_values(m, count, owner);
        if (s->rank != me && owner == me) {
            receive_values(m, count, s->rank);
            box_convert(&to, &scratch, 2, s->part.size);
        }
    }
}

void outer_move_scatter(outer_move *m, int u, const float *values)
{
    int me = comm_rank(m->core->world), owner = m->core->units.owner[u];
    for (int i = m->held.first[u]; i < m->held.first[u + 1]; i++) {
        const overlap *s = &m->held.list[i];
        int64_t count = box_volume(2, s->part.size);
        box_memory scratch = in_scratch(m, s), from = owner == me ? in_unit((float *)(uintptr_t)values, m, s) : scratch;
        if (owner == me && s->rank != me) {
            box_convert(&scratch, &from, 2, s->part.size);
            send_values(m, count, s->rank);
        }
        if (owner != me && s->rank == me)
            receive_values(m, count, owner);
        if (s->rank == me)
            copy_piece(m, &m->held.pieces[s->piece], s, &from, true);
    }
}

void outer_move_clear_states(outer_move *m)
{
    executor *e = m->executor;
    const char *sections[OPTIMIZER_SECTIONS];
    optimizer_sections(sections, &m->compiled->options);
    for (int i = 0; sections[i]; i++) {
        int count = 0;
        AUTO_FREE checkpoint_piece *pieces = NULL;
        state_pieces(&pieces, &count, m->compiled, e, sections[i], false);
        for (int k = 0; k < count; k++) {
            const checkpoint_piece *p = &pieces[k];
            float zero = 0;
            box_memory there = p->at, still = {.data = &zero, .type = DTYPE_FP32};
            int64_t address = (char *)p->at.data - executor_context(e)->arena, bytes = checkpoint_extent(p);
            there.data = executor_borrow(e, address, bytes);
            box_convert(&there, &still, p->of.dims, p->of.part.size);
            executor_give_back(e, there.data, address, bytes, true);
        }
    }
}
