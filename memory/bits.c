#include "memory/bits.h"

#include <string.h>

enum { LANES = 8, STRIDE = 64, BLOCK = 1 << 20 }; /* words; bytes; bytes */

uint64_t bits_mix(uint64_t a, uint64_t b)
{
    /* the finalizer of splitmix64 */
    uint64_t x = a + 0x9e3779b97f4a7c15u * (b + 1);
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void add_lanes(bits *b, const char *at)
{
    uint64_t words[LANES];
    memcpy(words, at, sizeof words);
    for (int i = 0; i < LANES; i++) {
        b->sum[i] += words[i];
        b->running[i] += b->sum[i];
    }
}

void bits_add(bits *b, const void *data, int64_t bytes)
{
    const char *at = data, *end = at + bytes;
    b->bytes += bytes;
    if (b->held > 0) {
        int64_t more = STRIDE - b->held < bytes ? STRIDE - b->held : bytes;
        memcpy(b->rest + b->held, at, (size_t)more);
        b->held += (int)more;
        at += more;
        if (b->held < STRIDE)
            return;
        add_lanes(b, b->rest);
        b->held = 0;
    }
    for (; end - at >= STRIDE; at += STRIDE)
        add_lanes(b, at);
    b->held = (int)(end - at);
    if (b->held > 0)
        memcpy(b->rest, at, (size_t)b->held);
}

uint64_t bits_end(bits *b)
{
    uint64_t all = (uint64_t)b->bytes;
    if (b->held > 0) {
        memset(b->rest + b->held, 0, (size_t)(STRIDE - b->held));
        add_lanes(b, b->rest);
    }
    for (int i = 0; i < LANES; i++)
        all = bits_mix(bits_mix(all, b->sum[i]), b->running[i]);
    return all;
}

uint64_t bits_sum(const void *data, int64_t bytes, int threads)
{
    int64_t blocks = (bytes + BLOCK - 1) / BLOCK;
    uint64_t all = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : all) schedule(static) if (threads > 1 && blocks > 1)
    for (int64_t i = 0; i < blocks; i++) {
        int64_t size = bytes - i * BLOCK < BLOCK ? bytes - i * BLOCK : BLOCK;
        bits b = {0};
        bits_add(&b, (const char *)data + i * BLOCK, size);
        all += bits_mix(bits_end(&b), (uint64_t)i);
    }
    return all;
}
