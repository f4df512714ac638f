#include "engine/files/siphash.h"

#include <stdio.h>
#include <string.h>

typedef struct state {
    uint64_t a, b, c, d;
} state;

static uint64_t rotate(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static void mix(state *v, int rounds)
{
    for (int i = 0; i < rounds; i++) {
        v->a += v->b;
        v->c += v->d;
        v->b = rotate(v->b, 13) ^ v->a;
        v->d = rotate(v->d, 16) ^ v->c;
        v->a = rotate(v->a, 32);
        v->c += v->b;
        v->a += v->d;
        v->b = rotate(v->b, 17) ^ v->c;
        v->d = rotate(v->d, 21) ^ v->a;
        v->c = rotate(v->c, 32);
    }
}

static void take_word(state *v, uint64_t word)
{
    v->d ^= word;
    mix(v, 2);
    v->a ^= word;
}

/* Words are little-endian, as on all machines that phalanx runs on. */
void siphash_text(char out[SIPHASH_TEXT], const uint8_t key[SIPHASH_KEY], const void *data, int64_t bytes)
{
    const uint8_t *from = data;
    uint64_t k[2], word, result[2];
    memcpy(k, key, sizeof k);
    state v = {k[0] ^ 0x736f6d6570736575u, k[1] ^ 0x646f72616e646f6du ^ 0xee, k[0] ^ 0x6c7967656e657261u,
               k[1] ^ 0x7465646279746573u};
    for (int64_t at = 0; at + 8 <= bytes; at += 8) {
        memcpy(&word, from + at, sizeof word);
        take_word(&v, word);
    }
    word = 0;
    if (bytes % 8)
        memcpy(&word, from + bytes / 8 * 8, (size_t)(bytes % 8));
    take_word(&v, word | (uint64_t)bytes << 56);
    v.c ^= 0xee;
    mix(&v, 4);
    result[0] = v.a ^ v.b ^ v.c ^ v.d;
    v.b ^= 0xdd;
    mix(&v, 4);
    result[1] = v.a ^ v.b ^ v.c ^ v.d;
    for (int i = 0; i < 16; i++)
        snprintf(out + 2 * i, 3, "%02x", (unsigned)(result[i / 8] >> 8 * (i % 8) & 0xff));
}
