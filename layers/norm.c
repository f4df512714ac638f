#include "layers/layer.h"

tensor *layer_norm(recorder *r, stream *s, const norm_layer *n, const layer_inputs *in)
{
    tensor *bias = n->bias ? recorder_weight(r, n->bias) : NULL;
    tensor *y = record_norm(r, "norm", &s->sum, s->sum, s->delta, recorder_weight(r, n->weight), bias, in->epsilon);
    s->delta = NULL;
    return y;
}
