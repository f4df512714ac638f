/* Maps heads of queries to the heads of keys and values that they read, where there are fewer of the latter
 * (2305.13245): neighbours share one. Recording, host and device share this. The kernels' oracle (tests/oracle/) states
 * it independently. Plain C that is also C++ and CUDA.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/host_device.h"

/* True if the heads of queries can be divided among the heads of keys. */
HOST_DEVICE_INLINE bool heads_divide(int32_t heads, int32_t kv_heads)
{
    return heads > 0 && kv_heads > 0 && heads % kv_heads == 0;
}

/* The number of query heads that read one head of keys and values. */
HOST_DEVICE_INLINE int32_t heads_sharing(int32_t heads, int32_t kv_heads)
{
    return heads / kv_heads;
}

/* The head of keys and values that this head of queries reads. */
HOST_DEVICE_INLINE int32_t heads_read(int32_t head, int32_t heads, int32_t kv_heads)
{
    return head / heads_sharing(heads, kv_heads);
}

/* The first head of queries that reads this head of keys and values; the next one's follow. */
HOST_DEVICE_INLINE int32_t heads_first(int32_t kv_head, int32_t heads, int32_t kv_heads)
{
    return kv_head * heads_sharing(heads, kv_heads);
}

/* The number of heads on each rank that divides them; where there are more ranks than heads, neighbours have the same
 * one. */
HOST_DEVICE_INLINE int32_t heads_of_rank(int32_t heads, int32_t ranks)
{
    return heads > ranks ? heads / ranks : 1;
}

/* The number of ranks that have the same heads. */
HOST_DEVICE_INLINE int32_t heads_copies(int32_t heads, int32_t ranks)
{
    return ranks > heads ? ranks / heads : 1;
}

/* QK-clip (2507.20534): where the max logit of a head exceeds a threshold, the rows of the weights that make its
 * queries and keys are scaled, so that the same tokens would reach the threshold and not more. Returns the head that
 * gives a row its factor, whole or as its root; -1: none. */
HOST_DEVICE_INLINE int32_t heads_of_clipped_row(bool *whole, int64_t row, int32_t heads, int32_t blocks, int32_t size,
                                                int32_t last_whole)
{
    const int64_t block = row / size;
    *whole = row % size >= size - last_whole;
    return block < blocks ? (int32_t)(block % heads) : -1;
}

/* Tells which heads have fused attention kernels on GPUs (kernels/cuda/flash_forward.cu, flash_backward.cu), in 16
 * bits. Other heads are computed by a warp for each query (kernels/cuda/attention.cu), about fifty times slower, where
 * cuDNN does not take them, which wants multiples of HEADS_CUDNN_MULTIPLE of at most HEADS_CUDNN_MOST. */
enum { HEADS_CUDNN_MULTIPLE = 8, HEADS_CUDNN_MOST = 256 };

/* `size`: elements of a head of q and k; `v_size`: elements of a head of v. */
static inline bool heads_are_fused(int size, int v_size)
{
    if (size == 192)
        return v_size == 128;
    return size == v_size && (size == 64 || size == 80 || size == 96 || size == 128 || size == 256);
}

static inline bool heads_suit_cudnn(int size)
{
    return size % HEADS_CUDNN_MULTIPLE == 0 && size <= HEADS_CUDNN_MOST;
}
