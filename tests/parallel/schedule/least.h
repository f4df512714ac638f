/* The least that all members of an operation together must send. */
#pragma once

#include "parallel/comm/comm_shape.h"

/* All-reduce 2 (n-1) x bytes (a share of 2 (n-1)/n each), all-gather, reduce-scatter and broadcast (n-1) x bytes, send
 * its bytes. */
int64_t least_bytes(const comm_shape *shape);
