/* Computes `attention` and `attention_grad` by cuDNN, where timing finds a candidate faster than ours.
 *
 * A `cudnn` owns the library's handle, a plan for each distinct shape, offered to `tuning`, and for each op the
 * packs of addresses that the library is called with; they live until cudnn_close, which comes after the last use of
 * the tuning. Both ops keep to the same meaning of lse (natural logarithm of the sum of exponentials of scaled scores),
 * so that each is chosen by itself.
 */
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/tuning.h"

typedef struct cudnn cudnn;

typedef struct cudnn_options {
    tuning *tuning;
    cudaStream_t stream; /* the ops' stream */
    int gpu;             /* its number */
    int major, minor;    /* its compute capability */
    bool varies;         /* kernels that sum in any order may be taken */
} cudnn_options;

/* Bytes of o->scratch that the library may use; 0 for an op that it does not take. Needs no device. */
int64_t cudnn_scratch_bytes(const op *o);
/* Sets *out to NULL on a machine without a working cuDNN. */
void cudnn_open(cudnn **out, const cudnn_options *with);
void cudnn_close(cudnn *c);
/* Writes its version, or why it is missing (false); `c` may be NULL. */
bool cudnn_words(char *out, int bytes, const cudnn *c);
/* Must be called before the first op is prepared; `c` may be NULL. */
void cudnn_use_arena(cudnn *c, char *arena);
/* Sets o->prepared where the library has a candidate for `o`, else to NULL. */
void cudnn_prepare_on(cudnn *c, op *o);
