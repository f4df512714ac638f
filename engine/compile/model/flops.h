/* Floating-point operations of a model for one token: the sum over the products and the attention that the decoder
 * records for one layer of each kind, the head, and the MTP module. Element-wise work, biases, the embedding's look-up
 * and padding do not count; causal attention counts the pairs that its mask and window leave, documents aside. */
#pragma once

#include "models/shape.h"

/* FLOPs of one token's forward pass through a layer. */
typedef struct flops_layer {
    double products, attention;
} flops_layer;

typedef struct flops_model {
    flops_layer *kinds;
    int kind_count;
    int *kind_of;    /* [layers] which of `kinds` a layer is */
    int *per_kind;   /* [kind_count] layers of each */
    double head;     /* FLOPs of one pass over the head */
    flops_layer mtp; /* the MTP module, without the head, which it applies once more */
} flops_model;

/* `sequence`: tokens of a sample. Must be closed. */
void flops_open(flops_model *f, const model_shape *shape, int64_t sequence);
void flops_close(flops_model *f);
/* How many of the layers from `first` on, `count` of them, are of a kind. */
int flops_layers_of(const flops_model *f, int kind, int first, int count);
/* Training FLOPs per token over all ranks: the backward pass counts twice the forward pass. */
double flops_per_token(const model_shape *shape, int64_t sequence);
