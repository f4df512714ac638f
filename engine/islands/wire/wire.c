#include "engine/islands/wire/wire.h"

#include <string.h>

static const uint32_t MAGIC = 0x49584850; /* "PHXI" */

enum { IS_REPLY = 1, IS_THERE = 2 };

static void put_integer(uint8_t *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get_integer(const uint8_t *in, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)in[i] << 8 * i;
    return value;
}

void wire_write(uint8_t *out, const wire_message *m, uint64_t fingerprint)
{
    put_integer(out, MAGIC, 4);
    put_integer(out + 4, WIRE_VERSION, 2);
    put_integer(out + 6, (uint64_t)m->kind, 1);
    put_integer(out + 7, (m->reply ? IS_REPLY : 0u) | (m->there ? IS_THERE : 0u), 1);
    put_integer(out + 8, fingerprint, 8);
    put_integer(out + 16, m->nonce, 8);
    put_integer(out + 24, m->number, 8);
    put_integer(out + 32, (uint64_t)m->merge, 8);
    put_integer(out + 40, (uint64_t)m->offer, 8);
    put_integer(out + 48, (uint64_t)m->first, 8);
    put_integer(out + 56, (uint64_t)m->unit, 4);
    put_integer(out + 60, (uint64_t)m->bytes, 4);
}

status wire_read(wire_message *m, const uint8_t *in, int64_t length, uint64_t fingerprint)
{
    if (length < WIRE_HEADER)
        return status_fail(STATUS_FAILED, "a message of %lld bytes is shorter than a header", (long long)length);
    if (length > WIRE_MESSAGE)
        return status_fail(STATUS_FAILED, "a message of %lld bytes is longer than any", (long long)length);
    if (get_integer(in, 4) != MAGIC)
        return status_fail(STATUS_FAILED, "no message of phalanx");
    if (get_integer(in + 4, 2) != WIRE_VERSION)
        return status_fail(STATUS_FAILED, "version %d of the protocol, not %d: islands must run the same phalanx",
                           (int)get_integer(in + 4, 2), WIRE_VERSION);
    if (get_integer(in + 8, 8) != fingerprint)
        return status_fail(STATUS_FAILED, "a message of another run, or of islands that are configured otherwise");
    uint64_t kind = get_integer(in + 6, 1), flags = get_integer(in + 7, 1);
    *m = (wire_message){.kind = (wire_kind)kind,
                        .reply = flags & IS_REPLY,
                        .there = (flags & IS_THERE) != 0,
                        .nonce = get_integer(in + 16, 8),
                        .number = get_integer(in + 24, 8),
                        .merge = (int64_t)get_integer(in + 32, 8),
                        .offer = (int64_t)get_integer(in + 40, 8),
                        .first = (int64_t)get_integer(in + 48, 8),
                        .unit = (int32_t)get_integer(in + 56, 4),
                        .bytes = (int32_t)get_integer(in + 60, 4)};
    if (kind >= WIRE_KINDS || flags > (IS_REPLY | IS_THERE) || m->merge < 0 || m->offer < 0 || m->first < 0 ||
        m->unit < 0 || m->bytes < 0 || m->bytes > WIRE_SLICE)
        return status_fail(STATUS_FAILED, "a message with impossible fields");
    if (length != WIRE_HEADER + (m->reply && m->there ? m->bytes : 0))
        return status_fail(STATUS_FAILED, "a message of %lld bytes that says it holds %d", (long long)length,
                           (int)m->bytes);
    return STATUS_OK;
}
