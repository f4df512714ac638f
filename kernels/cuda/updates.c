#include "kernels/cuda/updates.h"

#include <nvtx3/nvToolsExt.h>

#include "kernels/cuda/cuda.h"
#include "memory/log.h"

static int type_of(const op *o)
{
    return o->out[0] ? o->out[0]->type : LAUNCH_FP32;
}

typedef int launcher(void *stream, int type, const launch_adamw_segment *segments, int count, const void *scalars,
                     const float *control);

/* Of the ops that the table marks OP_GROUPED. */
static launcher *const launchers[OP_COUNT] = {[OP_adamw] = launch_adamw};

void updates_launch(updates *u, const run_context *r)
{
    char text[256];
    if (u->held == 0)
        return;
    const op *o = u->of[0];
    nvtxRangePushA(o->label ? o->label : op_row_of(o)->name);
    MUST(launchers[o->kind], "%s has no launch of many", op_text(text, sizeof text, o));
    int error = launchers[o->kind](r->stream, type_of(o), u->at, u->held, tensor_at(o->in[1], r->arena),
                                   (const float *)tensor_at(o->in[2], r->arena));
    MUST(error == 0, "%s, and %d beside it: the launch failed with CUDA error %d", op_text(text, sizeof text, o),
         u->held - 1, error);
    nvtxRangePop();
    u->held = 0;
}

static bool together(const op *a, const op *b)
{
    return a->kind == b->kind && type_of(a) == type_of(b) && a->in[1] == b->in[1] && a->in[2] == b->in[2];
}

/* A tensor without gaps is one segment; otherwise its rows are. */
void updates_add(updates *u, const op *o, const run_context *r)
{
    const tensor *g = o->in[0], *all[5] = {g, o->out[0], o->out[1], o->out[2], o->out[3]};
    bool gaps = false;
    for (int i = 0; i < 5; i++)
        gaps = gaps || (all[i] && !tensor_contiguous(all[i]));
    int64_t rows = gaps ? g->shape[0] : 1, count = rows ? tensor_elements(g) / rows : 0;
    for (int64_t row = 0; row < rows; row++) {
        if (u->held == LAUNCH_ADAMW_SEGMENTS || (u->held && !together(u->of[0], o)))
            updates_launch(u, r);
        void *p[5] = {0};
        for (int i = 0; i < 5; i++)
            if (all[i])
                p[i] = (char *)tensor_at(all[i], r->arena) + row * all[i]->pitch * dtype_bytes((dtype)all[i]->type);
        u->of[u->held] = o;
        u->at[u->held++] = (launch_adamw_segment){p[0], p[1], p[2], p[3], p[4], count, o->at.decay, 0};
    }
}

void cuda_adamw(const op *o, const run_context *r)
{
    updates u = {0};
    updates_add(&u, o, r);
    updates_launch(&u, r);
}
