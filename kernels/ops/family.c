#include "kernels/ops/family.h"

#include "kernels/heads.h"

tensor *record_first(recorder *r, const char *name, const op *like, unsigned outputs)
{
    return recorder_record(r, name, like, outputs, NULL)->out[0];
}

void infer_check_heads(const op *o, const tensor *q, const tensor *k)
{
    const op_heads *heads = &o->at.heads;
    OPERANDS_CHECK(heads_divide(heads->q, heads->kv), "heads must be a multiple of kv_heads");
    OPERANDS_CHECK(heads->size > 0 && infer_is_activation(q) && q->shape[1] == (int64_t)heads->q * heads->size,
                   "q[t, heads head_size]");
    OPERANDS_CHECK(infer_is_matrix(k, (dtype)q->type, k->shape[0], (int64_t)heads->kv * heads->size),
                   "k[t, kv_heads head_size] of q's type");
}

double cost_elements(const tensor *t)
{
    return t ? (double)tensor_elements(t) : 0;
}

double cost_bytes(const tensor *t)
{
    return cost_elements(t) * (t ? dtype_bytes((dtype)t->type) : 0);
}

double cost_traffic(const op *o, unsigned again)
{
    double bytes = 0;
    for (int i = 0; i < OP_MAX_IN; i++)
        bytes += cost_bytes(o->in[i]);
    for (int i = 0; i < OP_MAX_OUT; i++)
        bytes += cost_bytes(o->out[i]) * (again >> i & 1 ? 2 : 1);
    return bytes;
}

op_cost cost_of(const op *o, double flops, unsigned accumulated)
{
    return (op_cost){flops, cost_traffic(o, o->at.accumulate ? accumulated : 0)};
}

op_cost cost_each(const op *o, double operations, unsigned accumulated)
{
    return cost_of(o, operations * cost_elements(o->in[0]), accumulated);
}

op_cost cost_moved(const op *o)
{
    return cost_of(o, 0, 0);
}

void gradient_of_weight(recorder *r, const char *name, op like, const tensor *w)
{
    like.out[0] = recorder_gradient(r, w, &like.at.accumulate);
    recorder_record(r, name, &like, 0, NULL);
    recorder_gradient_done(r, w, true);
}

tensor *gradient_by(recorder *r, const op *like)
{
    return record_first(r, "dx", like, 1);
}

void gradient_of_each(recorder *r, const op *like, tensor *const *of, int count)
{
    tensor *into[OP_MAX_OUT] = {0};
    for (int i = 0; i < count; i++)
        into[i] = recorder_flow_into(r, of[i]);
    const op *made = recorder_record(r, "dx", like, (1u << count) - 1, into);
    for (int i = 0; i < count; i++)
        recorder_flow(r, of[i], made->out[i]);
}

void gradient_refuse(const op *o)
{
    log_die(__FILE__, __LINE__, "a gradient", "%s (%s) has no gradient: it is recorded by hand", o->label,
            op_row_of(o)->name);
}
