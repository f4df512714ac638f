#include "engine/tokenizer/sentencepiece_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/unicode.h"
#include "engine/tokenizer/vocabulary.h"
#include "memory/log.h"
#include "memory/scope.h"

static uint32_t word_at(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Returns unit `index` of the trie. */
static uint32_t unit_at(const uint8_t *map, uint32_t index)
{
    return word_at(map + 4 + 4 * (size_t)index);
}

static uint32_t base_of(uint32_t node, uint32_t unit)
{
    return node ^ (unit >> 10 << (unit >> 6 & 8));
}

/* True if the unit has this label. The child of a node by a byte (not 0) is at its base XOR that byte. */
static bool is_child(uint32_t unit, uint32_t label)
{
    return (unit & 0x800000FF) == label;
}

/* Checks that every unit reachable from the root is within the map, since the library does not check. */
static bool charmap_is_sound(const uint8_t *map, int64_t length)
{
    if (length == 0)
        return true;
    uint64_t trie_bytes = length >= 4 ? word_at(map) : 0;
    if (trie_bytes == 0 || trie_bytes % 4 || trie_bytes >= (uint64_t)length - 4 || map[length - 1] != 0)
        return false;
    uint32_t count = (uint32_t)(trie_bytes / 4), waiting = 0;
    uint64_t strings = (uint64_t)length - 4 - trie_bytes;
    AUTO_FREE uint8_t *seen = must_calloc(count, 1);
    AUTO_FREE uint32_t *stack = must_alloc(count * sizeof *stack);
    bool sound = true;
    stack[waiting++] = 0;
    seen[0] = 1;
    while (waiting && sound) {
        uint32_t node = stack[--waiting], unit = unit_at(map, node), base = base_of(node, unit);
        if ((base | 0xFF) >= count) {
            sound = false;
            break;
        }
        if (unit >> 8 & 1)
            sound = (unit_at(map, base) & 0x7FFFFFFF) < strings;
        for (uint32_t label = 1; label < 256 && sound; label++) {
            uint32_t child = base ^ label;
            if (is_child(unit_at(map, child), label) && !seen[child]) {
                seen[child] = 1;
                stack[waiting++] = child;
            }
        }
    }
    return sound;
}

int64_t charmap_match(const uint8_t *map, const char **replacement, const char *text, int64_t length)
{
    const char *strings = (const char *)map + 4 + word_at(map);
    uint32_t base = base_of(0, unit_at(map, 0));
    int64_t longest = 0;
    for (int64_t i = 0; i < length && text[i]; i++) {
        uint32_t label = (uint8_t)text[i], node = base ^ label, unit = unit_at(map, node);
        if (!is_child(unit, label))
            break;
        base = base_of(node, unit);
        if (unit >> 8 & 1) {
            *replacement = strings + (unit_at(map, base) & 0x7FFFFFFF);
            longest = i + 1;
        }
    }
    return longest;
}

/* Field numbers of sentencepiece_model.proto. */
enum {
    MODEL_PIECES = 1,
    MODEL_TRAINER = 2,
    MODEL_NORMALIZER = 3,
    MODEL_DENORMALIZER = 5,
    PIECE_TEXT = 1,
    PIECE_SCORE = 2,
    PIECE_TYPE = 3,
    TRAINER_TYPE = 3,
    TRAINER_SPACE_SUFFIX = 24,
    TRAINER_BYTE_FALLBACK = 35,
    TRAINER_UNKNOWN_SURFACE = 44,
    NORMALIZER_MAP = 2,
    NORMALIZER_DUMMY_PREFIX = 3,
    NORMALIZER_REMOVE_EXTRA = 4,
    NORMALIZER_ESCAPE = 5,
};

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

typedef struct span {
    const uint8_t *at, *end;
} span;

typedef struct field {
    uint32_t number;
    int wire;
    uint64_t value; /* VARINT, FIXED32, FIXED64 */
    span bytes;     /* BYTES */
} field;

static bool read_varint(span *s, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 70 && s->at < s->end; shift += 7) {
        uint8_t byte = *s->at++;
        *value |= shift < 64 ? (uint64_t)(byte & 0x7F) << shift : 0;
        if (!(byte & 0x80))
            return true;
    }
    return false;
}

static bool read_fixed(span *s, uint64_t *value, int bytes)
{
    if (s->end - s->at < bytes)
        return false;
    *value = 0;
    for (int i = 0; i < bytes; i++)
        *value |= (uint64_t)*s->at++ << 8 * i;
    return true;
}

/* Reads the next field of a message; false if it is cut off or malformed. */
static bool read_field(span *s, field *f)
{
    uint64_t key, length;
    if (!read_varint(s, &key) || key >> 3 == 0 || key >> 3 > 0x1FFFFFFF)
        return false;
    f->number = (uint32_t)(key >> 3);
    f->wire = (int)(key & 7);
    switch (f->wire) {
    case VARINT:
        return read_varint(s, &f->value);
    case FIXED64:
        return read_fixed(s, &f->value, 8);
    case FIXED32:
        return read_fixed(s, &f->value, 4);
    case BYTES:
        if (!read_varint(s, &length) || length > (uint64_t)(s->end - s->at))
            return false;
        f->bytes = (span){s->at, s->at + length};
        s->at += length;
        return true;
    default:
        return false;
    }
}

#define WRONG(...) status_fail(STATUS_FAILED, __VA_ARGS__)

static status add_piece(sentencepiece_model *m, int32_t id, span text, uint64_t type)
{
    int64_t length = text.end - text.at;
    if (length == 0 || memchr(text.at, 0, (size_t)length) || unicode_check((const char *)text.at, length) != length)
        return WRONG("piece %d is empty or not UTF-8", id);
    RELEASED_BY(buffer_free) buffer bytes = {0};
    int flags = 0;
    if (type == SENTENCEPIECE_MODEL_BYTE) {
        int byte = mark_byte((const char *)text.at, length);
        if (byte < 0)
            return WRONG("piece %d is a byte, but not written <0x00> to <0xFF>", id);
        char value = (char)byte;
        buffer_append(&bytes, &value, 1);
    } else if (type == SENTENCEPIECE_MODEL_UNKNOWN) {
        buffer_append(&bytes, m->unknown_surface, (int64_t)strlen(m->unknown_surface));
    } else if (type == SENTENCEPIECE_MODEL_CONTROL) {
        buffer_append(&bytes, text.at, length);
        flags = VOCABULARY_SPECIAL;
    } else {
        mark_append(&bytes, (const char *)text.at, text.end - text.at);
    }
    bool entered = vocabulary_add(m->pieces, id, bytes.bytes, bytes.length, flags);
    MUST(entered, "piece %d twice", id);
    return STATUS_OK;
}

static status read_piece(sentencepiece_model *m, int32_t id, span message)
{
    field f;
    span text = {0};
    uint64_t type = SENTENCEPIECE_MODEL_NORMAL;
    float score = 0.0F;
    while (message.at < message.end) {
        if (!read_field(&message, &f))
            return WRONG("piece %d is malformed", id);
        if (f.number == PIECE_TEXT && f.wire == BYTES)
            text = f.bytes;
        if (f.number == PIECE_TYPE && f.wire == VARINT)
            type = f.value;
        if (f.number == PIECE_SCORE && f.wire == FIXED32) {
            memcpy(&score, &(uint32_t){(uint32_t)f.value}, 4);
            if (!isfinite(score))
                return WRONG("the score of piece %d is not finite", id);
        }
    }
    if (type < SENTENCEPIECE_MODEL_NORMAL || type > SENTENCEPIECE_MODEL_BYTE)
        return WRONG("the type of piece %d is unknown", id);
    if (id >= m->room) {
        m->room = 2 * m->room + 1024;
        m->scores = must_realloc(m->scores, (unsigned long)m->room * sizeof *m->scores);
        m->types = must_realloc(m->types, (unsigned long)m->room);
        m->name_at = must_realloc(m->name_at, (unsigned long)m->room * sizeof *m->name_at);
    }
    m->scores[id] = score;
    m->types[id] = (uint8_t)type;
    m->name_at[id] = m->names.length;
    buffer_append(&m->names, text.at, text.end - text.at);
    buffer_append(&m->names, "", 1);
    return add_piece(m, id, text, type);
}

static status read_normalizer(sentencepiece_model *m, span message, bool keep)
{
    field f;
    while (message.at < message.end) {
        if (!read_field(&message, &f))
            return WRONG("the normalizer's part is malformed");
        if (f.number == NORMALIZER_MAP && (f.wire != BYTES || !charmap_is_sound(f.bytes.at, f.bytes.end - f.bytes.at)))
            return WRONG("the normalizer's character map is damaged");
        if (f.number == NORMALIZER_MAP && keep) {
            m->map.length = 0;
            buffer_append(&m->map, f.bytes.at, f.bytes.end - f.bytes.at);
        }
        if (f.number == NORMALIZER_ESCAPE && f.wire == VARINT && !f.value && keep)
            return WRONG("a model that does not mark spaces (escape_whitespaces false) is not supported");
        if (f.number == NORMALIZER_DUMMY_PREFIX && f.wire == VARINT && keep)
            m->dummy_prefix = f.value != 0;
        if (f.number == NORMALIZER_REMOVE_EXTRA && f.wire == VARINT && keep)
            m->remove_extra = f.value != 0;
    }
    return STATUS_OK;
}

static status read_trainer(sentencepiece_model *m, span message)
{
    field f;
    while (message.at < message.end) {
        if (!read_field(&message, &f))
            return WRONG("the trainer's part is malformed");
        if (f.number == TRAINER_SPACE_SUFFIX && f.wire == VARINT)
            m->space_suffix = f.value != 0;
        if (f.number == TRAINER_TYPE && f.wire == VARINT)
            m->type = (int64_t)f.value;
        if (f.number == TRAINER_BYTE_FALLBACK && f.wire == VARINT)
            m->byte_fallback = f.value != 0;
        if (f.number == TRAINER_UNKNOWN_SURFACE && f.wire == BYTES) {
            size_t length = (size_t)(f.bytes.end - f.bytes.at);
            if (length >= sizeof m->unknown_surface)
                return WRONG("the surface of unknown pieces has %zu bytes", length);
            memcpy(m->unknown_surface, f.bytes.at, length);
            m->unknown_surface[length] = 0;
        }
    }
    return STATUS_OK;
}

static status read_model(sentencepiece_model *m, span all)
{
    field f;
    int32_t id = 0;
    for (span rest = all; rest.at < rest.end;) { /* the settings come after the pieces that need them */
        if (!read_field(&rest, &f) || (f.number <= MODEL_DENORMALIZER && f.wire != BYTES))
            return WRONG("not a SentencePiece model, or one that is cut off or damaged");
        if (f.number == MODEL_TRAINER)
            TRY(read_trainer(m, f.bytes));
        if (f.number == MODEL_NORMALIZER || f.number == MODEL_DENORMALIZER)
            TRY(read_normalizer(m, f.bytes, f.number == MODEL_NORMALIZER));
    }
    for (span rest = all; rest.at < rest.end;) {
        (void)read_field(&rest, &f);
        if (f.number != MODEL_PIECES)
            continue;
        if (id == VOCABULARY_MOST)
            return WRONG("more than %d pieces", VOCABULARY_MOST);
        TRY(read_piece(m, id++, f.bytes));
    }
    return id ? STATUS_OK : WRONG("the model has no pieces");
}

status sentencepiece_model_open(sentencepiece_model **out, const void *bytes, int64_t length, const char *name)
{
    AUTO(sentencepiece_model) *m = must_calloc(1, sizeof *m);
    m->pieces = vocabulary_open();
    m->dummy_prefix = m->remove_extra = true;
    m->type = SENTENCEPIECE_MODEL_UNIGRAM;
    snprintf(m->unknown_surface, sizeof m->unknown_surface, " \xE2\x81\x87 ");
    status s = read_model(m, (span){bytes, (const uint8_t *)bytes + length});
    if (s != STATUS_OK)
        return status_context(s, "%s", name);
    *out = TAKE(m);
    return STATUS_OK;
}

static status round_score(span piece)
{
    field f;
    for (span rest = piece; rest.at < rest.end;) {
        if (!read_field(&rest, &f))
            return WRONG("a piece is malformed");
        if (f.number != PIECE_SCORE || f.wire != FIXED32)
            continue;
        float score;
        memcpy(&score, &(uint32_t){(uint32_t)f.value}, 4);
        score = rintf(score * 128.0F) / 128.0F;
        memcpy((uint8_t *)(uintptr_t)rest.at - 4, &score,
               4); /* the field's last bytes; the file is little-endian, as we */
    }
    return STATUS_OK;
}

status sentencepiece_model_round(void *bytes, int64_t length, const char *name)
{
    field f;
    status s = STATUS_OK;
    for (span rest = {bytes, (const uint8_t *)bytes + length}; rest.at < rest.end && s == STATUS_OK;) {
        if (!read_field(&rest, &f))
            s = WRONG("not a SentencePiece model");
        else if (f.number == MODEL_PIECES && f.wire == BYTES)
            s = round_score(f.bytes);
    }
    return s == STATUS_OK ? s : status_context(s, "%s", name);
}

void sentencepiece_model_close(sentencepiece_model *m)
{
    if (!m)
        return;
    vocabulary_close(m->pieces);
    free(m->scores);
    free(m->types);
    free(m->name_at);
    buffer_free(&m->names);
    buffer_free(&m->map);
    free(m);
}

const char *sentencepiece_model_name(const sentencepiece_model *m, int32_t id)
{
    return m->names.bytes + m->name_at[id];
}
