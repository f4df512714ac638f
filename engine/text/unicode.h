/* Unicode for the tokenizers: well-formed UTF-8, classes of characters, normal forms.
 *
 * The classes (letter, number, white space) come from utf8proc's tables; a unicode_classes is their copy for quick
 * lookup, immutable once made, shared by threads, owned by its opener. Every function but unicode_check and
 * unicode_repair expects well-formed UTF-8.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/text/buffer.h"
#include "memory/status.h"

enum {
    UNICODE_LETTER = 1,    /* \p{L} */
    UNICODE_NUMBER = 2,    /* \p{N} */
    UNICODE_SPACE = 4,     /* White_Space */
    UNICODE_NEWLINE = 8,   /* \r or \n */
    UNICODE_UNSTABLE = 16, /* its presence may change the text under NFC */
};

typedef enum unicode_form {
    UNICODE_NFC,
    UNICODE_NFD,
    UNICODE_NFKC,
    UNICODE_NFKD,
} unicode_form;

typedef struct unicode_classes {
    uint8_t basic[65536]; /* classes of U+0000 to U+FFFF; higher ones are computed */
} unicode_classes;

/* Letters and numbers that a library's tables may lack, in ascending order; ends with {0, 0, 0}. */
typedef struct unicode_range {
    uint32_t first, last;
    uint8_t class;
} unicode_range;

extern const unicode_range unicode_younger[];

unicode_classes *unicode_classes_open(bool stability); /* stability: sets UNICODE_UNSTABLE, in some ms */
void unicode_classes_close(unicode_classes *c);
uint8_t unicode_class_of(uint32_t code); /* omits UNICODE_UNSTABLE above U+FFFF */

static inline uint8_t unicode_class(const unicode_classes *c, uint32_t code)
{
    return code < 65536 ? c->basic[code] : unicode_class_of(code);
}

/* Reads the character at `text`; returns its bytes. */
static inline int unicode_decode(const uint8_t *text, uint32_t *code)
{
    uint32_t first = text[0];
    if (first < 0x80) {
        *code = first;
        return 1;
    }
    if (first < 0xE0) {
        *code = (first & 0x1F) << 6 | (text[1] & 0x3FU);
        return 2;
    }
    if (first < 0xF0) {
        *code = (first & 0x0F) << 12 | (text[1] & 0x3FU) << 6 | (text[2] & 0x3FU);
        return 3;
    }
    *code = (first & 0x07) << 18 | (text[1] & 0x3FU) << 12 | (text[2] & 0x3FU) << 6 | (text[3] & 0x3FU);
    return 4;
}

/* Writes `code` at `out` (room for 4); returns its bytes. */
int unicode_encode(char *out, uint32_t code);

/* Returns the length of the longest well-formed beginning of `text`: `length` if all is well. */
int64_t unicode_check(const char *text, int64_t length);
/* Returns, where unicode_check stopped, the bytes that one U+FFFD replaces (the longest beginning of a character that
 * is there, at least 1; Unicode 15, 3.9, "substitution of maximal subparts"). *cut: the text ends within a character
 * that more bytes could complete. */
int unicode_malformed(const char *text, int64_t length, bool *cut);
/* Appends `text` with each malformed part replaced by U+FFFD. */
void unicode_repair(buffer *out, const char *text, int64_t length);

bool unicode_is_word(uint32_t code); /* \w: letters, marks, decimal and letter numbers, connectors, joiners */
/* Returns the offset at which the character that ends at text[at] (at > 0) begins. */
int64_t unicode_previous(const char *text, int64_t at);

/* True if NFC leaves the text unchanged (it may do so, too, if this is false). */
bool unicode_is_stable(const unicode_classes *c, const char *text, int64_t length);
/* Replaces out's content by the normal form of `text`, by Unicode 9's tables, as Hugging Face's tokenizers do: later
 * characters stay as they are. */
status unicode_normalize(buffer *out, const char *text, int64_t length, unicode_form form);
