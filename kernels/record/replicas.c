#include "kernels/record/replicas.h"

/* Describes an op along the axis of the replicas, which divide the rows as the storage says. */
static op_where along_replicas(const axis_group *groups, const storage *s)
{
    op_where where = op_along(groups, s->of->replicas);
    where.rows = parameter_rows(s->of);
    where.owner = s->owner;
    return where;
}

op replicas_gather(const axis_group *groups, const storage *s, tensor *own)
{
    return (op){.kind = OP_all_gather, .in = {own}, .where = along_replicas(groups, s)};
}

/* ---- sums of gradients ----------------------------------------------------------------------------------------- */

static bool is_partial(const tensor *d, axis a)
{
    for (int i = 0; i < AXIS_SLOTS; i++)
        if ((axis_slots(a) >> i & 1) && d->place.along[i].kind == PLACE_PARTIAL)
            return tensor_elements(d) > 0;
    return false;
}

axis replicas_next_sum(const parameter *p, const tensor *d, axis after)
{
    bool due = after == AXIS_COUNT;
    for (axis a = 0; a < AXIS_COUNT; a++) {
        if (axis_rows[a].gradients != AXIS_SUMS_COPIES)
            continue;
        if (due && is_partial(d, a))
            return a;
        due |= a == after;
    }
    return due && is_partial(d, p->replicas) ? p->replicas : AXIS_COUNT;
}

op replicas_sum(const axis_group *groups, const storage *s, axis a, tensor *d)
{
    if (a == s->of->replicas && s->divided)
        return (op){.kind = OP_reduce_scatter, .in = {d}, .where = along_replicas(groups, s)};
    op o = {.kind = OP_all_reduce, .in = {d}, .where = op_along(groups, a)};
    int64_t from = a == s->of->replicas ? 0 : parameter_copied_from(s->of, a);
    if (from > 0) {
        int64_t held = s->shard_gradient && !s->of->vector ? s->own_first : 0; /* the gradient's first row here */
        o.where.first = from > held ? from - held : 0;
        o.where.rows = d->shape[0] - o.where.first;
    }
    return o;
}

op replicas_gather_notes(const axis_group *groups, axis a, tensor *own)
{
    op o = {.kind = OP_all_gather, .in = {own}, .where = op_along(groups, a)};
    o.where.replicate = 1;
    return o;
}

/* ---- in compressed form ---------------------------------------------------------------------------------------- */

static op_where along_sums(const axis_group *groups, const storage *s)
{
    op_where where = op_along(groups, s->of->replicas);
    where.owner = s->sum_owner;
    return where;
}

op replicas_exchange(const axis_group *groups, const storage *s, tensor *message)
{
    return (op){.kind = OP_all_to_all, .in = {message}, .where = along_sums(groups, s)};
}

op replicas_gather_sums(const axis_group *groups, const storage *s, tensor *message)
{
    op o = {.kind = OP_all_gather, .in = {message}, .where = along_sums(groups, s)};
    o.where.rows = s->sum_owner >= 0 ? 1 : 0;
    o.where.replicate = 1;
    return o;
}
