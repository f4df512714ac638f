/* Added tokens: whole strings that are one id wherever they occur, found before the text is cut any further.
 *
 * At each place the longest one is taken, from left to right. Each may want to be a word of its own, and may take the
 * white space on its left or right with it. An added is filled, sealed by added_sort, then read by any number of
 * threads.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct added_token {
    char *text; /* owned by the added */
    int64_t length;
    int32_t id;
    bool special, single_word, left_strip, right_strip;
} added_token;

typedef struct added added;

added *added_open(void);
void added_close(added *a);
void added_put(added *a, const added_token *token); /* copies the text */
void added_sort(added *a);

/* Where to look for added tokens: in text[from .. length). With `ordinary_only` special tokens are text like any
 * other. */
typedef struct added_search {
    const char *text;
    int64_t length;
    int64_t from;
    int64_t taken; /* the end of the previous one */
    bool ordinary_only;
} added_search;

/* The first added token; NULL when there is none. [*start, *stop) is what it takes of the text, stripped space
 * included, and begins at s->taken at the earliest. s->from becomes where to go on looking. */
const added_token *added_next(const added *a, int64_t *start, int64_t *stop, added_search *s);
