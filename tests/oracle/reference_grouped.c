/* Experts' products in float64: see reference.h. */
#include "tests/oracle/reference.h"

/* The expert that has row r; -1: none. */
static int64_t expert_of(const tensor *of, const run_context *r, int64_t row)
{
    const int32_t *offsets = tensor_at(of, r->arena);
    for (int64_t e = 0; e + 1 < of->shape[0]; e++)
        if (row >= offsets[e] && row < offsets[e + 1])
            return e;
    return -1;
}

void reference_grouped_linear(const op *o, const run_context *r)
{
    const tensor *x = o->in[0], *w = o->in[1], *y = o->out[0];
    for (int64_t i = 0; i < y->shape[0]; i++) {
        int64_t e = expert_of(o->in[2], r, i);
        for (int64_t n = 0; n < y->shape[1]; n++) {
            double sum = e >= 0 && o->in[3] ? reference_row(o->in[3], r, e * y->shape[1] + n)[0] : 0;
            for (int64_t c = 0; e >= 0 && c < x->shape[1]; c++)
                sum += reference_row(x, r, i)[c] * reference_row(w, r, e * y->shape[1] + n)[c];
            reference_row(y, r, i)[n] = sum;
        }
    }
}

void reference_grouped_linear_grad_input(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0], *w = o->in[1], *dx = o->out[0];
    for (int64_t i = 0; i < dx->shape[0]; i++) {
        int64_t e = expert_of(o->in[2], r, i);
        for (int64_t c = 0; c < dx->shape[1]; c++) {
            double sum = 0;
            for (int64_t n = 0; e >= 0 && n < dy->shape[1]; n++)
                sum += reference_row(dy, r, i)[n] * reference_row(w, r, e * dy->shape[1] + n)[c];
            reference_row(dx, r, i)[c] = sum;
        }
    }
}

void reference_grouped_linear_grad_weight(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0], *x = o->in[1], *dw = o->out[0];
    for (int64_t i = 0; i < dw->shape[0]; i++)
        for (int64_t c = 0; c < dw->shape[1]; c++)
            reference_row(dw, r, i)[c] = o->at.accumulate ? reference_row(dw, r, i)[c] : 0;
    for (int64_t i = 0; i < x->shape[0]; i++) {
        int64_t e = expert_of(o->in[2], r, i);
        for (int64_t n = 0; e >= 0 && n < dy->shape[1]; n++)
            for (int64_t c = 0; c < x->shape[1]; c++)
                reference_row(dw, r, e * dy->shape[1] + n)[c] += reference_row(dy, r, i)[n] * reference_row(x, r, i)[c];
    }
}

void reference_grouped_bias_grad(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0], *db = o->out[0];
    for (int64_t i = 0; i < db->shape[0]; i++)
        reference_row(db, r, i)[0] = o->at.accumulate ? reference_row(db, r, i)[0] : 0;
    for (int64_t i = 0; i < dy->shape[0]; i++) {
        int64_t e = expert_of(o->in[1], r, i);
        for (int64_t n = 0; e >= 0 && n < dy->shape[1]; n++)
            reference_row(db, r, e * dy->shape[1] + n)[0] += reference_row(dy, r, i)[n];
    }
}
