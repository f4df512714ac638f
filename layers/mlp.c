#include "layers/layer.h"

tensor *layer_mlp(recorder *r, const mlp_layer *m, tensor *x)
{
    tensor *bias = m->up_bias ? recorder_weight(r, m->up_bias) : NULL;
    tensor *full = layer_enter(r, x);                                              /* [tokens, hidden] */
    tensor *h = record_linear(r, "mlp/up", full, recorder_weight(r, m->up), bias); /* columns over the ranks */
    tensor *a = m->exact    ? record_gelu_exact(r, "mlp/gelu", h)                  /* [tokens, ffn / tp] */
                : !m->gated ? record_gelu(r, "mlp/gelu", h)
                : m->gelu   ? record_geglu(r, "mlp/geglu", h)
                            : record_swiglu(r, "mlp/swiglu", h);
    tensor *down_bias = m->down_bias ? recorder_weight(r, m->down_bias) : NULL; /* on the group's first rank only */
    return layer_leave(r, record_linear(r, "mlp/down", a, recorder_weight(r, m->down), down_bias));
}
