#include "engine/text/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "memory/log.h"
#include "memory/scope.h"

/* White_Space has not changed since Unicode 6.3 and is more than the categories Z. */
static bool is_space(uint32_t code)
{
    return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
           code == 0x3000;
}

static uint8_t class_of_category(utf8proc_category_t category)
{
    switch ((int)category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return UNICODE_LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return UNICODE_NUMBER;
    default:
        return 0;
    }
}

/* Letters and numbers of Unicode 15.0 to 16.0, which the libraries of the day may not know yet: tokenizers are compared
 * with Hugging Face's, which does, and must not change with a library. */
const unicode_range unicode_younger[] = {
    // clang-format off
    {0x1C89, 0x1C8A, UNICODE_LETTER},
    {0xA7CB, 0xA7CD, UNICODE_LETTER},
    {0xA7DA, 0xA7DC, UNICODE_LETTER},
    {0x105C0, 0x105F3, UNICODE_LETTER},
    {0x10D40, 0x10D49, UNICODE_NUMBER},
    {0x10D4A, 0x10D65, UNICODE_LETTER},
    {0x10D6F, 0x10D85, UNICODE_LETTER},
    {0x10EC2, 0x10EC4, UNICODE_LETTER},
    {0x1123F, 0x11240, UNICODE_LETTER},
    {0x11380, 0x11389, UNICODE_LETTER},
    {0x1138B, 0x1138B, UNICODE_LETTER},
    {0x1138E, 0x1138E, UNICODE_LETTER},
    {0x11390, 0x113B5, UNICODE_LETTER},
    {0x113B7, 0x113B7, UNICODE_LETTER},
    {0x113D1, 0x113D1, UNICODE_LETTER},
    {0x113D3, 0x113D3, UNICODE_LETTER},
    {0x116D0, 0x116E3, UNICODE_NUMBER},
    {0x11BC0, 0x11BE0, UNICODE_LETTER},
    {0x11BF0, 0x11BF9, UNICODE_NUMBER},
    {0x11F02, 0x11F02, UNICODE_LETTER},
    {0x11F04, 0x11F10, UNICODE_LETTER},
    {0x11F12, 0x11F33, UNICODE_LETTER},
    {0x11F50, 0x11F59, UNICODE_NUMBER},
    {0x1342F, 0x1342F, UNICODE_LETTER},
    {0x13441, 0x13446, UNICODE_LETTER},
    {0x13460, 0x143FA, UNICODE_LETTER},
    {0x16100, 0x1611D, UNICODE_LETTER},
    {0x16130, 0x16139, UNICODE_NUMBER},
    {0x16D40, 0x16D6C, UNICODE_LETTER},
    {0x16D70, 0x16D79, UNICODE_NUMBER},
    {0x18CFF, 0x18CFF, UNICODE_LETTER},
    {0x1B132, 0x1B132, UNICODE_LETTER},
    {0x1B155, 0x1B155, UNICODE_LETTER},
    {0x1CCF0, 0x1CCF9, UNICODE_NUMBER},
    {0x1D2C0, 0x1D2D3, UNICODE_NUMBER},
    {0x1DF25, 0x1DF2A, UNICODE_LETTER},
    {0x1E030, 0x1E06D, UNICODE_LETTER},
    {0x1E4D0, 0x1E4EB, UNICODE_LETTER},
    {0x1E4F0, 0x1E4F9, UNICODE_NUMBER},
    {0x1E5D0, 0x1E5ED, UNICODE_LETTER},
    {0x1E5F0, 0x1E5F0, UNICODE_LETTER},
    {0x1E5F1, 0x1E5FA, UNICODE_NUMBER},
    {0x2B739, 0x2B739, UNICODE_LETTER},
    {0x2EBF0, 0x2EE5D, UNICODE_LETTER},
    {0x31350, 0x323AF, UNICODE_LETTER},
    // clang-format on
    {0, 0, 0},
};

static uint8_t younger_class(uint32_t code)
{
    for (const unicode_range *r = unicode_younger; r->last; r++)
        if (code >= r->first && code <= r->last)
            return r->class;
    return 0;
}

uint8_t unicode_class_of(uint32_t code)
{
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)code);
    int class = category == UTF8PROC_CATEGORY_CN ? younger_class(code) : class_of_category(category);
    if (is_space(code))
        class |= UNICODE_SPACE;
    if (code == '\n' || code == '\r')
        class |= UNICODE_NEWLINE;
    return (uint8_t) class;
}

/* NFC can change a text only where a character decomposes for good, is a combining mark, or may join with the one
 * before it: that is, comes after the first position in some character's canonical decomposition. */
static void mark_unstable(unicode_classes *c)
{
    for (uint32_t code = 0; code < 0x10FFFF; code = code == 0xFFFF ? 0x10FFF : code + 1) {
        if (code == 0x12000) /* above U+FFFF, characters that compose lie in scripts between U+11000 and U+12000 */
            break;
        if (code >= 0xD800 && code < 0xE000)
            continue;
        utf8proc_int32_t parts[8];
        int last_class = 0;
        utf8proc_ssize_t count =
            utf8proc_decompose_char((utf8proc_int32_t)code, parts, 8, UTF8PROC_DECOMPOSE, &last_class);
        for (utf8proc_ssize_t i = 1; i < count && i < 8; i++)
            if (parts[i] < 65536)
                c->basic[parts[i]] |= UNICODE_UNSTABLE;
        if (code > 0xFFFF)
            continue;
        bool stable = utf8proc_get_property((utf8proc_int32_t)code)->combining_class == 0;
        if (stable && (count != 1 || parts[0] != (utf8proc_int32_t)code)) {
            char text[4];
            RELEASED_BY(buffer_free) buffer normal = {0};
            int bytes = unicode_encode(text, code);
            stable = unicode_normalize(&normal, text, bytes, UNICODE_NFC) == STATUS_OK && normal.bytes &&
                     normal.length == bytes && memcmp(normal.bytes, text, (size_t)bytes) == 0;
        }
        if (!stable)
            c->basic[code] |= UNICODE_UNSTABLE;
    }
}

unicode_classes *unicode_classes_open(bool stability)
{
    unicode_classes *c = must_calloc(1, sizeof *c);
    for (uint32_t code = 0; code < 65536; code++)
        c->basic[code] |= unicode_class_of(code);
    if (stability)
        mark_unstable(c);
    return c;
}

void unicode_classes_close(unicode_classes *c)
{
    free(c);
}

int unicode_encode(char *out, uint32_t code)
{
    return (int)utf8proc_encode_char((utf8proc_int32_t)code, (utf8proc_uint8_t *)out);
}

/* Returns the bytes of the well-formed character at text (Unicode 15, table 3-7), or 0; *seen: how many bytes of a
 * possible character are there, *wanted: how many it would have. */
static int well_formed(const uint8_t *text, int64_t length, int *seen, int *wanted)
{
    uint8_t first = text[0], low = 0x80, high = 0xBF;
    *seen = 1;
    *wanted = 1;
    if (first < 0x80)
        return 1;
    if (first < 0xC2 || first > 0xF4)
        return 0;
    int bytes = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    *wanted = bytes;
    if (first == 0xE0)
        low = 0xA0;
    if (first == 0xED)
        high = 0x9F;
    if (first == 0xF0)
        low = 0x90;
    if (first == 0xF4)
        high = 0x8F;
    for (; *seen < bytes; ++*seen, low = 0x80, high = 0xBF)
        if (*seen >= length || text[*seen] < low || text[*seen] > high)
            return 0;
    return bytes;
}

int64_t unicode_check(const char *text, int64_t length)
{
    const uint8_t *bytes = (const uint8_t *)text;
    int64_t at = 0;
    while (at < length) {
        uint64_t eight;
        while (at + 8 <= length && (memcpy(&eight, bytes + at, 8), (eight & 0x8080808080808080U) == 0))
            at += 8;
        if (at >= length)
            break;
        int seen, wanted, size = well_formed(bytes + at, length - at, &seen, &wanted);
        if (size == 0)
            return at;
        at += size;
    }
    return at;
}

int unicode_malformed(const char *text, int64_t length, bool *cut)
{
    int seen, wanted;
    (void)well_formed((const uint8_t *)text, length, &seen, &wanted);
    *cut = seen >= length && seen < wanted;
    return seen;
}

void unicode_repair(buffer *out, const char *text, int64_t length)
{
    while (length > 0) {
        int64_t good = unicode_check(text, length);
        buffer_append(out, text, good);
        text += good;
        length -= good;
        if (length == 0)
            break;
        bool cut;
        int bad = unicode_malformed(text, length, &cut);
        buffer_append(out, "\xEF\xBF\xBD", 3);
        text += bad;
        length -= bad;
    }
}

bool unicode_is_word(uint32_t code)
{
    if (code == 0x200C || code == 0x200D || (code >= 0x24B6 && code <= 0x24E9))
        return true;
    switch ((int)utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return (unicode_class_of(code) & UNICODE_LETTER) != 0;
    }
}

int64_t unicode_previous(const char *text, int64_t at)
{
    do
        at--;
    while (at > 0 && ((uint8_t)text[at] & 0xC0) == 0x80);
    return at;
}

bool unicode_is_stable(const unicode_classes *c, const char *text, int64_t length)
{
    const uint8_t *bytes = (const uint8_t *)text;
    for (int64_t at = 0; at < length;) {
        uint32_t code;
        if (bytes[at] < 0x80) {
            at++;
            continue;
        }
        at += unicode_decode(bytes + at, &code);
        /* above U+FFFF only the pictographs and the ideographs without compatibility twins are known to be stable */
        bool stable = code < 65536 ? !(c->basic[code] & UNICODE_UNSTABLE)
                                   : (code >= 0x1F000 && code < 0x1FB00) || (code >= 0x20000 && code < 0x2F800);
        if (!stable)
            return false;
    }
    return true;
}

/* Characters with a combining class or a decomposition that came after Unicode 9, the version of the tables of Hugging
 * Face's tokenizers, which leave them unchanged. (Blocks that are new as a whole are one row.) */
static const unicode_range after_unicode_9[] = {
    // clang-format off
    {0x07FD, 0x07FD, 0},   {0x0897, 0x089F, 0},   {0x08CA, 0x08D3, 0},   {0x09FE, 0x09FE, 0},   {0x0C3C, 0x0C3C, 0},
    {0x0D3B, 0x0D3C, 0},   {0x0EBA, 0x0EBA, 0},   {0x1715, 0x1715, 0},   {0x1ABF, 0x1ACE, 0},   {0x1DF6, 0x1DFA, 0},
    {0x32FF, 0x32FF, 0},   {0xA7F2, 0xA7F4, 0},   {0xA82C, 0xA82C, 0},   {0xAB69, 0xAB69, 0},   {0x105C0, 0x105FF, 0},
    {0x10780, 0x107BF, 0}, {0x10D24, 0x10D27, 0}, {0x10D69, 0x10D6D, 0}, {0x10EAB, 0x10EAC, 0}, {0x10EFC, 0x10EFF, 0},
    {0x10F46, 0x10F50, 0}, {0x10F82, 0x10F85, 0}, {0x11070, 0x11070, 0}, {0x1133B, 0x1133B, 0}, {0x11380, 0x113FF, 0},
    {0x1145E, 0x1145E, 0}, {0x11839, 0x1183A, 0}, {0x11900, 0x1195F, 0}, {0x119E0, 0x119E0, 0}, {0x11A34, 0x11A34, 0},
    {0x11A47, 0x11A47, 0}, {0x11A99, 0x11A99, 0}, {0x11D42, 0x11D45, 0}, {0x11D97, 0x11D97, 0}, {0x11F41, 0x11F42, 0},
    {0x16100, 0x1613F, 0}, {0x16D40, 0x16D7F, 0}, {0x16FF0, 0x16FF1, 0}, {0x1CC00, 0x1CCFF, 0}, {0x1E030, 0x1E08F, 0},
    {0x1E130, 0x1E136, 0}, {0x1E2AE, 0x1E2AE, 0}, {0x1E2EC, 0x1E2EF, 0}, {0x1E4EC, 0x1E4EF, 0}, {0x1E5EE, 0x1E5EF, 0},
    {0x1F16C, 0x1F16C, 0}, {0x1FBF0, 0x1FBF9, 0},
    // clang-format on
};

static bool is_after_unicode_9(uint32_t code)
{
    for (size_t i = 0; i < sizeof after_unicode_9 / sizeof *after_unicode_9 && code >= after_unicode_9[i].first; i++)
        if (code <= after_unicode_9[i].last)
            return true;
    return false;
}

/* Appends the normal form of text without characters after Unicode 9. */
static status append_normal(buffer *out, const char *text, int64_t length, unicode_form form)
{
    static const utf8proc_option_t options[] = {
        [UNICODE_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [UNICODE_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [UNICODE_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [UNICODE_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    if (length == 0)
        return STATUS_OK;
    AUTO_FREE utf8proc_uint8_t *normal = NULL;
    utf8proc_ssize_t bytes = utf8proc_map((const utf8proc_uint8_t *)text, length, &normal, options[form]);
    if (bytes < 0)
        return status_fail(STATUS_FAILED, "text of %lld bytes cannot be normalized: %s", (long long)length,
                           utf8proc_errmsg(bytes));
    buffer_append(out, normal, bytes);
    return STATUS_OK;
}

status unicode_normalize(buffer *out, const char *text, int64_t length, unicode_form form)
{
    out->length = 0;
    int64_t done = 0;
    for (int64_t at = 0, step; at < length; at += step) {
        uint32_t code;
        step = unicode_decode((const uint8_t *)text + at, &code);
        if (!is_after_unicode_9(code))
            continue;
        TRY(append_normal(out, text + done, at - done, form));
        buffer_append(out, text + at, step);
        done = at + step;
    }
    return append_normal(out, text + done, length - done, form);
}
