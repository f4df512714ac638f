/* Defines a token's place in a micro-batch, and which keys it sees as a query. A place is the token's index within the
 * micro-batch, where samples lie end to end. Recording, host and device share these rules. The kernels' oracle
 * (tests/oracle/) and cuDNN's graph of pointwise nodes (kernels/cuda/cudnn_graph.c) state them independently. Plain C
 * that is also C++ and CUDA.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/host_device.h"

/* The sample of a place; samples have `sequence` tokens. */
HOST_DEVICE_INLINE int64_t token_sample(int64_t place, int32_t sequence)
{
    return place / sequence;
}

/* The token's number in its sample. */
HOST_DEVICE_INLINE int64_t token_position(int64_t place, int32_t sequence)
{
    return place % sequence;
}

/* The window within samples of `sequence` tokens; 0: it hides no key. */
HOST_DEVICE_INLINE int32_t token_window(int64_t window, int64_t sequence)
{
    return window > 0 && window < sequence ? (int32_t)window : 0;
}

/* The first key that the query at a position sees, of those before it and itself: the last `window` (0: all), from its
 * document's first on. It does not fall as the position grows within a document. */
HOST_DEVICE_INLINE int32_t token_first_key(int32_t position, int32_t window, int32_t document_start)
{
    const int32_t low = window > 0 && position >= window ? position - window + 1 : 0;
    return document_start > low ? document_start : low;
}

/* The last key that the query at a position sees: its own. */
HOST_DEVICE_INLINE int32_t token_last_key(int32_t position)
{
    return position;
}

/* The first position with a query that sees the key, as far as no window or document hides it. */
HOST_DEVICE_INLINE int32_t token_first_query(int32_t key)
{
    return key;
}

/* True if the query at a position sees this key; `first_key` is the query's first. */
HOST_DEVICE_INLINE bool token_sees(int32_t position, int32_t first_key, int32_t key)
{
    return key >= first_key && key <= token_last_key(position);
}

/* Zig-zag shards (2407.21783): each rank that divides the tokens of a sample has two runs of it... */
enum { TOKEN_RUNS = 2 };

/* ... the i-th of all ranks' runs in the sample's order, and the i-th last. Returns the number of one of them. */
HOST_DEVICE_INLINE int32_t token_zigzag(int32_t rank, int32_t ranks, int32_t half)
{
    return half == 0 ? rank : TOKEN_RUNS * ranks - 1 - rank;
}
