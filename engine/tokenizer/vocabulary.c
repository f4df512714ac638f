#include "engine/tokenizer/vocabulary.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/buffer.h"
#include "memory/log.h"
#include "memory/scope.h"

typedef struct token {
    int64_t offset; /* offset in the bytes of all tokens */
    int32_t length;
    int32_t flags;
} token;

struct vocabulary {
    token *tokens; /* [room] */
    int32_t size, room;
    buffer bytes;
    int32_t *slots; /* [slot_count], open addressing: id + 1, or 0 */
    uint64_t slot_count, indexed;
};

vocabulary *vocabulary_open(void)
{
    vocabulary *v = must_calloc(1, sizeof *v);
    v->slot_count = 1024;
    v->slots = must_calloc(v->slot_count, sizeof *v->slots);
    return v;
}

void vocabulary_close(vocabulary *v)
{
    if (!v)
        return;
    free(v->tokens);
    free(v->slots);
    buffer_free(&v->bytes);
    free(v);
}

/* Finds the slot that holds the token of these bytes, or the free one where it belongs. */
static uint64_t slot_of(const vocabulary *v, const char *bytes, int64_t length)
{
    uint64_t mask = v->slot_count - 1, hash = 0xCBF29CE484222325U; /* FNV-1a */
    for (int64_t i = 0; i < length; i++)
        hash = (hash ^ (uint8_t)bytes[i]) * 0x100000001B3U;
    hash ^= hash >> 29; /* its low bits alone are weak */
    for (uint64_t slot = hash & mask;; slot = (slot + 1) & mask) {
        int32_t id = v->slots[slot] - 1;
        if (id < 0)
            return slot;
        const token *t = &v->tokens[id];
        if (t->length == length && memcmp(v->bytes.bytes + t->offset, bytes, (size_t)length) == 0)
            return slot;
    }
}

static void grow_slots(vocabulary *v)
{
    AUTO_FREE int32_t *old = v->slots;
    uint64_t old_count = v->slot_count;
    v->slot_count *= 2;
    v->slots = must_calloc(v->slot_count, sizeof *v->slots);
    for (uint64_t i = 0; i < old_count; i++)
        if (old[i]) {
            const token *t = &v->tokens[old[i] - 1];
            v->slots[slot_of(v, v->bytes.bytes + t->offset, t->length)] = old[i];
        }
}

bool vocabulary_add(vocabulary *v, int32_t id, const char *bytes, int64_t length, int flags)
{
    MUST(id >= 0 && id < VOCABULARY_MOST && length >= 0 && length < INT32_MAX, "token %d of %lld bytes", id,
         (long long)length);
    if (vocabulary_flags(v, id) & VOCABULARY_PRESENT)
        return false;
    if ((flags & VOCABULARY_INDEXED) && vocabulary_find(v, bytes, length) >= 0)
        return false;
    if (id >= v->room) {
        int32_t room = 2 * v->room > id + 1 ? 2 * v->room : id + 1024;
        v->tokens = must_realloc(v->tokens, (unsigned long)room * sizeof *v->tokens);
        memset(v->tokens + v->room, 0, (size_t)(room - v->room) * sizeof *v->tokens);
        v->room = room;
    }
    if (id >= v->size)
        v->size = id + 1;
    buffer_reserve(&v->bytes, length + 1);
    v->tokens[id] = (token){v->bytes.length, (int32_t)length, flags | VOCABULARY_PRESENT};
    buffer_append(&v->bytes, bytes, length);
    if (flags & VOCABULARY_INDEXED) {
        v->slots[slot_of(v, bytes, length)] = id + 1;
        if (2 * ++v->indexed > v->slot_count)
            grow_slots(v);
    }
    return true;
}

void vocabulary_mark(vocabulary *v, int32_t id, int flags)
{
    MUST(vocabulary_flags(v, id) & VOCABULARY_PRESENT, "no token %d", id);
    v->tokens[id].flags |= flags;
}

int32_t vocabulary_size(const vocabulary *v)
{
    return v->size;
}

int vocabulary_flags(const vocabulary *v, int32_t id)
{
    return id >= 0 && id < v->size ? v->tokens[id].flags : 0;
}

const char *vocabulary_bytes(const vocabulary *v, int64_t *length, int32_t id)
{
    if (!(vocabulary_flags(v, id) & VOCABULARY_PRESENT)) {
        *length = 0;
        return "";
    }
    *length = v->tokens[id].length;
    return v->bytes.bytes + v->tokens[id].offset;
}

int32_t vocabulary_find(const vocabulary *v, const char *bytes, int64_t length)
{
    return v->slots[slot_of(v, bytes, length)] - 1;
}

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

void byte_alphabet_fill(int16_t byte_of[BYTE_ALPHABET_CODES])
{
    for (int i = 0; i < BYTE_ALPHABET_CODES; i++)
        byte_of[i] = -1;
    int shifted = 256;
    for (int byte = 0; byte < 256; byte++) {
        bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        byte_of[prints ? byte : shifted++] = (int16_t)byte;
    }
}
