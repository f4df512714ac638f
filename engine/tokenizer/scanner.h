/* Hand-written twins of the few regular expressions by which most tokenizers cut text into pre-tokens.
 *
 * A scanner gives exactly the matches of its pattern (tests compare them with PCRE2), some twenty times as fast. These
 * patterns match at every place, so that a text is the sequence of its matches.
 */
#pragma once

#include <stdint.h>

#include "engine/text/unicode.h"

/* The end of the match that begins at text[at] (at < end); text[at..end) is well-formed UTF-8. */
typedef int64_t scanner(const unicode_classes *c, const uint8_t *text, int64_t at, int64_t end);

/* The scanner that is equal to the pattern, or NULL when there is none. */
scanner *scanner_find(const char *pattern);
/* The known patterns, one by one; NULL after the last. */
const char *scanner_pattern(int index);

/* GPT-2's, which a tokenizer.json uses without spelling it out */
extern const char scanner_gpt2_pattern[];
