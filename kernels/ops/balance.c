/* Load balancing of experts: the load of each expert, the losses that follow from it, and their gradient. */
#include "kernels/ops/family.h"

/* Sums `t` along the axes with shares of it on their ranks, context and data at once before context alone. */
static tensor *sum_shares(recorder *r, const char *name, tensor *t, unsigned slots)
{
    for (int a = AXIS_COUNT - 1; a >= 0; a--) {
        unsigned along = axis_rows[a].layers ? r->grid.group[a].slots : 0;
        if (along == 0 || (along & ~slots))
            continue;
        t = record_all_reduce(r, name, (axis)a, t);
        slots &= ~along;
    }
    return t;
}

/* Counts are summed before they are scaled: sums of integers are exact, so that no bit depends on the ranks. */
tensor *record_expert_load(recorder *r, const char *name, tensor *experts, tensor *token_positions,
                           const op_balance *as, double scale)
{
    op like = {.kind = OP_expert_load, .in = {experts, token_positions}, .at.balance = *as};
    like.at.balance.scale = 1;
    tensor *load = record_first(r, name, &like, 1);
    unsigned slots = 0;
    for (int i = 0; i < AXIS_COORDINATES; i++) /* ranks that divide a sample's tokens */
        slots |= (unsigned)(experts->place.along[i].kind == PLACE_SHARD && axis_shares_layers(i)) << i;
    load = sum_shares(r, name, load, slots);
    load = record_scale(r, name, load, scale);
    recorder_keep(load); /* a few rows, kept to avoid communicating again */
    return load;
}

void infer_expert_load(op *o)
{
    const tensor *experts = o->in[0];
    const op_balance *as = &o->at.balance;
    OPERANDS_CHECK(infer_is_matrix(experts, DTYPE_INT32, experts->shape[0], experts->shape[1]), "experts int32[t, k]");
    OPERANDS_CHECK(!o->in[1] || infer_is_vector(o->in[1], DTYPE_INT32, experts->shape[0]), "token_positions int32[t]");
    OPERANDS_CHECK(as->groups > 0 && as->experts > 0 && as->sequence >= 0 && (as->sequence > 0 || as->groups == 1),
                   "balance must say how many groups and experts there are; one group without a sequence");
    infer_shape(o->out[0], DTYPE_FP32, 2, as->groups, as->experts, 0);
    /* Ranks that divide samples have groups of their own; others have a share of each group's count. */
    operands_place(o, "b.>b 0.>p");
}

GRADIENTLESS(expert_load, cost_each(o, 1, 0))

/* ---- a bias instead of a loss ------------------------------------------------------------------------------------ */

void record_expert_count(recorder *r, const char *name, tensor *counts, tensor *experts)
{
    op like = {.kind = OP_expert_count, .in = {experts}, .out = {counts}, .at.accumulate = OP_ADDS};
    recorder_record(r, name, &like, 0, NULL);
}

void infer_expert_count(op *o)
{
    const tensor *experts = o->in[0], *counts = o->out[0];
    OPERANDS_CHECK(infer_is_matrix(experts, DTYPE_INT32, experts->shape[0], experts->shape[1]), "experts int32[t, k]");
    OPERANDS_CHECK(infer_is_vector(counts, DTYPE_INT32, counts->shape[0]) && counts->shape[0] > 0,
                   "counts int32[experts]");
    operands_place(o, "0>p r>."); /* the consumer decides which of several equal counts enters the sum */
}

GRADIENTLESS(expert_count, cost_each(o, 1, 0))

/* The load is kept and not recomputed: its readers need the counts of that time. */
tensor *record_expert_share(recorder *r, const char *name, tensor *counts)
{
    unsigned slots = 0;
    for (int i = 0; i < AXIS_SLOTS; i++)
        slots |= (unsigned)(counts->place.along[i].kind == PLACE_PARTIAL) << i;
    counts = sum_shares(r, name, counts, slots);
    tensor *load = record_first(r, name, &(op){.kind = OP_expert_share, .in = {counts}}, 1);
    recorder_keep(load);
    return load;
}

void infer_expert_share(op *o)
{
    const tensor *counts = o->in[0];
    OPERANDS_CHECK(infer_is_vector(counts, DTYPE_INT32, counts->shape[0]) && counts->shape[0] > 0,
                   "counts int32[experts]");
    infer_shape(o->out[0], DTYPE_FP32, 2, 1, counts->shape[0], 0);
    operands_place(o, "r>r");
}

GRADIENTLESS(expert_share, cost_each(o, 2, 0))

void infer_expert_bias(op *o)
{
    const tensor *counts = o->in[0];
    OPERANDS_CHECK(infer_is_vector(counts, DTYPE_INT32, counts->shape[0]) && counts->shape[0] > 0,
                   "counts int32[experts]");
    OPERANDS_CHECK(infer_is_vector(o->in[1], DTYPE_FP32, CONTROL_COUNT), "control fp32[3]");
    OPERANDS_CHECK(infer_is_vector(o->out[0], DTYPE_FP32, counts->shape[0]), "bias fp32[experts]");
    operands_place(o, "rr>r rr>s");
}

GRADIENTLESS(expert_bias, cost_each(o, 2, 0))

/* ---- the losses -------------------------------------------------------------------------------------------------- */

static void check_logits(const op *o, const tensor *logits, const tensor *load, const tensor *token_positions)
{
    OPERANDS_CHECK(infer_is_activation(logits), "logits[t, experts]");
    OPERANDS_CHECK(infer_is_matrix(load, DTYPE_FP32, load->shape[0], logits->shape[1]) && load->shape[0] > 0,
                   "load[groups, experts] fp32");
    OPERANDS_CHECK(!token_positions || infer_is_vector(token_positions, DTYPE_INT32, logits->shape[0]),
                   "token_positions int32[t]");
    OPERANDS_CHECK(o->at.balance.sequence > 0 || (o->at.balance.sequence == 0 && load->shape[0] == 1),
                   "balance.sequence must not be negative; 0: there is one group");
}

void record_balance(recorder *r, const char *name, tensor *sums, const record_balance_in *in, const op_balance *as)
{
    op like = {.kind = OP_balance,
               .in = {in->logits, in->load, in->token_positions},
               .out = {sums},
               .at = {.balance = *as, .accumulate = OP_ADDS}};
    recorder_record(r, name, &like, 0, NULL);
}

void infer_balance(op *o)
{
    check_logits(o, o->in[0], o->in[1], o->in[2]);
    OPERANDS_CHECK(infer_is_vector(o->out[0], DTYPE_FP32, 2), "sums fp32[2]");
    /* Ranks that have the same logits have the same sums: the consumer decides which rank contributes to the sum over
     * ranks. */
    operands_place(o, "rr.>. bb.>p 0r.>p");
}

COST(balance, cost_each(o, 12, 1))

/* The op balance_through adds these losses to the gradient of the logits. */
NO_GRADIENT(balance)

/* ---- their gradient ---------------------------------------------------------------------------------------------- */

tensor *record_balance_through(recorder *r, const char *name, tensor *x, const record_balance_in *in, tensor *scalars,
                               const op_balance *as)
{
    op like = {.kind = OP_balance_through,
               .in = {x, in->logits, in->load, scalars, in->token_positions},
               .at = {.balance = *as}};
    return record_first(r, name, &like, 1);
}

void infer_balance_through(op *o)
{
    tensor *x = o->in[0], *y = o->out[0];
    check_logits(o, o->in[1], o->in[2], o->in[4]);
    OPERANDS_CHECK(infer_is_compute(x) && infer_is_scalars(o->in[3]), "x of a compute type, the step's scalars");
    y->place = x->place;
    infer_view(y, x);
}

COST(balance_through, ((void)o, (op_cost){0, 0}))

void gradient_balance_through(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])
{
    tensor *logits = o->in[1];
    op like = {.kind = OP_balance_grad,
               .in = {recorder_use(r, logits), recorder_use(r, o->in[2]), o->in[3],
                      o->in[4] ? recorder_use(r, o->in[4]) : NULL, recorder_flow_take(r, logits)},
               .at = {.balance = o->at.balance}};
    recorder_flow(r, o->in[0], cotangent[0]);
    recorder_flow_set(r, logits, gradient_by(r, &like));
}

void infer_balance_grad(op *o)
{
    const tensor *logits = o->in[0], *addend = o->in[4];
    check_logits(o, logits, o->in[1], o->in[3]);
    OPERANDS_CHECK(infer_is_scalars(o->in[2]), "the step's scalars");
    OPERANDS_CHECK(!addend || infer_same(addend, logits), "addend like logits");
    infer_shape_like(o->out[0], logits);
    operands_place(o, "rr..r>r bb..0>0 0r..0>0");
}

GRADIENTLESS(balance_grad, cost_each(o, 20, 0))
