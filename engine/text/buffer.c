#include "engine/text/buffer.h"

#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

static int64_t grown_room(int64_t used, int64_t more, int64_t room)
{
    MUST(more >= 0 && used <= INT64_MAX / 4 - more, "a buffer of %lld + %lld elements", (long long)used,
         (long long)more);
    int64_t doubled = 2 * room + 64;
    return used + more > doubled ? used + more : doubled;
}

void buffer_reserve(buffer *b, int64_t more)
{
    if (b->room - b->length >= more)
        return;
    b->room = grown_room(b->length, more, b->room);
    b->bytes = must_realloc(b->bytes, (unsigned long)b->room);
}

void buffer_append(buffer *b, const void *bytes, int64_t length)
{
    if (length == 0)
        return;
    buffer_reserve(b, length);
    memcpy(b->bytes + b->length, bytes, (size_t)length);
    b->length += length;
}

void buffer_free(buffer *b)
{
    free(b->bytes);
    *b = (buffer){0};
}

void buffer_ids_reserve(buffer_ids *b, int64_t more)
{
    if (b->room - b->count >= more)
        return;
    b->room = grown_room(b->count, more, b->room);
    b->ids = must_realloc(b->ids, (unsigned long)b->room * sizeof *b->ids);
}

void buffer_ids_append(buffer_ids *b, const int32_t *ids, int64_t count)
{
    if (count == 0)
        return;
    buffer_ids_reserve(b, count);
    memcpy(b->ids + b->count, ids, (size_t)count * sizeof *ids);
    b->count += count;
}

void buffer_ids_free(buffer_ids *b)
{
    free(b->ids);
    *b = (buffer_ids){0};
}
