#include "layers/layer.h"

tensor *layer_multiply(recorder *r, tensor *x, double multiplier)
{
    return multiplier != 0 ? record_scale(r, "multiply", x, multiplier) : x;
}

tensor *layer_norm(recorder *r, stream *s, const norm_layer *n, const layer_inputs *in)
{
    tensor *bias = n->bias ? recorder_weight(r, n->bias) : NULL;
    record_norm_of norm = {recorder_weight(r, n->weight), bias, in->epsilon};
    tensor *y = record_norm(r, "norm", &s->sum, s->sum, s->delta, norm);
    s->delta = NULL;
    return y;
}
