/* QK-clip (2507.20534): where the largest score of a head exceeds a threshold, the rows of the weights that make its
 * queries and keys are scaled, so that the same tokens would reach the threshold and not more. Host, device and
 * reference share which rows those are. Plain C that is also C++ and CUDA.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/host_device.h"

/* The head whose factor a row takes, whole or as its root; -1: none. */
HOST_DEVICE_INLINE int32_t qk_clip_head(bool *whole, int64_t row, int32_t heads, int32_t blocks, int32_t size,
                                        int32_t last_whole)
{
    const int64_t block = row / size;
    *whole = row % size >= size - last_whole;
    return block < blocks ? (int32_t)(block % heads) : -1;
}
