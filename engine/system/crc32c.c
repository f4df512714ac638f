#include "engine/system/crc32c.h"

#include <string.h>

/* Remainders of each value of the low four bits: four steps of the polynomial division at once. */
static const uint32_t nibbles[16] = {
    0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
    0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
};

uint32_t crc32c_software(uint32_t crc, const void *data, int64_t bytes)
{
    const uint8_t *p = data;
    crc = ~crc;
    for (int64_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        crc = crc >> 4 ^ nibbles[crc & 15];
        crc = crc >> 4 ^ nibbles[crc & 15];
    }
    return ~crc;
}

/* Multiplies two polynomials modulo the checksum's; bit 31 is the coefficient of x^0. */
static uint32_t multiply_polynomials(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1 ? b >> 1 ^ 0x82f63b78u : b >> 1;
    }
    return product;
}

#ifdef __x86_64__
/* The instruction has three times its throughput as latency: three lanes at once, joined as crc32c_combine does. */
enum { LANE = 4096 };
#define BEHIND_ONE 0x35d73a62u /* x^(8 LANE) */
#define BEHIND_TWO 0x28461564u /* x^(16 LANE) */

__attribute__((target("sse4.2"))) static uint64_t three_lanes(uint64_t crc, const uint8_t *p)
{
    uint64_t a = crc, b = 0, c = 0, word[3];
    for (int i = 0; i < LANE; i += 8) {
        memcpy(&word[0], p + i, 8);
        memcpy(&word[1], p + LANE + i, 8);
        memcpy(&word[2], p + 2 * LANE + i, 8);
        a = __builtin_ia32_crc32di(a, word[0]);
        b = __builtin_ia32_crc32di(b, word[1]);
        c = __builtin_ia32_crc32di(c, word[2]);
    }
    return multiply_polynomials((uint32_t)a, BEHIND_TWO) ^ multiply_polynomials((uint32_t)b, BEHIND_ONE) ^ (uint32_t)c;
}

__attribute__((target("sse4.2"))) static uint32_t hardware(uint32_t crc, const uint8_t *p, int64_t bytes)
{
    uint64_t wide = (uint32_t)~crc;
    for (; bytes >= 3 * LANE; bytes -= 3 * LANE, p += 3 * LANE)
        wide = three_lanes(wide, p);
    for (; bytes >= 8; bytes -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, sizeof word);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    uint32_t narrow = (uint32_t)wide;
    for (; bytes > 0; bytes--, p++)
        narrow = __builtin_ia32_crc32qi(narrow, *p);
    return ~narrow;
}

uint32_t crc32c(uint32_t crc, const void *data, int64_t bytes)
{
    return __builtin_cpu_supports("sse4.2") ? hardware(crc, data, bytes) : crc32c_software(crc, data, bytes);
}
#else
uint32_t crc32c(uint32_t crc, const void *data, int64_t bytes)
{
    return crc32c_software(crc, data, bytes);
}
#endif

/* ---- combination ---- */

/* Returns a x^(8 n) + b for a followed by 8 n more bits; powers by squaring. */
uint32_t crc32c_combine(uint32_t a, uint32_t b, int64_t b_bytes)
{
    uint32_t power = 1u << 31, square = 1u << 23; /* x^0, x^8 */
    for (uint64_t n = (uint64_t)b_bytes; n; n >>= 1) {
        if (n & 1)
            power = multiply_polynomials(square, power);
        square = multiply_polynomials(square, square);
    }
    return multiply_polynomials(power, a) ^ b;
}
