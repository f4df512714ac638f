#include "engine/tokenizer/mark.h"

#include <string.h>

bool mark_begins(const char *text, int64_t length)
{
    return length >= MARK_BYTES && memcmp(text, MARK, MARK_BYTES) == 0;
}

void mark_append(buffer *out, const char *text, int64_t length)
{
    buffer_reserve(out, length);
    for (int64_t i = 0; i < length;) {
        bool mark = mark_begins(text + i, length - i);
        out->bytes[out->length++] = mark ? ' ' : text[i];
        i += mark ? MARK_BYTES : 1;
    }
}

int mark_byte(const char *piece, int64_t length)
{
    static const char digits[] = "0123456789ABCDEF";
    if (length != 6 || memcmp(piece, "<0x", 3) != 0 || piece[5] != '>' || !piece[3] || !piece[4])
        return -1;
    const char *high = strchr(digits, piece[3]), *low = strchr(digits, piece[4]);
    return high && low ? (int)((high - digits) * 16 + (low - digits)) : -1;
}
