/* Routing and experts' products, from ops to launches. */
#include <string.h>

#include "kernels/cuda/bind.h"
#include "kernels/grouped.h"

_Static_assert((int)LAUNCH_EXPERTS == (int)ROUTING_EXPERTS && (int)ROUTING_ACTIVE <= 32,
               "kernels have room for all experts, and a lane for each of a token's");

/* An absent one is NULL. */
static launch_matrix matrix_or_none(const tensor *t, const run_context *r)
{
    return t ? matrix(t, r) : (launch_matrix){0};
}

static launch_routing routing_of(const op *o)
{
    const op_routing *as = &o->at.routing;
    return (launch_routing){.experts = as->experts,
                            .active = as->active,
                            .groups = as->groups,
                            .groups_kept = as->groups_kept,
                            .group_best = as->group_best,
                            .scale = as->scale,
                            .sigmoid = as->sigmoid,
                            .renormalise = as->renormalise};
}

void cuda_route(const op *o, const run_context *r)
{
    const tensor *logits = o->in[0];
    launched(o, launch_route(r->stream, logits->type, whole(o, o->out[0], r), whole(o, o->out[1], r), matrix(logits, r),
                             at(o->in[1], r), logits->shape[0], routing_of(o)));
}

void cuda_route_grad(const op *o, const run_context *r)
{
    const tensor *logits = o->in[1];
    launch_route_grad in = {.dlogits = matrix(o->out[0], r),
                            .logits = matrix(logits, r),
                            .addend = matrix_or_none(o->in[4], r),
                            .dweights = whole(o, o->in[0], r),
                            .weights = whole(o, o->in[3], r),
                            .experts = whole(o, o->in[2], r)};
    launched(o, launch_route_slopes(r->stream, logits->type, in, logits->shape[0], routing_of(o)));
}

void cuda_assign(const op *o, const run_context *r)
{
    const tensor *experts = o->in[0];
    launch_assign_in in = {.experts = whole(o, experts, r),
                           .assignments = tensor_elements(experts),
                           .skip = o->at.routing.skip,
                           .rows = o->at.rows,
                           .first = (int32_t)o->at.first,
                           .local = o->at.routing.local,
                           .scratch = at(o->scratch, r)};
    launched(o, launch_assign(r->stream, whole(o, o->out[0], r), at(o->out[1], r), in));
}

void cuda_slots(const op *o, const run_context *r)
{
    const tensor *experts = o->in[0];
    launch_assign_in in = {.experts = whole(o, experts, r),
                           .assignments = tensor_elements(experts),
                           .skip = o->at.routing.skip,
                           .rows = o->at.rows,
                           .first = o->at.routing.experts,
                           .local = o->at.routing.slots,
                           .scratch = at(o->scratch, r)};
    launched(o, launch_slots(r->stream, whole(o, o->out[0], r), whole(o, o->out[1], r), at(o->out[2], r), in));
}

void cuda_overflow(const op *o, const run_context *r)
{
    const tensor *experts = o->in[0];
    const op_ladder *as = &o->at.ladder;
    launch_overflow_in in = {.experts = whole(o, experts, r),
                             .assignments = tensor_elements(experts),
                             .first = (int32_t)o->at.first,
                             .local = as->local,
                             .rung = as->rung,
                             .slots = as->slots,
                             .experts_divided = as->experts,
                             .add = o->at.accumulate != OP_WRITES};
    _Static_assert(sizeof in.room == sizeof as->room, "as many rungs");
    memcpy(in.room, as->room, sizeof in.room);
    launched(o, launch_overflow(r->stream, at(o->out[0], r), in));
}

/* offsets, weights: NULL where the kernel reads none */
static launch_places places_of(const op *o, const run_context *r, const tensor *places, const tensor *offsets,
                               const tensor *weights)
{
    return (launch_places){.places = whole(o, places, r),
                           .weights = whole(o, weights, r),
                           .offsets = at(offsets, r),
                           .tokens = places->shape[0],
                           .active = places->shape[1],
                           .experts = offsets ? offsets->shape[0] - 1 : 0,
                           .slots = o->at.routing.slots};
}

void cuda_dispatch(const op *o, const run_context *r)
{
    const tensor *x = o->in[0], *rows = o->out[0];
    launched(o, launch_dispatch(r->stream, x->type, matrix(rows, r), matrix(x, r),
                                places_of(o, r, o->in[1], o->in[2], o->in[3]), extent_of(rows)));
}

void cuda_combine(const op *o, const run_context *r)
{
    const tensor *rows = o->in[0], *y = o->out[0];
    launched(o, launch_combine(r->stream, y->type, matrix(y, r), matrix(rows, r), matrix_or_none(o->in[4], r),
                               places_of(o, r, o->in[1], NULL, o->in[3]), y->shape[1]));
}

void cuda_combine_dots(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0], *rows = o->in[1];
    launched(o, launch_combine_dots(r->stream, dy->type, whole(o, o->out[0], r), matrix(dy, r), matrix(rows, r),
                                    places_of(o, r, o->in[2], NULL, NULL), dy->shape[1]));
}

/* ---- products -------------------------------------------------------------------------------------------------- */

static launch_grouped grouped(const op *o, const run_context *r)
{
    grouped_product p = grouped_of(o);
    return (launch_grouped){.a = matrix(p.a, r),
                            .b = matrix(p.b, r),
                            .c = matrix(p.c, r),
                            .offsets = at(p.offsets, r),
                            .experts = (int32_t)p.experts,
                            .rows = p.rows,
                            .m = p.m,
                            .n = p.n,
                            .k = p.k,
                            .bias = at(p.bias, r)};
}

void cuda_grouped_linear(const op *o, const run_context *r)
{
    launch_grouped of = grouped(o, r);
    launched(o, launch_grouped_rows(r->stream, o->in[0]->type, &of, false));
}

void cuda_grouped_linear_grad_input(const op *o, const run_context *r)
{
    launch_grouped of = grouped(o, r);
    launched(o, launch_grouped_rows(r->stream, o->in[0]->type, &of, true));
}

void cuda_grouped_linear_grad_weight(const op *o, const run_context *r)
{
    launch_grouped of = grouped(o, r);
    launched(o, launch_grouped_sums(r->stream, o->in[0]->type, &of, o->at.accumulate));
}

void cuda_grouped_bias_grad(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0];
    launched(o, launch_grouped_column_sums(r->stream, dy->type, at(o->out[0], r), matrix(dy, r), at(o->in[1], r),
                                           (launch_extent){o->in[1]->shape[0] - 1, dy->shape[1]}, o->at.accumulate));
}
