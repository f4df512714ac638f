/* For which heads phalanx has fused attention kernels on GPUs (kernels/cuda/flash_forward.cu, flash_backward.cu), in 16
 * bits. Other heads are computed by a warp for each query (kernels/cuda/attention.cu), about fifty times slower, where
 * cuDNN does not take them, which wants multiples of ATTENTION_CUDNN_MULTIPLE of at most ATTENTION_CUDNN_MOST. */
#pragma once

#include <stdbool.h>

enum { ATTENTION_CUDNN_MULTIPLE = 8, ATTENTION_CUDNN_MOST = 256 };

/* `size`: elements of a head of q and k; `v_size`: of v. */
static inline bool attention_is_fused(int size, int v_size)
{
    if (size == 192)
        return v_size == 128;
    return size == v_size && (size == 64 || size == 80 || size == 96 || size == 128 || size == 256);
}

static inline bool attention_suits_cudnn(int size)
{
    return size % ATTENTION_CUDNN_MULTIPLE == 0 && size <= ATTENTION_CUDNN_MOST;
}
