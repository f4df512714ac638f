#include "engine/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/buffer.h"
#include "memory/log.h"
#include "memory/scope.h"

/* Returns a character's class and bytes; at the end of the text class 0 and no bytes. */
static inline int peek_character(const unicode_classes *c, const uint8_t *text, int64_t at, int64_t end, int *bytes)
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

/* Returns the end of the longest run of characters that have one of the classes `wanted`. */
static inline int64_t run_of(const unicode_classes *c, const uint8_t *text, int64_t at, int64_t end, int wanted)
{
    for (int bytes; peek_character(c, text, at, end, &bytes) & wanted; at += bytes)
        ;
    return at;
}

#define OF_SOME_CLASS (UNICODE_LETTER | UNICODE_NUMBER | UNICODE_SPACE)

/* Matches [^\s\p{L}\p{N}]* */
static inline int64_t run_of_others(const unicode_classes *c, const uint8_t *text, int64_t at, int64_t end)
{
    for (;;) {
        int bytes, class = peek_character(c, text, at, end, &bytes);
        if (bytes == 0 || (class & OF_SOME_CLASS))
            return at;
        at += bytes;
    }
}

/* Matches 's|'t|'re|'ve|'m|'ll|'d after the apostrophe: the bytes of the letters, or 0. `fold`: in either case; U+017F
 * is an s then, too. */
static inline int match_contraction(const uint8_t *text, int64_t length, bool fold)
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

/* Matches \s+(?!\S)|\s+ where a run of white space begins at `at`: up to its last character, which is left to the next
 * word; the whole run at the text's end, or if it is one character. */
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
        int letters = match_contraction(text + at + 1, end - at - 1, false);
        if (letters)
            return at + 1 + letters;
    }
    int64_t first = at + (text[at] == ' ');
    int bytes, class = peek_character(c, text, first, end, &bytes);
    if (class & UNICODE_LETTER)
        return run_of(c, text, first + bytes, end, UNICODE_LETTER);
    if (class & UNICODE_NUMBER)
        return run_of(c, text, first + bytes, end, UNICODE_NUMBER);
    if (bytes && !(class & UNICODE_SPACE))
        return run_of_others(c, text, first + bytes, end);
    return leave_last_space(text, at, run_of(c, text, at, end, UNICODE_SPACE), end);
}

/* Matches \s*[\r\n]+|\s+(?!\S)|\s+ where white space begins at `at`: through the run's last line end, if any */
static int64_t scan_space(const unicode_classes *c, const uint8_t *text, int64_t at, int64_t end)
{
    int64_t run_end = at, behind_newline = 0;
    for (;;) {
        int bytes, class = peek_character(c, text, run_end, end, &bytes);
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
        int letters = match_contraction(text + at + 1, end - at - 1, true);
        if (letters)
            return at + 1 + letters;
    }
    int bytes, class = peek_character(c, text, at, end, &bytes);
    if (class & UNICODE_LETTER)
        return run_of(c, text, at + bytes, end, UNICODE_LETTER);
    if (class & UNICODE_NUMBER) {
        for (int seen = 0; seen < digits && (class & UNICODE_NUMBER); seen++) {
            at += bytes;
            class = peek_character(c, text, at, end, &bytes);
        }
        return at;
    }
    int next_bytes, next = peek_character(c, text, at + bytes, end, &next_bytes);
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

const char *scanner_pattern(int index)
{
    return index >= 0 && index < (int)(sizeof scanners / sizeof *scanners) ? scanners[index].pattern : NULL;
}

struct pattern {
    scanner *scan; /* NULL: uses `code` */
    pcre2_code *code;
    const unicode_classes *classes;
};

struct pattern_scratch {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

/* PCRE2's \s counts U+180E as white space, Unicode since 6.3 (and Oniguruma) does not. */
#define SPACES "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define NOT_SPACES                                                                                                     \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}!-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}"       \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"

static void put_text(buffer *out, const char *text)
{
    buffer_append(out, text, (int64_t)strlen(text));
}

/* Builds \p{L} and \p{N} as PCRE2's tables have them, and the newer characters that these lack. */
static int put_property(buffer *out, const char *at, bool in_class)
{
    static const char names[2][6] = {"\\p{L}", "\\p{N}"};
    int which = strncmp(at, names[0], 5) == 0 ? 0 : 1;
    if (strncmp(at, names[which], 5) != 0)
        return 0;
    put_text(out, in_class ? "" : "[");
    put_text(out, names[which]);
    for (const unicode_range *r = unicode_younger; r->last; r++)
        if (r->class == (which ? UNICODE_NUMBER : UNICODE_LETTER)) {
            char range[40];
            snprintf(range, sizeof range, "\\x{%X}-\\x{%X}", r->first, r->last);
            put_text(out, range);
        }
    put_text(out, in_class ? "" : "]");
    return 5;
}

/* Translates an escape in or outside a class; returns the characters used, 0 when PCRE2 reads it differently. */
static int translate_escape(buffer *out, const char *at, bool in_class)
{
    int property = put_property(out, at, in_class);
    if (property)
        return property;
    switch (at[1]) {
    case 's':
        put_text(out, in_class ? SPACES : "[" SPACES "]");
        return 2;
    case 'S':
        put_text(out, in_class ? NOT_SPACES : "[" NOT_SPACES "]");
        return 2;
    case 0:
    case 'h': /* a hexadecimal digit to Oniguruma, horizontal space to PCRE2 */
    case 'H':
    case 'R':
    case 'X':
    case 'u':
    case 'K':
    case 'G':
    case 'Q':
    case 'E':
        return 0;
    default:
        break;
    }
    const char *end = strchr("pPx", at[1]) && at[2] == '{' ? strchr(at, '}') : NULL;
    int length = end ? (int)(end + 1 - at) : 2;
    buffer_append(out, at, length);
    return length;
}

/* Two forms have another meaning in Oniguruma: x{1,3}+ is (x{1,3})+, not possessive, and x{2}? is (x{2})?, not lazy. */
static bool is_foreign_interval(const char *at)
{
    size_t low = strspn(at + 1, "0123456789"), comma = at[1 + low] == ',',
           high = comma ? strspn(at + 2 + low, "0123456789") : 0;
    const char *end = at + 1 + low + comma + high;
    return *at == '{' && low + high > 0 && *end == '}' && (end[1] == '+' || (end[1] == '?' && !comma));
}

/* Rewrites Oniguruma's syntax to PCRE2's; refuses forms without a PCRE2 equivalent. */
static status translate_syntax(buffer *out, const char *text)
{
    bool in_class = false;
    for (const char *at = text; *at;) {
        if (*at == '\\') {
            int used = translate_escape(out, at, in_class);
            if (!used)
                return status_fail(STATUS_FAILED, "pattern %s: \\%c is not supported", text, at[1]);
            at += used;
            continue;
        }
        if (in_class && (*at == '[' || (at[0] == '&' && at[1] == '&'))) {
            bool posix = at[0] == '[' && at[1] == ':';
            const char *end = posix ? strstr(at, ":]") : NULL;
            if (!end)
                return status_fail(STATUS_FAILED, "pattern %s: %s within a class is not supported", text,
                                   *at == '[' ? "[" : "&&");
            buffer_append(out, at, end + 2 - at);
            at = end + 2;
            continue;
        }
        if (!in_class && is_foreign_interval(at))
            return status_fail(STATUS_FAILED, "pattern %s: + or ? behind %.*s is not supported", text,
                               (int)(strchr(at, '}') + 1 - at), at);
        if (!in_class && strncmp(at, "(?m", 3) == 0)
            return status_fail(STATUS_FAILED, "pattern %s: the option (?m) is not supported", text);
        if (!in_class && *at == '[') {
            in_class = true;
            buffer_append(out, at, 1);
            at++;
            if (*at == '^')
                buffer_append(out, at++, 1);
            if (*at == ']')
                buffer_append(out, at++, 1);
            continue;
        }
        if (in_class && *at == ']')
            in_class = false;
        buffer_append(out, at++, 1);
    }
    return STATUS_OK;
}

static status compile_pattern(pattern *p, const char *source, int64_t length, uint32_t options, const char *text)
{
    int error;
    PCRE2_SIZE where;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    MUST(context, "out of host memory");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    p->code = pcre2_compile((PCRE2_SPTR)source, (PCRE2_SIZE)length, options, &error, &where, context);
    pcre2_compile_context_free(context);
    if (!p->code) {
        PCRE2_UCHAR message[256];
        pcre2_get_error_message(error, message, sizeof message);
        return status_fail(STATUS_FAILED, "pattern %s: %s", text, (char *)message);
    }
    (void)pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* if this fails, the interpreter is used */
    return STATUS_OK;
}

status pattern_open(pattern **out, const char *text, const unicode_classes *classes, bool literal, bool plain)
{
    AUTO(pattern) *p = must_calloc(1, sizeof *p);
    p->classes = classes;
    for (unsigned i = 0; i < sizeof scanners / sizeof *scanners && !literal && !plain; i++)
        if (strcmp(scanners[i].pattern, text) == 0)
            p->scan = scanners[i].scan;
    if (!p->scan) {
        RELEASED_BY(buffer_free) buffer source = {0};
        if (literal)
            put_text(&source, text);
        else
            TRY(translate_syntax(&source, text));
        if (unicode_check(text, (int64_t)strlen(text)) != (int64_t)strlen(text))
            return status_fail(STATUS_FAILED, "pattern is not UTF-8");
        /* Oniguruma's Ruby syntax lets ^ and $ match at every line */
        uint32_t options = PCRE2_UTF | PCRE2_NO_UTF_CHECK | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE);
        TRY(compile_pattern(p, source.length ? source.bytes : "", source.length, options, text));
    }
    *out = TAKE(p);
    return STATUS_OK;
}

void pattern_close(pattern *p)
{
    if (!p)
        return;
    pcre2_code_free(p->code);
    free(p);
}

pattern_scratch *pattern_scratch_open(void)
{
    pattern_scratch *s = must_calloc(1, sizeof *s);
    s->match = pcre2_match_data_create(1, NULL);
    s->context = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create(32 << 10, 16 << 20, NULL);
    MUST(s->match && s->context && s->stack, "out of host memory");
    pcre2_jit_stack_assign(s->context, NULL, s->stack);
    return s;
}

void pattern_scratch_close(pattern_scratch *s)
{
    if (!s)
        return;
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->context);
    pcre2_jit_stack_free(s->stack);
    free(s);
}

status pattern_next(const pattern *p, pattern_scratch *s, int64_t *start, int64_t *stop, const char *text, int64_t from,
                    int64_t length)
{
    *start = -1;
    if (p->scan) {
        if (from >= length)
            return STATUS_OK;
        *start = from;
        *stop = p->scan(p->classes, (const uint8_t *)text, from, length);
        return STATUS_OK;
    }
    PCRE2_SPTR subject = (PCRE2_SPTR)text;
    uint32_t options = PCRE2_NO_UTF_CHECK;
    int found = pcre2_match(p->code, subject, (PCRE2_SIZE)length, (PCRE2_SIZE)from, options, s->match, s->context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
        found = pcre2_match(p->code, subject, (PCRE2_SIZE)length, (PCRE2_SIZE)from, options | PCRE2_NO_JIT, s->match,
                            s->context);
    if (found == PCRE2_ERROR_NOMATCH)
        return STATUS_OK;
    if (found < 0) {
        PCRE2_UCHAR message[256];
        pcre2_get_error_message(found, message, sizeof message);
        return status_fail(STATUS_FAILED, "the tokenizer's pattern gives up on this text: %s", (char *)message);
    }
    const PCRE2_SIZE *offsets = pcre2_get_ovector_pointer(s->match);
    if (offsets[0] > offsets[1]) /* \K in a look-ahead, which translate refuses */
        return status_fail(STATUS_FAILED, "the tokenizer's pattern matches backwards");
    *start = (int64_t)offsets[0];
    *stop = (int64_t)offsets[1];
    return STATUS_OK;
}
