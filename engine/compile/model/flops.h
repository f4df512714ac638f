/* Floating-point operations of a model for one token: the sum over the products and the attention of what the decoder
 * records of one layer of each kind, of the head, and of the block behind the last layer. Element-wise work, biases and
 * the embedding's look-up do not count, nor does padding; causal attention counts the pairs that its mask and window
 * leave, documents aside.
 */
#pragma once

#include "models/shape.h"

/* Of one token's forward pass through a layer. */
typedef struct flops_layer {
    double products, attention;
} flops_layer;

typedef struct flops_model {
    flops_layer *kinds;
    int kind_count;
    int *kind_of;    /* [layers] which of `kinds` a layer is */
    int *per_kind;   /* [kind_count] layers of each */
    double head;     /* of one pass */
    flops_layer mtp; /* of the block behind the last layer, without the head, which reads it once more */
} flops_model;

/* `sequence`: tokens of a sample. Must be closed. */
void flops_open(flops_model *f, const model_shape *shape, int64_t sequence);
void flops_close(flops_model *f);
/* How many of the layers from `first` on, `count` of them, are of a kind. */
int flops_layers_of(const flops_model *f, int kind, int first, int count);
/* Of one token of training, over all ranks: the backward pass counts twice the forward pass. */
double flops_per_token(const model_shape *shape, int64_t sequence);
