
#include <nvtx3/nvToolsExt.h>

#include "kernels/cuda/cuda.h"
#include "kernels/table/precision.h"
#include "memory/log.h"

/* The kernel's rule for each op of the class UPDATE. */
static const int RULES[OP_COUNT] = {
#define UPDATE(name) [OP_##name] = LAUNCH_##name,
#include "kernels/table/updates.def"
};

/* The type of the weights, if the op has any besides the fp32 masters. */
static int type_of(const op *o)
{
    return o->out[0] ? o->out[0]->type : DTYPE_FP32;
}

void updates_launch(updates *u, const run_context *r)
{
    char text[256];
    if (u->held == 0)
        return;
    const op *o = u->of[0];
    nvtxRangePushA(o->label ? o->label : op_row_of(o)->name);
    int error = launch_update(r->stream, RULES[o->kind], type_of(o), u->at, u->held, tensor_at(o->in[1], r->arena),
                              (const float *)tensor_at(o->in[2], r->arena));
    MUST(error == 0, "%s, and %d beside it: the launch failed with CUDA error %d", op_text(text, sizeof text, o),
         u->held - 1, error);
    nvtxRangePop();
    u->held = 0;
}

/* The address of row `row` of operand t; NULL if absent. */
static void *row_at(const tensor *t, const run_context *r, int64_t row)
{
    return t ? (char *)tensor_at(t, r->arena) + row * t->pitch * dtype_bytes((dtype)t->type) : NULL;
}

/* Ops without a weight: their output x takes the master's place. */
static const bool WEIGHTLESS[OP_COUNT] = {[OP_muon_momentum] = true};

static launch_update_segment segment(const op *o, const run_context *r, int64_t row, int64_t count)
{
    bool weighs = !WEIGHTLESS[o->kind];
    tensor *const *out = o->out + weighs;
    return (launch_update_segment){.gradient = row_at(o->in[0], r, row),
                                   .factors = row_at(o->in[3], r, row),
                                   .weight = weighs ? row_at(o->out[0], r, row) : NULL,
                                   .master = row_at(out[0], r, row),
                                   .state = {row_at(out[1], r, row), row_at(out[2], r, row)},
                                   .count = count,
                                   .scale = o->at.update.scale,
                                   .decay = o->at.update.decay,
                                   .nesterov = o->at.update.nesterov,
                                   .narrow_master = precision_is_narrow((dtype)out[0]->type),
                                   .narrow_state = out[1] && precision_is_narrow((dtype)out[1]->type),
                                   .site = (uint16_t)(o->at.update.rounding_site + weighs),
                                   .stream = o->at.update.stream,
                                   .first = o->at.update.first_element + row * o->at.update.stride,
                                   .stride = o->at.update.stride,
                                   .columns = o->in[0]->dims > 1 ? o->in[0]->shape[1] : count};
}

/* Adds a segment for a tensor without gaps, otherwise one for each of its rows. */
void updates_add(updates *u, const op *o, const run_context *r)
{
    const tensor *g = o->in[0];
    bool gaps = !tensor_contiguous(g);
    for (int i = 0; i < OP_MAX_OUT; i++)
        gaps = gaps || (o->out[i] && !tensor_contiguous(o->out[i]));
    int64_t rows = gaps ? g->shape[0] : 1, count = rows ? tensor_elements(g) / rows : 0;
    for (int64_t row = 0; row < rows; row++) {
        if (u->held == LAUNCH_UPDATE_SEGMENTS ||
            (u->held && (u->of[0]->kind != o->kind || type_of(u->of[0]) != type_of(o) || u->of[0]->in[1] != o->in[1] ||
                         u->of[0]->in[2] != o->in[2])))
            updates_launch(u, r);
        u->of[u->held] = o;
        u->at[u->held++] = segment(o, r, row, count);
    }
}

/* Runs one op alone, for a test. */
static void alone(const op *o, const run_context *r)
{
    updates u = {0};
    updates_add(&u, o, r);
    updates_launch(&u, r);
}

#define UPDATE(name) CUDA_OP(name, alone(o, r))
#include "kernels/table/updates.def"
