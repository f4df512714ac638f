#include "memory/base64.h"

#include <string.h>

#include "memory/log.h"

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char *base64_encode(const char *data, size_t bytes)
{
    char *out = must_alloc(bytes / 3 * 4 + 5), *at = out;
    for (size_t i = 0; i < bytes; i += 3) {
        unsigned long group = 0;
        for (size_t k = 0; k < 3; k++)
            group = group << 8 | (i + k < bytes ? (unsigned char)data[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            *at++ = i + k > bytes ? '=' : digits[group >> (18 - 6 * k) & 63];
    }
    *at = 0;
    return out;
}

char *base64_decode(const char *in, size_t *bytes)
{
    size_t length = in ? strlen(in) : 0, used = 0;
    char *out = must_alloc(length / 4 * 3 + 4);
    unsigned long group = 0;
    int bits = 0;
    for (size_t i = 0; i < length && in[i] != '='; i++) {
        const char *digit = strchr(digits, in[i]);
        group = group << 6 | (unsigned long)(digit ? digit - digits : 0);
        bits += 6;
        if (bits >= 8)
            out[used++] = (char)(group >> (bits -= 8));
    }
    out[used] = 0;
    if (bytes)
        *bytes = used;
    return out;
}
