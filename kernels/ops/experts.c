/* Routing of tokens to experts' rows, and back. The device alone knows the number of an expert's rows: shapes follow
 * from routing.rows. */
#include "kernels/ops/family.h"

/* True for int32[t, k], with k at most ROUTING_ACTIVE experts a token. */
static bool is_choice(const tensor *t, int64_t tokens)
{
    return infer_is_matrix(t, DTYPE_INT32, tokens, t->shape[1]) && t->shape[1] >= 1 && t->shape[1] <= ROUTING_ACTIVE;
}

static bool is_like_choice(const tensor *t, dtype type, const tensor *choice)
{
    return infer_is_matrix(t, type, choice->shape[0], choice->shape[1]);
}

/* ---- choice ---------------------------------------------------------------------------------------------------- */

void record_route(recorder *r, const char *name, tensor **weights, tensor **experts, tensor *logits, tensor *bias,
                  const op_routing *as)
{
    const op *made =
        recorder_record(r, name, &(op){.kind = OP_route, .in = {logits, bias}, .at.routing = *as}, 3, NULL);
    *weights = made->out[0];
    *experts = made->out[1];
}

static void check_groups(const op *o)
{
    const op_routing *as = &o->at.routing;
    if (as->groups == 0)
        return;
    OPERANDS_CHECK(as->groups > 0 && as->experts % as->groups == 0, "experts must be a multiple of groups");
    int32_t size = as->experts / as->groups;
    OPERANDS_CHECK(as->groups_kept >= 1 && as->groups_kept <= as->groups, "between one group and all must be kept");
    OPERANDS_CHECK(as->group_best >= 1 && as->group_best <= size && as->group_best <= ROUTING_ACTIVE,
                   "a group's score is a sum of between 1 and 32 of its experts'");
    OPERANDS_CHECK(as->active <= as->groups_kept * size, "the groups kept must have the experts of a token");
}

static void check_routing(const op *o, const tensor *logits)
{
    const op_routing *as = &o->at.routing;
    OPERANDS_CHECK(as->experts >= 1 && as->experts <= ROUTING_EXPERTS, "between 1 and 512 experts");
    OPERANDS_CHECK(as->active >= 1 && as->active <= ROUTING_ACTIVE && as->active <= as->experts,
                   "between 1 and 32 experts a token, and no more than there are");
    OPERANDS_CHECK(as->scale > 0, "weights must be multiplied by something positive");
    OPERANDS_CHECK(infer_is_activation(logits) && logits->shape[1] == as->experts, "logits[t, experts]");
    check_groups(o);
}

void infer_route(op *o)
{
    const tensor *logits = o->in[0], *bias = o->in[1];
    check_routing(o, logits);
    OPERANDS_CHECK(!bias || infer_is_vector(bias, DTYPE_FP32, logits->shape[1]), "bias[experts] fp32");
    infer_shape(o->out[0], DTYPE_FP32, 2, logits->shape[0], o->at.routing.active, 0);
    infer_shape(o->out[1], DTYPE_INT32, 2, logits->shape[0], o->at.routing.active, 0);
    operands_place(o, "0s>00 0r>00");
}

/* exp, sum, quotient and comparison of each score */
COST(route, cost_each(o, 4, 0))

void gradient_route(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    tensor *logits = o->in[0];
    op like = {.kind = OP_route_grad, .at = o->at};
    like.in[0] = cotangent[0];
    like.in[1] = recorder_use(r, logits);
    like.in[2] = recorder_use(r, o->out[1]);
    like.in[3] = recorder_use(r, o->out[0]);
    like.in[4] = recorder_flow_take(r, logits);
    recorder_flow_set(r, logits, gradient_by(r, &like));
}

void infer_route_grad(op *o)
{
    const tensor *logits = o->in[1], *experts = o->in[2], *addend = o->in[4];
    check_routing(o, logits);
    OPERANDS_CHECK(is_choice(experts, logits->shape[0]) && experts->shape[1] == o->at.routing.active,
                   "experts int32[t, active]");
    OPERANDS_CHECK(is_like_choice(o->in[0], DTYPE_FP32, experts) && is_like_choice(o->in[3], DTYPE_FP32, experts),
                   "dweights[t, active], weights[t, active] fp32");
    OPERANDS_CHECK(!addend || infer_same(addend, logits), "addend like logits");
    infer_shape_like(o->out[0], logits);
    operands_place(o, "00000>0");
}

GRADIENTLESS(route_grad, cost_of(o, 5 * cost_elements(o->in[1]), 0))

/* ---- places ---------------------------------------------------------------------------------------------------- */

record_row_ids record_assign(recorder *r, const char *name, tensor *experts, int64_t rows, const op_routing *as,
                             int64_t first)
{
    op like = {.kind = OP_assign, .in = {experts}, .at.routing = *as};
    like.at.routing.rows = rows;
    like.at.routing.first = first;
    const op *made = recorder_record(r, name, &like, 3, NULL);
    return (record_row_ids){made->out[0], made->out[1]};
}

void infer_assign(op *o)
{
    const tensor *experts = o->in[0];
    const op_routing *as = &o->at.routing;
    OPERANDS_CHECK(is_choice(experts, experts->shape[0]), "experts int32[t, k], k at most 32");
    OPERANDS_CHECK(as->local >= 1 && as->local <= ROUTING_EXPERTS && as->first >= 0 && as->slots == 0,
                   "between 1 and 512 experts, and no slots");
    OPERANDS_CHECK(as->rows >= 1 && as->skip >= 0 && as->skip % as->rows == 0,
                   "rows from a multiple of their number on");
    OPERANDS_CHECK(tensor_elements(experts) <= INT32_MAX && as->rows <= INT32_MAX, "fewer than 2^31 assignments");
    infer_shape_like(o->out[0], experts);
    infer_shape(o->out[1], DTYPE_INT32, 1, as->local + 1, 0, 0);
    operands_place(o, "0>00 s>p0");
}

GRADIENTLESS(assign, (op_cost){2 * cost_elements(o->in[0]), cost_traffic(o, 0) + cost_bytes(o->in[0])})

void record_slots(recorder *r, const char *name, const record_slots_out *out, tensor *experts, int64_t rows,
                  const op_routing *as)
{
    op like = {.kind = OP_slots, .in = {experts}, .at.routing = *as};
    like.at.routing.rows = rows;
    const op *made = recorder_record(r, name, &like, 7, NULL);
    *out->row_ids = made->out[0];
    *out->ids = made->out[1];
    *out->offsets = made->out[2];
}

void infer_slots(op *o)
{
    const tensor *experts = o->in[0];
    const op_routing *as = &o->at.routing;
    OPERANDS_CHECK(is_choice(experts, experts->shape[0]), "experts int32[t, k], k at most 32");
    OPERANDS_CHECK(as->slots >= 1 && as->slots <= as->experts && as->experts <= ROUTING_EXPERTS,
                   "an expert for each slot, and at most 512");
    OPERANDS_CHECK(as->rows >= 1 && as->rows % as->slots == 0 && as->skip >= 0, "as many rows in each slot");
    OPERANDS_CHECK(tensor_elements(experts) <= INT32_MAX && as->rows <= INT32_MAX, "fewer than 2^31 assignments");
    infer_shape_like(o->out[0], experts);
    infer_shape(o->out[1], DTYPE_INT32, 2, as->rows, 1, 0);
    infer_shape(o->out[2], DTYPE_INT32, 1, as->slots + 1, 0, 0);
    operands_place(o, "0>000");
}

GRADIENTLESS(slots, (op_cost){2 * cost_elements(o->in[0]), cost_traffic(o, 0) + cost_bytes(o->in[0])})

void record_overflow(recorder *r, const char *name, tensor *over, tensor *experts, const op_capacity *as, int64_t first)
{
    op like = {.kind = OP_overflow, .in = {experts}, .out = {over}, .at = {.accumulate = OP_ADDS, .capacity = *as}};
    like.at.capacity.first = first;
    recorder_record(r, name, &like, 0, NULL);
}

void infer_overflow(op *o)
{
    OPERANDS_CHECK(is_choice(o->in[0], o->in[0]->shape[0]), "experts int32[t, k], k at most 32");
    OPERANDS_CHECK(infer_is_vector(o->out[0], DTYPE_FP32, CAPACITY_BUCKETS), "over fp32[buckets]");
    OPERANDS_CHECK(o->at.capacity.bucket >= 0 && o->at.capacity.bucket < CAPACITY_BUCKETS, "a capacity bucket");
    OPERANDS_CHECK(o->at.capacity.slots >= 0 && o->at.capacity.slots <= o->at.capacity.experts,
                   "an expert for each slot");
    operands_place(o, "r>p 0>r s>r"); /* a share of the sum, by whichever axes its tokens are divided */
}

GRADIENTLESS(overflow, cost_each(o, 1, 0))

/* ---- there and back -------------------------------------------------------------------------------------------- */

static void check_positions(const op *o, const tensor *row_ids, const tensor *offsets, int64_t tokens)
{
    OPERANDS_CHECK(is_choice(row_ids, tokens), "row_ids int32[t, k], k at most 32");
    OPERANDS_CHECK(!offsets || (infer_is_vector(offsets, DTYPE_INT32, offsets->shape[0]) && offsets->shape[0] >= 2),
                   "offsets int32[experts + 1]");
}

/* Checks rows in slots: offsets say where the rows of each slot end. */
static void check_slots(const op *o, const tensor *offsets, int64_t rows)
{
    int32_t slots = o->at.routing.slots;
    OPERANDS_CHECK(!slots || (offsets && offsets->shape[0] == slots + 1 && rows % slots == 0),
                   "offsets int32[slots + 1], and as many rows in each slot");
}

static void check_weights(const op *o, const tensor *weights, const tensor *row_ids)
{
    OPERANDS_CHECK(!weights || is_like_choice(weights, DTYPE_FP32, row_ids), "weights[t, k] fp32");
}

tensor *record_dispatch(recorder *r, const char *name, tensor *x, tensor *row_ids, tensor *offsets, int64_t rows,
                        int slots)
{
    op like = {.kind = OP_dispatch, .in = {x, row_ids, offsets}, .at.routing.rows = rows};
    like.at.routing.slots = slots;
    return record_first(r, name, &like, 1);
}

void infer_dispatch(op *o)
{
    const tensor *x = o->in[0];
    OPERANDS_CHECK(infer_is_activation(x), "x[t, h]");
    check_positions(o, o->in[1], o->in[2], x->shape[0]);
    check_weights(o, o->in[3], o->in[1]);
    OPERANDS_CHECK(o->at.routing.rows >= 1 && o->at.routing.rows <= INT32_MAX, "between 1 and 2^31 - 1 rows");
    check_slots(o, o->in[2], o->at.routing.rows);
    infer_shape(o->out[0], (dtype)x->type, 2, o->at.routing.rows, x->shape[1], 0);
    operands_place(o, "0000>0 sp0s>0 rp0s>0");
}

COST(dispatch, cost_of(o, o->in[3] ? cost_elements(o->out[0]) : 0, 0))

void gradient_dispatch(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    tensor *x = o->in[0];
    if (o->in[3])
        gradient_refuse(o);
    op like = {.kind = OP_combine, .in = {cotangent[0], recorder_use(r, o->in[1]), recorder_use(r, o->in[2])}};
    like.in[4] = recorder_flow_take(r, x);
    like.at.routing.slots = o->at.routing.slots;
    recorder_flow_set(r, x, gradient_by(r, &like));
}

tensor *record_combine(recorder *r, const char *name, const record_combine_in *in)
{
    op like = {.kind = OP_combine, .in = {in->rows, in->row_ids, in->offsets, in->weights, in->addend}};
    like.at.routing.slots = in->slots;
    return record_first(r, name, &like, 1);
}

void infer_combine(op *o)
{
    const tensor *rows = o->in[0], *row_ids = o->in[1], *addend = o->in[4];
    OPERANDS_CHECK(infer_is_activation(rows), "rows[r, h]");
    check_positions(o, row_ids, o->in[2], row_ids->shape[0]);
    check_weights(o, o->in[3], row_ids);
    check_slots(o, o->in[2], rows->shape[0]);
    OPERANDS_CHECK(!addend || infer_is_matrix(addend, (dtype)rows->type, row_ids->shape[0], rows->shape[1]),
                   "addend[t, h] of the rows' type");
    infer_shape(o->out[0], (dtype)rows->type, 2, row_ids->shape[0], rows->shape[1], 0);
    operands_place(o, "00000>0 0p0sp>p");
}

/* Each row is multiplied and added once. */
COST(combine, (op_cost){2 * cost_elements(o->in[0]), cost_traffic(o, 0) - cost_bytes(o->in[2])})

void gradient_combine(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    tensor *dy = cotangent[0], *rows = o->in[0], *weights = o->in[3], *addend = o->in[4];
    tensor *row_ids = recorder_use(r, o->in[1]);
    if (recorder_wants(r, rows)) {
        op like = {
            .kind = OP_dispatch, .in = {dy, row_ids, recorder_use(r, o->in[2])}, .at.routing.rows = rows->shape[0]};
        like.in[3] = weights ? recorder_use(r, weights) : NULL;
        like.at.routing.slots = o->at.routing.slots;
        recorder_flow(r, rows, gradient_by(r, &like));
    }
    if (weights && recorder_wants(r, weights)) {
        op dots = {.kind = OP_combine_dots, .in = {dy, recorder_use(r, rows), row_ids}};
        recorder_flow(r, weights, record_first(r, "dweights", &dots, 1));
    }
    if (addend)
        recorder_flow(r, addend, dy);
}

void infer_combine_dots(op *o)
{
    const tensor *dy = o->in[0], *rows = o->in[1], *row_ids = o->in[2];
    OPERANDS_CHECK(infer_is_activation(dy), "dy[t, h]");
    OPERANDS_CHECK(infer_is_matrix(rows, (dtype)dy->type, rows->shape[0], dy->shape[1]), "rows[r, h] of dy's type");
    check_positions(o, row_ids, NULL, dy->shape[0]);
    infer_shape(o->out[0], DTYPE_FP32, 2, dy->shape[0], row_ids->shape[1], 0);
    operands_place(o, "000>0 r0p>p");
}

GRADIENTLESS(combine_dots, cost_of(o, 2 * cost_elements(o->in[1]), 0))
