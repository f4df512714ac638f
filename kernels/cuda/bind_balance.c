/* The load of experts and the losses of their routers, from ops to launches. */
#include "kernels/cuda/bind.h"

void cuda_expert_load(const op *o, const run_context *r)
{
    const tensor *chosen = o->in[0], *load = o->out[0];
    launch_choices of = {.chosen = whole(o, chosen, r),
                         .places = at(o->in[1], r),
                         .tokens = chosen->shape[0],
                         .active = chosen->shape[1],
                         .groups = load->shape[0],
                         .experts = load->shape[1],
                         .sequence = o->at.balance.sequence};
    launched(o, launch_expert_load(r->stream, whole(o, load, r), &of, o->at.scale));
}

void cuda_expert_count(const op *o, const run_context *r)
{
    const tensor *chosen = o->in[0], *counts = o->out[0];
    launch_choices of = {.chosen = whole(o, chosen, r),
                         .tokens = chosen->shape[0],
                         .active = chosen->shape[1],
                         .groups = 1,
                         .experts = counts->shape[0]};
    launched(o, launch_expert_count(r->stream, at(counts, r), &of, o->at.accumulate != OP_WRITES));
}

void cuda_expert_share(const op *o, const run_context *r)
{
    launched(o, launch_expert_share(r->stream, whole(o, o->out[0], r), at(o->in[0], r), (int32_t)o->in[0]->shape[0]));
}

void cuda_expert_bias(const op *o, const run_context *r)
{
    launched(o, launch_expert_bias(r->stream, at(o->out[0], r), at(o->in[0], r), at(o->in[1], r),
                                   (int32_t)o->in[0]->shape[0], o->at.scale));
}

static launch_router router_of(const op *o, const run_context *r, const tensor *places)
{
    const tensor *logits = o->in[0];
    return (launch_router){.logits = whole(o, logits, r),
                           .load = whole(o, o->in[1], r),
                           .places = at(places, r),
                           .tokens = logits->shape[0],
                           .experts = logits->shape[1],
                           .sequence = o->at.balance.sequence,
                           .sigmoid = o->at.balance.sigmoid};
}

void cuda_balance(const op *o, const run_context *r)
{
    launch_router of = router_of(o, r, o->in[2]);
    launched(o, launch_balance(r->stream, o->in[0]->type, at(o->out[0], r), &of, o->at.accumulate, at(o->scratch, r)));
}

void cuda_balance_grad(const op *o, const run_context *r)
{
    const launch_router of = router_of(o, r, o->in[3]);
    const launch_losses losses = {o->at.balance.load, o->at.balance.z};
    launched(o, launch_balance_grad(r->stream, o->in[0]->type, whole(o, o->out[0], r), whole(o, o->in[4], r),
                                    at(o->in[2], r), &of, &losses));
}
