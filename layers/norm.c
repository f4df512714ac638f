#include "layers/layer.h"

tensor *layer_multiply(recorder *r, tensor *x, double multiplier)
{
    return multiplier != 0 ? record_scale(r, "multiply", x, multiplier) : x;
}

static record_norm_of norm_with(recorder *r, const norm_layer *n, const layer_inputs *in)
{
    tensor *bias = n->bias ? recorder_weight(r, n->bias) : NULL;
    return (record_norm_of){recorder_weight(r, n->weight), bias, in->epsilon, n->offset};
}

tensor *layer_norm_of(recorder *r, const char *name, tensor *x, const norm_layer *n, const layer_inputs *in)
{
    return record_norm(r, name, NULL, x, NULL, norm_with(r, n, in));
}

tensor *layer_norm(recorder *r, stream *s, const norm_layer *n, const layer_inputs *in)
{
    if (!n->weight) {
        s->sum = s->delta ? record_add(r, "residual", s->sum, s->delta) : s->sum;
        s->delta = NULL;
        return s->sum;
    }
    tensor *y = record_norm(r, "norm", &s->sum, s->sum, s->delta, norm_with(r, n, in));
    s->delta = NULL;
    return y;
}
