/* The CUDA implementations as an op_backend: a constant table, of use without a device (for planning). */
#pragma once

#include "kernels/table/op.h"

extern const op_backend backend_cuda;
