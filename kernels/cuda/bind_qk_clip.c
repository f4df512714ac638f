/* QK-clip, from ops to launches. */
#include "kernels/cuda/bind.h"

void cuda_largest(const op *o, const run_context *r)
{
    const tensor *x = o->in[0];
    const bool rows = x->dims == 2;
    const launch_matrix all = {at(x, r), rows ? x->pitch : x->shape[0]};
    launched(o, launch_largest(r->stream, at(o->out[0], r), all, (launch_extent){o->out[0]->shape[0], x->shape[rows]},
                               o->at.accumulate != OP_WRITES));
}

void cuda_qk_factors(const op *o, const run_context *r)
{
    const tensor *peaks = o->in[0];
    const op_qk_clip *as = &o->at.qk;
    const launch_qk_factors of = {.peaks = whole(o, peaks, r),
                                  .peak_rows = peaks->shape[0],
                                  .layers = o->at.rows,
                                  .layer = o->at.first,
                                  .heads = as->heads,
                                  .blocks = as->blocks,
                                  .size = as->size,
                                  .whole = as->whole,
                                  .threshold = as->threshold};
    launched(o, launch_qk_clip(r->stream, at(o->out[0], r), o->out[0]->shape[0], &of));
}
