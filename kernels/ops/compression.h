/* How a tensor is divided in the messages of compress and decompress. */
#pragma once

#include "kernels/table/op.h"

/* The number of parts into which the rows of x are divided, and the bytes of each in a message. */
int compression_parts(const op *o, const tensor *x);
int64_t compression_part_bytes(const op *o, const tensor *x);
