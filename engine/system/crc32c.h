/* CRC32C (Castagnoli, reflected polynomial 0x82f63b78), the checksum of checkpoint pieces and TensorBoard records.
 *
 * Pure functions of their arguments. crc32c() uses the SSE4.2 instruction where the processor has it.
 */
#pragma once

#include <stdint.h>

/* Returns the checksum of the bytes so far and `data`; `crc` is 0 at the start: crc(ab) = crc32c(crc32c(0, a), b). */
uint32_t crc32c(uint32_t crc, const void *data, int64_t bytes);
/* Computes it by table, for processors without the instruction. */
uint32_t crc32c_software(uint32_t crc, const void *data, int64_t bytes);
/* Returns the checksum of a, then b, from both checksums and b's length. */
uint32_t crc32c_combine(uint32_t a, uint32_t b, int64_t b_bytes);
