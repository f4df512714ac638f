#include "engine/tokenizer/scanner.h"

#include <stdbool.h>
#include <string.h>

/* A character's class and bytes; at the end of the text class 0 and no bytes. */
static inline int peek(const unicode_classes *c, const uint8_t *text, int64_t at, int64_t end, int *bytes)
{
    if (at >= end) {
        *bytes = 0;
        return 0;
    }
    if (text[at] < 0x80) {
        *bytes = 1;
        return c->basic[text[at]];
    }
    uint32_t code;
    *bytes = unicode_decode(text + at, &code);
    return unicode_class(c, code);
}

/* The end of the longest run of characters that have one of the classes `wanted`. */
static inline int64_t run_of(const unicode_classes *c, const uint8_t *text, int64_t at, int64_t end, int wanted)
{
    for (int bytes; peek(c, text, at, end, &bytes) & wanted; at += bytes)
        ;
    return at;
}

#define OF_SOME_CLASS (UNICODE_LETTER | UNICODE_NUMBER | UNICODE_SPACE)

/* [^\s\p{L}\p{N}]* */
static inline int64_t run_of_others(const unicode_classes *c, const uint8_t *text, int64_t at, int64_t end)
{
    for (;;) {
        int bytes, class = peek(c, text, at, end, &bytes);
        if (bytes == 0 || (class & OF_SOME_CLASS))
            return at;
        at += bytes;
    }
}

/* 's|'t|'re|'ve|'m|'ll|'d after the apostrophe: the bytes of the letters, or 0. `fold`: in either case; U+017F is an s
 * then, too. */
static inline int contraction(const uint8_t *text, int64_t length, bool fold)
{
    if (length < 1)
        return 0;
    int bit = fold ? 0x20 : 0;
    int first = text[0] | bit, second = length > 1 ? text[1] | bit : 0;
    if (text[0] >= 0x80)
        return fold && length > 1 && text[0] == 0xC5 && text[1] == 0xBF ? 2 : 0;
    if (first == 's' || first == 't' || first == 'm' || first == 'd')
        return 1;
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l'))
        return 2;
    return 0;
}

/* \s+(?!\S)|\s+ where a run of white space begins at `at`: up to its last character, which is left to the word that
 * follows it; whole when nothing follows or it is but one character. */
static inline int64_t leave_last_space(const uint8_t *text, int64_t at, int64_t run_end, int64_t end)
{
    if (run_end == end)
        return run_end;
    int64_t last = unicode_previous((const char *)text, run_end);
    return last > at ? last : run_end;
}

const char scanner_gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static int64_t scan_gpt2(const unicode_classes *c, const uint8_t *text, int64_t at, int64_t end)
{
    if (text[at] == '\'') {
        int letters = contraction(text + at + 1, end - at - 1, false);
        if (letters)
            return at + 1 + letters;
    }
    int64_t first = at + (text[at] == ' ');
    int bytes, class = peek(c, text, first, end, &bytes);
    if (class & UNICODE_LETTER)
        return run_of(c, text, first + bytes, end, UNICODE_LETTER);
    if (class & UNICODE_NUMBER)
        return run_of(c, text, first + bytes, end, UNICODE_NUMBER);
    if (bytes && !(class & UNICODE_SPACE))
        return run_of_others(c, text, first + bytes, end);
    return leave_last_space(text, at, run_of(c, text, at, end, UNICODE_SPACE), end);
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ where white space begins at `at`: through the last line end of the run if it has one */
static int64_t scan_space(const unicode_classes *c, const uint8_t *text, int64_t at, int64_t end)
{
    int64_t run_end = at, behind_newline = 0;
    for (;;) {
        int bytes, class = peek(c, text, run_end, end, &bytes);
        if (!(class & UNICODE_SPACE))
            break;
        run_end += bytes;
        if (class & UNICODE_NEWLINE)
            behind_newline = run_end;
    }
    return behind_newline ? behind_newline : leave_last_space(text, at, run_end, end);
}

/* The pattern of GPT-4 and Llama 3, with at most `digits` numerals together. */
static inline int64_t scan_modern(const unicode_classes *c, const uint8_t *text, int64_t at, int64_t end, int digits)
{
    if (text[at] == '\'') {
        int letters = contraction(text + at + 1, end - at - 1, true);
        if (letters)
            return at + 1 + letters;
    }
    int bytes, class = peek(c, text, at, end, &bytes);
    if (class & UNICODE_LETTER)
        return run_of(c, text, at + bytes, end, UNICODE_LETTER);
    if (class & UNICODE_NUMBER) {
        for (int seen = 0; seen < digits && (class & UNICODE_NUMBER); seen++) {
            at += bytes;
            class = peek(c, text, at, end, &bytes);
        }
        return at;
    }
    int next_bytes, next = peek(c, text, at + bytes, end, &next_bytes);
    if ((next & UNICODE_LETTER) && !(class & UNICODE_NEWLINE))
        return run_of(c, text, at + bytes + next_bytes, end, UNICODE_LETTER);
    bool space = text[at] == ' ';
    if (!(class & UNICODE_SPACE) || (space && next_bytes && !(next & OF_SOME_CLASS))) {
        at = run_of_others(c, text, at + bytes, end);
        return run_of(c, text, at, end, UNICODE_NEWLINE);
    }
    return scan_space(c, text, at, end);
}

static int64_t scan_llama3(const unicode_classes *c, const uint8_t *text, int64_t at, int64_t end)
{
    return scan_modern(c, text, at, end, 3);
}

static int64_t scan_qwen(const unicode_classes *c, const uint8_t *text, int64_t at, int64_t end)
{
    return scan_modern(c, text, at, end, 1);
}

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define REST         "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

static const struct {
    const char *pattern;
    scanner *scan;
} scanners[] = {
    {scanner_gpt2_pattern, scan_gpt2},
    {CONTRACTIONS "\\p{N}{1,3}" REST, scan_llama3},
    {CONTRACTIONS "\\p{N}" REST, scan_qwen},
};

scanner *scanner_find(const char *pattern)
{
    for (unsigned i = 0; i < sizeof scanners / sizeof *scanners; i++)
        if (strcmp(scanners[i].pattern, pattern) == 0)
            return scanners[i].scan;
    return NULL;
}

const char *scanner_pattern(int index)
{
    return index >= 0 && index < (int)(sizeof scanners / sizeof *scanners) ? scanners[index].pattern : NULL;
}
