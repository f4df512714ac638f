#include "engine/compile/model/groups.h"

#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/collective.h"
#include "memory/log.h"
#include "memory/scope.h"

static groups_row *add_row(groups *g)
{
    g->row = must_realloc(g->row, (unsigned long)(g->count + 1) * sizeof *g->row);
    groups_row *r = &g->row[g->count++];
    *r = (groups_row){.from = -1, .to = -1, .same_as = -1};
    return r;
}

static bool is_edge(const op *o)
{
    return axis_rows[o->where.axis].edges;
}

int groups_of(const groups *g, const op *o, int me)
{
    int from = op_has(o, OP_LEAVES) ? me : o->where.peer, to = op_has(o, OP_LEAVES) ? o->where.peer : me;
    for (int i = 0; i < g->count; i++) {
        const groups_row *r = &g->row[i];
        if (r->a == (axis)o->where.axis && (!is_edge(o) || (r->from == from && r->to == to)))
            return i;
    }
    return -1;
}

/* ---- rows ------------------------------------------------------------------------------------------------------ */

static void add_axis(groups *g, const grid *at, axis a)
{
    AUTO_FREE int *members = must_alloc((unsigned long)at->ranks * sizeof *members);
    int count = grid_members(members, at, a);
    if (count <= 1 || grid_index(at, a) < 0)
        return;
    groups_row *r = add_row(g);
    r->a = a;
    r->members = TAKE(members);
    r->count = count;
}

static void add_edge(groups *g, const op *o, const grid *at)
{
    int me = at->rank, low = o->where.peer < me ? o->where.peer : me, high = low == me ? o->where.peer : me;
    grid a = grid_for_rank(at, low), b = grid_for_rank(at, high);
    int stage = a.at[GRID_PIPELINE], neighbours = b.at[GRID_PIPELINE] == stage + 1;
    groups_row *r = add_row(g);
    r->a = (axis)o->where.axis;
    r->from = op_has(o, OP_LEAVES) ? me : o->where.peer;
    r->to = op_has(o, OP_LEAVES) ? o->where.peer : me;
    r->members = must_alloc(2 * sizeof *r->members);
    r->members[0] = low;
    r->members[1] = high;
    r->count = 2;
    r->round = 1 + 2 * (neighbours ? stage % 2 : 2) + (r->from == high);
}

/* Ops that are launched as one count as one. */
static void note_use(groups_row *r, const program *p, int index)
{
    const op *ops[COMM_SEGMENTS];
    int64_t bytes = 0;
    for (int i = 0, count = collective_bundle(ops, p, index); i < count; i++) {
        comm_shape s = collective_shape(ops[i], NULL);
        bytes += s.count * dtype_bytes(s.type);
        r->use.kinds |= 1u << s.kind;
        r->use.types[s.kind] |= 1u << s.type;
    }
    r->use.largest = bytes > r->use.largest ? bytes : r->use.largest;
}

static void look_through(groups *g, const compiled_program *p, const grid *at)
{
    for (int i = 0; i < p->list.count; i++) {
        const op *o = p->list.ops[i];
        if (!op_communicates(o))
            continue;
        int row = groups_of(g, o, at->rank);
        if (row < 0 && is_edge(o)) {
            row = g->count;
            add_edge(g, o, at);
        }
        MUST(row >= 0, "%s: no group along the %s axis", o->label, axis_name((axis)o->where.axis));
        note_use(&g->row[row], &p->list, i);
    }
}

/* ---- communicators --------------------------------------------------------------------------------------------- */

/* True if one communicator may serve both: ops of one queue are ordered anyway, and ops over the whole grid (loss,
 * norm) come when all else is done. */
static bool may_share(const groups_row *a, const groups_row *b)
{
    bool ordered = axis_rows[a->a].queue == axis_rows[b->a].queue || a->a == AXIS_GRID || b->a == AXIS_GRID;
    return a->from < 0 && b->from < 0 && a->same_as < 0 && ordered && a->count == b->count &&
           !memcmp(a->members, b->members, (size_t)a->count * sizeof *a->members);
}

int groups_communicators(const groups *g)
{
    int count = 0;
    for (int i = 0; i < g->count; i++)
        count += g->row[i].use.kinds && g->row[i].same_as < 0;
    return count;
}

/* ---------------------------------------------------------------------------------------------------------------- */

void groups_find(groups *out, const compiled *c)
{
    *out = (groups){0};
    for (int a = 0; a < AXIS_COUNT; a++)
        if (axis_has_messages((axis)a) && !axis_rows[a].edges)
            add_axis(out, &c->options.grid, (axis)a);
    for (int i = 0; i < COMPILE_PROGRAMS; i++)
        look_through(out, compile_program_at(c, i), &c->options.grid);
    /* Edges above even stages, above odd ones, between the ends; of each, down before up. */
    for (int i = 1; i < out->count; i++)
        for (int k = i; k > 0 && out->row[k].round < out->row[k - 1].round; k--) {
            groups_row between = out->row[k];
            out->row[k] = out->row[k - 1];
            out->row[k - 1] = between;
        }
    for (int i = 0; i < out->count; i++)
        for (int k = 0; k < i && out->row[i].same_as < 0; k++)
            if (may_share(&out->row[k], &out->row[i])) {
                out->row[i].same_as = k;
                out->row[k].use = comm_use_of_both(&out->row[k].use, &out->row[i].use);
            }
}

void groups_free(groups *g)
{
    for (int i = 0; i < g->count; i++)
        free(g->row[i].members);
    free(g->row);
    *g = (groups){0};
}
