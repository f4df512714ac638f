#include "engine/run/links.h"

#include <stdlib.h>

#include "engine/compile/model/collective.h"
#include "memory/log.h"

status links_open(links *out, const compiled *c, comm *world, const struct comm_backend *backend, bool varies)
{
    groups_find(&out->asked, c);
    out->group = must_calloc((unsigned long)out->asked.count + 1, sizeof(comm_group *));
    for (int i = 0; i < out->asked.count; i++) {
        const groups_row *r = &out->asked.row[i];
        comm_group_options o = {.backend = backend, .use = r->use, .like = r->like < 0 ? NULL : out->group[r->like]};
        o.use.varies = varies;
        TRY(comm_group_open_on(&out->group[i], world, r->members, r->count, &o));
    }
    return STATUS_OK;
}

void links_close(links *l)
{
    for (int i = 0; l->group && i < l->asked.count; i++)
        comm_group_close(l->group[i]);
    free(l->group);
    groups_free(&l->asked);
    *l = (links){0};
}

comm_group *links_of(const links *l, const op *o, int me)
{
    int row = groups_of(&l->asked, o, me);
    MUST(row >= 0, "%s: no group along the %s axis", o->label, axis_name((axis)o->at.axis));
    return l->group[row];
}

status links_poll(bool *heard, const links *l)
{
    for (int i = 0; i < l->asked.count; i++)
        TRY(comm_group_poll(heard, l->group[i]));
    return STATUS_OK;
}

void links_sent(int64_t *bytes, int64_t *messages, const links *l, axis a)
{
    *bytes = *messages = 0;
    for (int i = 0; i < l->asked.count; i++)
        if (l->asked.row[i].a == a) {
            *bytes += comm_bytes_sent(l->group[i]);
            *messages += comm_messages_sent(l->group[i]);
        }
}

/* ---- launches ---- */

typedef struct maker {
    pool *pool;
    char *arena;
    launches_group *group_of;
    const void *context;
    launch *of; /* by request */
} maker;

static int member_of(const comm_group *g, int rank)
{
    for (int i = 0; i < comm_group_ranks(g); i++)
        if (comm_group_member(g, i) == rank)
            return i;
    MUST(0, "rank %d is no member of the group", rank);
}

/* A message's group is the axis; what it is compiled with are its peer and its tensor. */
static void make_call(comm_call *call, const maker *m, const op *o)
{
    comm_group *g = m->group_of(m->context, o);
    MUST(!call->group, "%s: request %d is another's", o->label, o->at.request);
    MUST(g, "%s: no group along the %s axis", o->label, axis_name((axis)o->at.axis));
    op sized = *o;
    sized.at.group_size = comm_group_ranks(g);
    sized.at.group_rank = comm_group_me(g);
    int64_t *counts = NULL;
    if (collective_has_parts(o)) {
        counts = pool_alloc(m->pool, (size_t)sized.at.group_size * sizeof *counts);
        collective_counts(counts, &sized);
    }
    comm_shape s = collective_shape(&sized, counts);
    *call = (comm_call){.kind = s.kind, .group = g, .type = s.type, .count = s.count, .counts = counts};
    call->send = o->in[0] ? (char *)tensor_at(o->in[0], m->arena) + collective_offset(o) : NULL;
    call->receive = o->out[0] ? (char *)tensor_at(o->out[0], m->arena) + collective_offset(o) : NULL;
    call->scratch = tensor_at(o->scratch, m->arena);
    if (op_has(o, OP_MESSAGE))
        *(op_has(o, OP_LEAVES) ? &call->peer : &call->source) = member_of(g, o->at.peer);
}

/* One call of several ops: their calls become its pieces. */
static void join_calls(comm_call *call, const maker *m, const op *const *ops, int count)
{
    comm_piece *pieces = pool_alloc(m->pool, (size_t)count * sizeof *pieces);
    int64_t *sums = pool_alloc(m->pool, (size_t)comm_group_ranks(call->group) * sizeof *sums);
    for (int i = 0; i < count; i++) {
        const comm_call *one = &m->of[ops[i]->at.request].call;
        pieces[i] = (comm_piece){one->send, one->receive, one->count, one->counts};
    }
    call->count = collective_together(sums, ops, count).count;
    call->counts = sums;
    call->pieces = pieces;
    call->piece_count = count;
    call->send = call->receive = NULL;
}

static void make_launch(const maker *m, const program *p, int index)
{
    const op *ops[COMM_PIECES], *o = p->ops[index];
    launch *l = &m->of[o->at.request];
    make_call(&l->call, m, o);
    l->count = collective_bundle(ops, p, index);
    l->ops = pool_alloc(m->pool, (size_t)(l->count + 1) * sizeof *l->ops);
    for (int i = 0; i < l->count; i++) {
        l->ops[i] = ops[i];
        m->of[ops[i]->at.request].ends = o->at.request;
    }
    if (l->count > 1)
        join_calls(&l->call, m, ops, l->count);
}

launch *launches_make(pool *where, const program *p, int requests, char *arena, launches_group *group_of,
                      const void *context)
{
    maker m = {where, arena, group_of, context, NULL};
    m.of = pool_alloc(where, (size_t)(requests + 1) * sizeof *m.of);
    for (int i = 0; i < p->count; i++) {
        if (op_communicates(p->ops[i]))
            make_launch(&m, p, i);
        if (op_copies(p->ops[i])) /* no call: the device alone knows of it */
            m.of[p->ops[i]->at.request].ends = p->ops[i]->at.request;
    }
    return m.of;
}
