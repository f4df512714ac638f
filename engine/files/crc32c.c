#include "engine/files/crc32c.h"

#include <string.h>

/* Four steps of the polynomial division at once: the remainder of each value of the low four bits. */
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

#ifdef __x86_64__
__attribute__((target("sse4.2"))) static uint32_t hardware(uint32_t crc, const uint8_t *p, int64_t bytes)
{
    uint64_t wide = (uint32_t)~crc;
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
