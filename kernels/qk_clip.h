/* QK-clip (2507.20534): where the largest score of a head exceeds a threshold, the rows of the weights that make its
 * queries and keys are scaled, so that the same tokens would reach the threshold and not more. Host, device and
 * reference share which rows those are. Plain C that is also C++ and CUDA.
 */
#ifndef PHALANX_KERNELS_QK_CLIP_H
#define PHALANX_KERNELS_QK_CLIP_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define QK_CLIP_INLINE static inline __host__ __device__
#else
#define QK_CLIP_INLINE static inline
#endif

/* The head whose factor a row takes, whole or as its root; -1: none. */
QK_CLIP_INLINE int32_t qk_clip_head(bool *whole, int64_t row, int32_t heads, int32_t blocks, int32_t size,
                                    int32_t last_whole)
{
    const int64_t block = row / size;
    *whole = row % size >= size - last_whole;
    return block < blocks ? (int32_t)(block % heads) : -1;
}

#endif
