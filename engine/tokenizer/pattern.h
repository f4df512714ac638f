/* A pre-tokenizer's regular expression, as tokenizer.json has it: Oniguruma's syntax with Unicode's properties.
 *
 * It runs on PCRE2 (compiled to machine code where that is possible), or on a scanner where the pattern is a well-known
 * one. Forms that differ are translated, or refused by name. A pattern is immutable and shared by threads; each thread
 * brings a pattern_scratch.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/text/unicode.h"
#include "memory/scope.h"
#include "memory/status.h"

typedef struct pattern pattern;
typedef struct pattern_scratch pattern_scratch;

/* Compiles a pattern. `literal`: searches for the text itself. `plain`: PCRE2 even where a scanner is known (to compare
 * the two). The classes must outlive the pattern. */
status pattern_open(pattern **out, const char *text, const unicode_classes *classes, bool literal, bool plain);
void pattern_close(pattern *p);
AUTO_CLOSES(pattern, pattern_close)

pattern_scratch *pattern_scratch_open(void);
void pattern_scratch_close(pattern_scratch *s);

/* Finds the first match in text[from..length): [*start, *stop), or *start = -1 if there is none. Look-behind sees the
 * text before `from`. */
status pattern_next(const pattern *p, pattern_scratch *s, int64_t *start, int64_t *stop, const char *text, int64_t from,
                    int64_t length);

/* Hand-written equivalents of the regular expressions by which most tokenizers cut text into pre-tokens.
 *
 * A scanner gives exactly the matches of its pattern (tests compare them with PCRE2), some twenty times as fast. These
 * patterns match at every position, so that a text is the sequence of its matches.
 *
 * It returns the end of the match that begins at text[at] (at < end); text[at..end) is well-formed UTF-8. */
typedef int64_t scanner(const unicode_classes *c, const uint8_t *text, int64_t at, int64_t end);
/* The known patterns, one by one; NULL after the last. */
const char *scanner_pattern(int index);

/* GPT-2's pattern, which a tokenizer.json uses without spelling it out */
extern const char scanner_gpt2_pattern[];
