/* Replaces ../cudnn*.c in a build without cuDNN's headers: our own kernels compute attention. */
#include "kernels/cuda/cudnn.h"

#include <stdio.h>

int64_t cudnn_scratch_bytes(const op *o)
{
    (void)o;
    return 0;
}

void cudnn_open(cudnn **out, const cudnn_options *with)
{
    (void)with;
    *out = NULL;
}

void cudnn_close(cudnn *c)
{
    (void)c;
}

void cudnn_use_arena(cudnn *c, char *arena)
{
    (void)c, (void)arena;
}

bool cudnn_words(char *out, int bytes, const cudnn *c)
{
    (void)c;
    snprintf(out, (size_t)bytes, "this build found no headers of cuDNN");
    return false;
}

void cudnn_prepare_on(cudnn *c, op *o)
{
    (void)c;
    o->prepared = NULL;
}
