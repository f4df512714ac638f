/* The CUDA implementations as an op_backend: a constant table, of use without a device (for planning). */
#ifndef PHALANX_KERNELS_CUDA_BACKEND_H
#define PHALANX_KERNELS_CUDA_BACKEND_H

#include "kernels/op.h"

extern const op_backend backend_cuda;

#endif
