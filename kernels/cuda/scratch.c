#include <stddef.h>

#include "kernels/cuda/cuda.h"

int64_t bind_scratch_bytes(const op *o, int threads)
{
    static int64_t (*const of[OP_COUNT])(const op *) = {
        [OP_bias_grad] = cuda_bias_grad_scratch,
        [OP_rmsnorm_grad] = cuda_norm_grad_scratch,
        [OP_layernorm_grad] = cuda_norm_grad_scratch,
        [OP_head_norm_grad] = cuda_head_norm_grad_scratch,
        [OP_width_dots] = cuda_width_dots_scratch,
        [OP_embed_grad] = cuda_embed_grad_scratch,
        [OP_add_positions_grad] = cuda_embed_grad_scratch,
        [OP_attention_grad] = cuda_attention_grad_scratch,
        [OP_attention_sinks_grad] = cuda_attention_sinks_grad_scratch,
        [OP_cross_entropy] = cuda_cross_entropy_scratch,
        [OP_assign] = cuda_assign_scratch,
        [OP_slots] = cuda_slots_scratch,
        [OP_balance] = cuda_balance_scratch,
    };
    (void)threads;
    return of[o->kind] ? of[o->kind](o) : 0;
}
