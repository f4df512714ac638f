/* Where a token of a micro-batch is, and which keys it sees as a query. A token's place is its index within the
 * micro-batch, whose samples lie end to end. Recording, host and device share these rules; the float64 reference
 * (tests/oracle/) and cuDNN's graph (kernels/cuda/cudnn_graph.c) state them in their own ways. Plain C that is also C++
 * and CUDA.
 */
#ifndef PHALANX_KERNELS_TOKEN_H
#define PHALANX_KERNELS_TOKEN_H

#include <stdint.h>

#ifdef __CUDACC__
#define TOKEN_INLINE static inline __host__ __device__
#else
#define TOKEN_INLINE static inline
#endif

/* The sample of a place, of samples of so many tokens. */
TOKEN_INLINE int64_t token_sample(int64_t place, int32_t sequence)
{
    return place / sequence;
}

/* The token's number in its sample. */
TOKEN_INLINE int64_t token_position(int64_t place, int32_t sequence)
{
    return place % sequence;
}

/* A window as it narrows samples of so many tokens; 0: it hides no key. */
TOKEN_INLINE int32_t token_window(int64_t window, int64_t sequence)
{
    return window > 0 && window < sequence ? (int32_t)window : 0;
}

/* The first key that the query at a position sees, of those before it and itself: the last `window` (0: all), from its
 * document's first on. It does not fall as the position grows within a document. */
TOKEN_INLINE int32_t token_first_key(int32_t position, int32_t window, int32_t document_start)
{
    const int32_t low = window > 0 && position >= window ? position - window + 1 : 0;
    return document_start > low ? document_start : low;
}

/* Ranks that divide the tokens of a sample in halves (2407.21783) have so many runs of it each... */
enum { TOKEN_HALVES = 2 };

/* ... of all of theirs, in the order of the sample, this one: the i-th and the i-th last. */
TOKEN_INLINE int32_t token_half(int32_t rank, int32_t ranks, int32_t half)
{
    return half == 0 ? rank : TOKEN_HALVES * ranks - 1 - rank;
}

#endif
