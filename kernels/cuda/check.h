/* What `phalanx bench --self-check` asks of the CUDA device beside its ops: versions, limits, each instruction that
 * device.cuh writes in PTX, and kinds of memory. */
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/cudnn.h"
#include "kernels/device.h"

typedef struct check_of {
    const struct cudaDeviceProp *properties;
    const cudnn *cudnn;
    cudaStream_t stream; /* of the ops */
} check_of;

/* Takes some MiB of device and host memory for as long as it lasts. */
void check_all(const check_of *of, device_say *say, void *context);
