#include "kernels/cuda/cuda.h"
#include "memory/log.h"

void cuda_launched(const op *o, int error)
{
    char text[256];
    MUST(error == 0, "%s: the launch failed with CUDA error %d", op_text(text, sizeof text, o), error);
}

void cuda_must_be_whole(const op *o, const tensor *t)
{
    char text[256];
    MUST(!t || tensor_contiguous(t), "%s: the kernel takes contiguous operands only", op_text(text, sizeof text, o));
}
