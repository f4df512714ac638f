#include "engine/tokenizer/added.h"

#include <stdlib.h>
#include <string.h>

#include "engine/text/unicode.h"
#include "memory/log.h"

struct added {
    added_token *tokens; /* [room], sorted by their bytes */
    int count, room;
    int first[257]; /* tokens whose first byte is b: first[b] .. first[b + 1] */
};

added *added_open(void)
{
    return must_calloc(1, sizeof(added));
}

void added_close(added *a)
{
    if (!a)
        return;
    for (int i = 0; i < a->count; i++)
        free(a->tokens[i].text);
    free(a->tokens);
    free(a);
}

void added_put(added *a, const added_token *token)
{
    MUST(token->length > 0, "an empty added token");
    if (a->count == a->room) {
        a->room = 2 * a->room + 16;
        a->tokens = must_realloc(a->tokens, (unsigned long)a->room * sizeof *a->tokens);
    }
    added_token *copy = &a->tokens[a->count++];
    *copy = *token;
    copy->text = must_alloc((unsigned long)token->length);
    memcpy(copy->text, token->text, (size_t)token->length);
}

static int compare(const void *left, const void *right)
{
    const added_token *a = left, *b = right;
    int64_t shared = a->length < b->length ? a->length : b->length;
    int order = memcmp(a->text, b->text, (size_t)shared);
    return order ? order : (a->length > b->length) - (a->length < b->length);
}

void added_sort(added *a)
{
    if (a->count)
        qsort(a->tokens, (size_t)a->count, sizeof *a->tokens, compare);
    int at = 0;
    for (int byte = 0; byte < 256; byte++) {
        a->first[byte] = at;
        while (at < a->count && (uint8_t)a->tokens[at].text[0] == byte)
            at++;
    }
    a->first[256] = at;
}

/* The longest token at `text`: among the sorted tokens the range that agrees with the text so far narrows
 * byte by byte; the first of a range is the one that ends here, if any does. */
static const added_token *longest_at(const added *a, const char *text, int64_t length)
{
    int low = a->first[(uint8_t)text[0]], high = a->first[(uint8_t)text[0] + 1];
    const added_token *found = NULL;
    for (int64_t depth = 1; low < high; depth++) {
        if (a->tokens[low].length == depth)
            found = &a->tokens[low++];
        if (depth >= length)
            break;
        uint8_t byte = (uint8_t)text[depth];
        int from = low, to = high;
        while (from < to) { /* the first token whose byte is not below */
            int middle = from + (to - from) / 2;
            if ((uint8_t)a->tokens[middle].text[depth] < byte)
                from = middle + 1;
            else
                to = middle;
        }
        low = from;
        to = high;
        while (from < to) { /* the first whose byte is above */
            int middle = from + (to - from) / 2;
            if ((uint8_t)a->tokens[middle].text[depth] <= byte)
                from = middle + 1;
            else
                to = middle;
        }
        high = from;
    }
    return found;
}

static bool stands_alone(const char *text, int64_t start, int64_t stop, int64_t length)
{
    uint32_t code;
    if (start > 0) {
        unicode_decode((const uint8_t *)text + unicode_previous(text, start), &code);
        if (unicode_is_word(code))
            return false;
    }
    if (stop < length) {
        unicode_decode((const uint8_t *)text + stop, &code);
        if (unicode_is_word(code))
            return false;
    }
    return true;
}

static int64_t strip_left(const char *text, int64_t start)
{
    uint32_t code;
    for (int64_t before; start > 0; start = before) {
        before = unicode_previous(text, start);
        unicode_decode((const uint8_t *)text + before, &code);
        if (!(unicode_class_of(code) & UNICODE_SPACE))
            break;
    }
    return start;
}

static int64_t strip_right(const char *text, int64_t stop, int64_t length)
{
    uint32_t code;
    for (int bytes; stop < length; stop += bytes) {
        bytes = unicode_decode((const uint8_t *)text + stop, &code);
        if (!(unicode_class_of(code) & UNICODE_SPACE))
            break;
    }
    return stop;
}

const added_token *added_next(const added *a, int64_t *start, int64_t *stop, added_search *s)
{
    const char *text = s->text;
    int64_t length = s->length;
    if (a->count == 0)
        return NULL;
    for (int64_t at = s->from; at < length; at++) {
        uint8_t byte = (uint8_t)text[at];
        if (a->first[byte] == a->first[byte + 1])
            continue;
        const added_token *token = longest_at(a, text + at, length - at);
        if (!token)
            continue;
        *start = at;
        *stop = s->from = at + token->length;
        at = s->from - 1; /* one that is passed over hides what begins within it, too */
        if (s->ordinary_only && token->special)
            continue;
        if (token->single_word && !stands_alone(text, *start, *stop, length))
            continue;
        if (token->left_strip) {
            *start = strip_left(text, *start);
            *start = *start > s->taken ? *start : s->taken;
        }
        if (token->right_strip)
            *stop = strip_right(text, *stop, length);
        return token;
    }
    return NULL;
}
