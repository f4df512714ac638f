/* Sums of bits, to tell later whether bytes have changed: at the speed of memory, not against an adversary.
 *
 * Words of 64 bits are added up in 8 lanes, and so are the lanes' running sums (Fletcher): a change of one word always
 * changes the result, and others by chance of 2^-64. The same bytes give the same sum on every machine of one byte
 * order, whatever the threads.
 */
#pragma once

#include <stdint.h>

/* A sum of bytes in pieces, zeroed at first; the division into pieces makes no difference. */
typedef struct bits {
    uint64_t sum[8], running[8];
    char rest[64]; /* `held` bytes that have not been added yet */
    int held;
    int64_t bytes;
} bits;

void bits_add(bits *b, const void *data, int64_t bytes);
uint64_t bits_end(bits *b);

/* Sums a large array by several threads; the number differs from that of bits_end. */
uint64_t bits_sum(const void *data, int64_t bytes, int threads);
/* Mixes two numbers into one; all of its bits depend on all of theirs. */
uint64_t bits_mix(uint64_t a, uint64_t b);
