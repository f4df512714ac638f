/* How an error of the CUDA runtime dies: for the host files of the device. */
#pragma once

#include <cuda_runtime_api.h>

#include "memory/log.h"

#define CUDA_MUST(call)                                                                                                \
    do {                                                                                                               \
        cudaError_t cuda_must_ = (call);                                                                               \
        MUST(cuda_must_ == cudaSuccess, "%s: %s", #call, cudaGetErrorString(cuda_must_));                              \
    } while (0)
