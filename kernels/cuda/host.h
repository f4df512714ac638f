/* Parts of the device's host side that device.c puts together, each in the file of its name, and how an error of the
 * CUDA runtime dies.
 *
 * `gemm` holds an opened device's state of cuBLASLt: the library's handle, and a plan (descriptors and algorithms) for
 * each distinct shape, which ops share and `tuning` may time. Plans belong to the gemm and live until gemm_close, which
 * comes after the last use of the tuning.
 */
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device.h"
#include "memory/log.h"

#define CUDA_MUST(call)                                                                                                \
    do {                                                                                                               \
        cudaError_t cuda_must_ = (call);                                                                               \
        MUST(cuda_must_ == cudaSuccess, "%s: %s", #call, cudaGetErrorString(cuda_must_));                              \
    } while (0)

typedef struct gemm gemm;
struct tuning;

/* Bytes of o->scratch that the library may use as its workspace; 0 for ops other than products. Needs no device. */
int64_t gemm_workspace_bytes(const op *o);
status gemm_open(gemm **out, bool tf32, struct tuning *t);
void gemm_close(gemm *g);
/* Prepares descriptors and an algorithm for `o`, with operands in the arena at `arena`: sets o->prepared. */
status gemm_prepare_on(gemm *g, op *o, char *arena);

/* Self-checks beside the ops: versions, limits, each instruction that device.cuh writes in PTX, and kinds of memory. */
typedef struct check {
    const struct cudaDeviceProp *properties;
    const struct cudnn *cudnn;
    cudaStream_t stream; /* the ops' stream */
    device_say *say;
    void *context;
} check;

/* Runs the checks; they take some MiB of device and host memory meanwhile. */
void check_all(const check *c);
