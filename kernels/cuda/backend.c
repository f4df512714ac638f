/* The backend `cuda`: the table of its kernels, built from the op table, and the working memory they want. */

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/host.h"
#include "kernels/table/elsewhere.h"

#define OP(name, ...) [OP_##name] = cuda_##name,
static const op_kernel kernels[OP_COUNT] = {
#include "kernels/table/ops.def"
};

static int64_t scratch_bytes(const op *o, int threads)
{
    int64_t ours = op_is(o, OP_CLASS_PRODUCT) ? gemm_workspace_bytes(o) : bind_scratch_bytes(o, threads);
    int64_t library = cudnn_scratch_bytes(o);
    return ours > library ? ours : library;
}

const op_backend backend_cuda = {.name = "cuda",
                                 .kernels = kernels,
                                 .scratch_bytes = scratch_bytes,
                                 .communicates = true,
                                 .device = DEVICES_ASSUMED};

#define OP(name, class, ...) ELSEWHERE_##class(cuda_##name)
#include "kernels/table/ops.def"
