/* QK-clip in float64: see reference.h. */
#include "tests/oracle/reference.h"

#include <math.h>

void reference_max_logit(const op *o, const run_context *r)
{
    const tensor *x = o->in[0];
    const bool rows = x->dims == 2;
    for (int64_t i = 0; i < o->out[0]->shape[0]; i++) {
        double *y = reference_row(o->out[0], r, i), most = o->at.accumulate ? *y : -INFINITY;
        for (int64_t j = 0; j < x->shape[rows]; j++)
            most = fmax(most, rows ? reference_row(x, r, i)[j] : *reference_row(x, r, j));
        *y = most;
    }
}

/* Row by row, from the paper: gamma = threshold / S of a head whose largest score S is above the threshold. */
void reference_qk_factors(const op *o, const run_context *r)
{
    const op_qk_clip *as = &o->at.qk;
    for (int64_t row = 0; row < o->out[0]->shape[0]; row++) {
        double *factor = reference_row(o->out[0], r, row), most = 0;
        *factor = 1;
        if (row >= (int64_t)as->blocks * as->size)
            continue;
        for (int64_t i = 0; i < o->in[0]->shape[0]; i++)
            if (i % o->at.qk.layers == o->at.qk.layer)
                most = fmax(most, reference_row(o->in[0], r, i)[row / as->size % as->heads]);
        if (most <= (double)as->threshold || isinf(most))
            continue;
        const double gamma = (double)as->threshold / most;
        *factor = row % as->size < as->size - as->whole ? sqrt(gamma) : gamma;
    }
}
