/* How a tensor is divided in the messages of compress and decompress. */
#pragma once

#include "kernels/table/op.h"

/* The number of parts into which the rows of x are divided, and the bytes of each in a message. */
static inline int compression_parts(const op *o, const tensor *x)
{
    return x->dims == 1 || o->where.owner >= 0 || o->where.rows > 0 ? 1 : o->where.group_size;
}

int64_t compression_part_bytes(const op *o, const tensor *x);
