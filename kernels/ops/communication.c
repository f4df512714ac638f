/* Communication, and copies between a device and its pinned host memory. The cotangent changes its placement back.
 * Costs count the bytes at this rank's memory; the communicator counts the bytes sent. */
#include "kernels/ops/family.h"
#include "kernels/record/parameter.h"

/* Records communication along an axis, as `like` asks for it; in a group of one it is the identity. */
static tensor *record_collective(recorder *r, const char *name, axis a, const op *like)
{
    op o = *like;
    MUST(axis_rows[a].layers, "%s: no layer may record %s along the %s axis", name, op_row_of(like)->name,
         axis_name(a));
    if (r->grid.group[a].ranks == 1)
        return o.in[0];
    o.where = op_along(r->grid.group, a);
    o.where.rows = like->where.rows;
    o.where.replicate = like->where.replicate;
    return record_first(r, name, &o, 1);
}

static void check_group(const op *o)
{
    OPERANDS_CHECK(o->where.group_size >= 1 && o->where.group_rank >= 0 && o->where.group_rank < o->where.group_size,
                   "group_rank of group_size");
}

/* This rank's rows of `whole`. */
static void own_rows(int64_t *first, int64_t *count, const op *o, int64_t whole)
{
    *first = 0;
    if (o->where.owner >= 0)
        *count = o->where.group_rank == o->where.owner ? whole : 0;
    else
        shard_rows(first, count, whole, o->where.group_size, o->where.group_rank);
}

/* True if one stage alone has the whole tensor; between stages, such a tensor is placed as if the stage were alone. */
static bool is_a_stages_own(const op *o)
{
    return o->where.owner >= 0 && axis_between_stages((axis)o->where.axis);
}

tensor *record_all_gather(recorder *r, const char *name, axis a, tensor *x, int64_t rows)
{
    return record_collective(r, name, a, &(op){.kind = OP_all_gather, .in = {x}, .where.rows = rows});
}

tensor *record_all_gather_replicate(recorder *r, const char *name, axis a, tensor *x, int64_t rows)
{
    return record_collective(r, name, a,
                             &(op){.kind = OP_all_gather, .in = {x}, .where = {.rows = rows, .replicate = true}});
}

/* shard(0) -> shared: the reduce-scatter sums its cotangents. With where.replicate the result has no sum of
 * cotangents: it is itself the cotangent of a partial tensor (the gradient of a reduce-scatter), or not
 * differentiated. */
void infer_all_gather(op *o)
{
    const tensor *x = o->in[0];
    check_group(o);
    if (is_a_stages_own(o))
        operands_place_along(o, o->where.replicate ? "r>r" : "r>s");
    else
        operands_place_along(o, o->where.replicate ? "0>r o>r" : "0>s o>s");
    int64_t rows = o->where.rows ? o->where.rows : x->shape[0] * o->where.group_size, first, count;
    own_rows(&first, &count, o, rows);
    OPERANDS_CHECK(x->dims > 0 && x->shape[0] == count, "x must have this rank's share of where.rows rows");
    infer_shape(o->out[0], (dtype)x->type, x->dims, rows, x->shape[1], x->shape[2]);
}

COST(all_gather, cost_moved(o))

void gradient_all_gather(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    MUST(!o->where.replicate, "%s: it has no gradient, because nobody sums cotangents of its result", o->label);
    recorder_flow(r, o->in[0], record_reduce_scatter(r, "dx", (axis)o->where.axis, cotangent[0]));
}

tensor *record_reduce_scatter(recorder *r, const char *name, axis a, tensor *x)
{
    return record_collective(r, name, a, &(op){.kind = OP_reduce_scatter, .in = {x}, .where.rows = x->shape[0]});
}

void infer_reduce_scatter(op *o)
{
    const tensor *x = o->in[0];
    check_group(o);
    operands_place_along(o, is_a_stages_own(o) ? "p>r" : o->where.owner >= 0 ? "p>o" : "p>0");
    OPERANDS_CHECK(x->dims > 0 &&
                       (o->where.rows ? x->shape[0] == o->where.rows : x->shape[0] % o->where.group_size == 0),
                   "x must have where.rows rows, or rows that the group divides");
    int64_t first, count;
    own_rows(&first, &count, o, x->shape[0]);
    infer_shape(o->out[0], (dtype)x->type, x->dims, count, x->shape[1], x->shape[2]);
    if (x->parameter)
        o->out[0]->place = parameter_place_rows(x->parameter, o->out[0]->place, first, count);
}

COST(reduce_scatter, cost_each(o, 1, 0))

void gradient_reduce_scatter(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    recorder_flow(r, o->in[0],
                  record_all_gather_replicate(r, "dx", (axis)o->where.axis, cotangent[0], o->in[0]->shape[0]));
}

tensor *record_all_to_all(recorder *r, const char *name, axis a, tensor *x)
{
    return record_collective(r, name, a, &(op){.kind = OP_all_to_all, .in = {x}, .where.rows = x->shape[0]});
}

/* Rows change ranks: they are divided before and after. Without rows, x holds each rank's part for this one: together
 * they are this rank's part of a sum. */
void infer_all_to_all(op *o)
{
    const tensor *x = o->in[0];
    check_group(o);
    if (o->where.rows > 0) {
        operands_place_along(o, "0>0");
        OPERANDS_CHECK(x->dims == 2 && x->shape[0] == o->where.rows && x->shape[0] % o->where.group_size == 0,
                       "x must have where.rows rows, as many for each rank");
        infer_shape_like(o->out[0], x);
        return;
    }
    operands_place_along(o, o->where.owner >= 0 ? "p>o" : "p>0");
    OPERANDS_CHECK(x->dims == 2 && x->shape[0] == (o->where.owner >= 0 ? 1 : o->where.group_size),
                   "x[ranks, n], or of the owner [1, n]");
    bool mine = o->where.owner < 0 || o->where.owner == o->where.group_rank;
    infer_shape(o->out[0], (dtype)x->type, 2, mine ? o->where.group_size : 0, x->shape[1], 0);
}

COST(all_to_all, cost_moved(o))

void gradient_all_to_all(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    if (o->where.rows == 0)
        gradient_refuse(o);
    recorder_flow(r, o->in[0], record_all_to_all(r, "dx", (axis)o->where.axis, cotangent[0]));
}

tensor *record_all_reduce(recorder *r, const char *name, axis a, tensor *x)
{
    return record_collective(r, name, a, &(op){.kind = OP_all_reduce, .in = {x}});
}

void infer_all_reduce(op *o)
{
    check_group(o);
    operands_place_along(o, "p>r");
    OPERANDS_CHECK(o->where.first >= 0 && o->where.rows >= 0 && o->where.first + o->where.rows <= o->in[0]->shape[0],
                   "the rows that are summed must be rows of x");
    infer_shape_like(o->out[0], o->in[0]);
}

COST(all_reduce, cost_each(o, 1, 0))
GRADIENT_BY(all_reduce, recorder_flow(r, o->in[0], cotangent[0]))

tensor *record_copy_to_shards(recorder *r, const char *name, axis a, tensor *x)
{
    return record_collective(r, name, a, &(op){.kind = OP_copy_to_shards, .in = {x}});
}

void infer_copy_to_shards(op *o)
{
    check_group(o);
    operands_place_along(o, "r>s");
    infer_view(o->out[0], o->in[0]);
}

COST(copy_to_shards, ((void)o, (op_cost){0, 0}))
GRADIENT_BY(copy_to_shards, recorder_flow(r, o->in[0], record_all_reduce(r, "dx", (axis)o->where.axis, cotangent[0])))

/* ---- other axes ------------------------------------------------------------------------------------------------ */

/* Returns the slots in which the rows of x are divided. */
static unsigned slots_of_rows(const tensor *x)
{
    unsigned slots = 0;
    for (int i = 0; i < AXIS_SLOTS; i++)
        slots |= (unsigned)(x->place.along[i].kind == PLACE_SHARD && x->place.along[i].dim == 0) << i;
    return slots;
}

tensor *record_regroup(recorder *r, const char *name, tensor *x, bool back)
{
    const recorder_grid *g = &r->grid;
    unsigned coordinates = g->divided | (unsigned)g->sequence << AXIS_COORDINATE_TENSOR;
    unsigned blocks = g->group[AXIS_EXPERT].slots | g->group[AXIS_EXPERT_DATA].slots,
             from = back ? blocks : coordinates;
    if (coordinates == 0)
        return x;
    MUST(slots_of_rows(x) == from, "%s: its rows are not divided as experts' tokens are", x->name);
    return record_first(r, name, &(op){.kind = OP_regroup, .in = {x}, .where.slots = back ? coordinates : blocks}, 1);
}

void infer_regroup(op *o)
{
    tensor *x = o->in[0], *y = o->out[0];
    y->place = x->place;
    for (int i = 0; i < AXIS_SLOTS; i++) {
        bool was = slots_of_rows(x) >> i & 1, is = o->where.slots >> i & 1;
        OPERANDS_CHECK(was || !is || x->place.along[i].kind == PLACE_REPLICATE, "what x is divided along");
        if (was || is)
            y->place.along[i] = is ? place_shard(0) : place_replicate();
    }
    infer_view(y, x);
}

COST(regroup, ((void)o, (op_cost){0, 0}))

void gradient_regroup(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    MUST(slots_of_rows(cotangent[0]) == slots_of_rows(o->out[0]), "%s: its cotangent's rows are not divided as it is",
         o->label);
    op back = {.kind = OP_regroup, .in = {cotangent[0]}, .where.slots = slots_of_rows(o->in[0])};
    recorder_flow(r, o->in[0], gradient_by(r, &back));
}

INFER(send, OPERANDS_CHECK(o->where.peer >= 0, "the neighbour's rank"))
GRADIENTLESS(send, cost_moved(o))

void infer_receive(op *o)
{
    OPERANDS_CHECK(o->out[0]->dims > 0 && o->where.peer >= 0, "what is received must be described, and from whom");
}

GRADIENTLESS(receive, cost_moved(o))

/* The operands belong to the op that the wait ends, which was checked. */
INFER(wait, OPERANDS_CHECK(o->where.request >= 0, "the asynchronous op's request"))
COST(wait, ((void)o, (op_cost){0, 0}))

NO_GRADIENT(wait)

/* ---- host memory ------------------------------------------------------------------------------------------------- */

static void check_copied(const op *o, const tensor *host, const tensor *arena)
{
    OPERANDS_CHECK(host->class == CLASS_HOST && arena->class != CLASS_HOST, "one of the two in host memory");
    OPERANDS_CHECK(infer_same(host, arena) && tensor_contiguous(host) && tensor_contiguous(arena),
                   "the same rows, without gaps");
}

INFER(load_host, check_copied(o, o->in[0], o->out[0]))

/* The bytes of the arena; as many cross the bus. */
GRADIENTLESS(load_host, (op_cost){0, cost_bytes(o->out[0])})

INFER(store_host, check_copied(o, o->out[0], o->in[0]))
GRADIENTLESS(store_host, (op_cost){0, cost_bytes(o->in[0])})
