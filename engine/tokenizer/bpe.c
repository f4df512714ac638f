#include "engine/tokenizer/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "engine/text/unicode.h"
#include "engine/tokenizer/merges.h"
#include "engine/tokenizer/vocabulary.h"
#include "memory/log.h"

struct added {
    added_token *tokens; /* [count], sorted by their bytes */
    int count;
    int first[257]; /* tokens with first byte b: first[b] .. first[b + 1] */
};

/* A search for added tokens in text[from .. length). With `ordinary_only` special tokens are text like any other. */
typedef struct added_search {
    const char *text;
    int64_t length;
    int64_t from;
    int64_t taken; /* the end of the previous one */
    bool ordinary_only;
    int64_t blank, blank_end; /* bytes that are known to be blanks, for tokens that strip */
} added_search;

added *added_open(void)
{
    return must_calloc(1, sizeof(added));
}

static void added_close(added *a)
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
    added_token *copy = &APPEND(a->tokens, a->count);
    *copy = *token;
    copy->text = must_alloc((unsigned long)token->length);
    memcpy(copy->text, token->text, (size_t)token->length);
}

static int compare_tokens(const void *left, const void *right)
{
    const added_token *a = left, *b = right;
    int64_t shared = a->length < b->length ? a->length : b->length;
    int order = memcmp(a->text, b->text, (size_t)shared);
    return order ? order : (a->length > b->length) - (a->length < b->length);
}

void added_sort(added *a)
{
    if (a->count)
        qsort(a->tokens, (size_t)a->count, sizeof *a->tokens, compare_tokens);
    int at = 0;
    for (int byte = 0; byte < 256; byte++) {
        a->first[byte] = at;
        while (at < a->count && (uint8_t)a->tokens[at].text[0] == byte)
            at++;
    }
    a->first[256] = at;
}

/* Finds the longest token at `text`: among the sorted tokens the range that agrees with the text so far narrows byte by
 * byte; the first of a range is the one that ends here, if any does. */
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
        while (from < to) { /* finds the first token with this byte or a larger one */
            int middle = from + (to - from) / 2;
            if ((uint8_t)a->tokens[middle].text[depth] < byte)
                from = middle + 1;
            else
                to = middle;
        }
        low = from;
        to = high;
        while (from < to) { /* finds the first token with a larger byte */
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

/* Returns the start of the blanks before `start`, at least `low`. */
static int64_t strip_left(const char *text, int64_t start, int64_t low)
{
    uint32_t code;
    for (int64_t before; start > low; start = before) {
        before = unicode_previous(text, start);
        unicode_decode((const uint8_t *)text + before, &code);
        if (!(unicode_class_of(code) & UNICODE_SPACE))
            break;
    }
    return start > low ? start : low;
}

/* Returns the end of the blanks after `stop`. Those of the search's last call are not read once more. */
static int64_t strip_right(added_search *s, int64_t stop)
{
    uint32_t code;
    if (stop >= s->blank && stop <= s->blank_end)
        return s->blank_end;
    s->blank = stop;
    for (int bytes; stop < s->length; stop += bytes) {
        bytes = unicode_decode((const uint8_t *)s->text + stop, &code);
        if (!(unicode_class_of(code) & UNICODE_SPACE))
            break;
    }
    return s->blank_end = stop;
}

/* Finds the first added token; NULL: none. [*start, *stop) is its range of the text, stripped space included, and
 * begins at s->taken at the earliest. s->from becomes the start of the next search. */
static const added_token *added_next(const added *a, int64_t *start, int64_t *stop, added_search *s)
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
        at = s->from - 1; /* a token that is skipped hides tokens that begin within it, too */
        if (s->ordinary_only && token->special)
            continue;
        if (token->single_word && !stands_alone(text, *start, *stop, length))
            continue;
        if (token->left_strip)
            *start = strip_left(text, *start, s->taken);
        if (token->right_strip)
            *stop = strip_right(s, *stop);
        return token;
    }
    return NULL;
}

struct bpe_scratch {
    words *words;
    merges_scratch *merging;
    pattern_scratch *matching;
    buffer_ids symbols;
    buffer normal[2];         /* normal forms, by turns */
    buffer spaced[BPE_STEPS]; /* text with a space put in front, by step */
    buffer marked;            /* a part with spaces for marks */
};

typedef struct job { /* the arguments of every step of one bpe_encode */
    const bpe *b;
    bpe_scratch *s;
    buffer_ids *out;
} job;

void bpe_close(bpe *b)
{
    if (!b)
        return;
    for (int i = 0; i < b->step_count; i++)
        pattern_close(b->steps[i].cut);
    added_close(b->raw);
    added_close(b->normalized);
    merges_close(b->merges);
    vocabulary_close(b->vocabulary);
    unicode_classes_close(b->classes);
    buffer_ids_free(&b->before);
    buffer_ids_free(&b->after);
    free(b);
}

bpe_scratch *bpe_scratch_open(void)
{
    bpe_scratch *s = must_calloc(1, sizeof *s);
    s->words = words_open();
    s->merging = merges_scratch_open();
    s->matching = pattern_scratch_open();
    return s;
}

void bpe_scratch_close(bpe_scratch *s)
{
    if (!s)
        return;
    words_close(s->words);
    merges_scratch_close(s->merging);
    pattern_scratch_close(s->matching);
    buffer_ids_free(&s->symbols);
    buffer_free(&s->normal[0]);
    buffer_free(&s->normal[1]);
    for (int i = 0; i < BPE_STEPS; i++)
        buffer_free(&s->spaced[i]);
    buffer_free(&s->marked);
    free(s);
}

/* Lists the token of each byte. */
static void list_bytes(const bpe *b, buffer_ids *symbols, const uint8_t *word, int64_t length)
{
    bool was_unknown = false;
    for (int64_t i = 0; i < length; i++) {
        int32_t id = b->byte_ids[word[i]];
        bool unknown = id < 0;
        if (unknown)
            id = b->fuse_unknown && was_unknown ? -1 : b->unknown;
        was_unknown = unknown;
        if (id >= 0)
            symbols->ids[symbols->count++] = id;
    }
}

/* Lists the token of each character, or of its bytes; a space is a mark. */
static void list_characters(const bpe *b, buffer_ids *symbols, const uint8_t *word, int64_t length)
{
    uint32_t code;
    for (int64_t at = 0, step; at < length; at += step) {
        step = unicode_decode(word + at, &code);
        int32_t id = vocabulary_find(b->vocabulary, (const char *)word + at, step);
        if (id >= 0) {
            buffer_ids_append(symbols, &id, 1);
            continue;
        }
        bool mark = word[at] == ' ';
        const uint8_t *bytes = mark ? (const uint8_t *)MARK : word + at;
        for (int64_t i = 0; i < (mark ? MARK_BYTES : step); i++)
            buffer_ids_append(symbols, &b->byte_ids[bytes[i]], 1);
    }
}

static void merge_word(const job *j, const uint8_t *word, int64_t length)
{
    const bpe *b = j->b;
    if (b->whole_words) {
        int32_t id = vocabulary_find(b->vocabulary, (const char *)word, length);
        if (id >= 0) {
            buffer_ids_append(j->out, &id, 1);
            return;
        }
    }
    buffer_ids *symbols = &j->s->symbols;
    symbols->count = 0;
    buffer_ids_reserve(symbols, length);
    if (b->characters)
        list_characters(b, symbols, word, length);
    else
        list_bytes(b, symbols, word, length);
    if (symbols->count)
        merges_apply(b->merges, j->s->merging, j->out, symbols->ids, symbols->count);
}

static void encode_word(const job *j, const uint8_t *word, int64_t length)
{
    if (words_recall(j->s->words, j->out, word, length))
        return;
    int64_t before = j->out->count;
    merge_word(j, word, length);
    words_remember(j->s->words, j->out, before);
}

/* Cuts text by step number `step` and passes the pieces to the next one; after the last step they are words. */
static status cut_text(const job *j, int step, const char *text, int64_t length)
{
    if (length == 0)
        return STATUS_OK;
    if (step == j->b->step_count) {
        encode_word(j, (const uint8_t *)text, length);
        return STATUS_OK;
    }
    const bpe_step *rule = &j->b->steps[step];
    if (rule->prefix_space && text[0] != ' ') {
        buffer *spaced = &j->s->spaced[step];
        spaced->length = 0;
        buffer_append(spaced, " ", 1);
        buffer_append(spaced, text, length);
        text = spaced->bytes;
        length = spaced->length;
    }
    if (!rule->cut)
        return cut_text(j, step + 1, text, length);
    int64_t done = 0, from = 0, start, stop;
    while (from <= length) {
        TRY(pattern_next(rule->cut, j->s->matching, &start, &stop, text, from, length));
        if (start < 0)
            break;
        if (start > done && !rule->drop_others)
            TRY(cut_text(j, step + 1, text + done, start - done));
        if (!rule->drop_matches)
            TRY(cut_text(j, step + 1, text + start, stop - start));
        done = from = stop;
        if (stop == start) { /* an empty match is a cut; go on after the next character */
            uint32_t code;
            from += from < length ? unicode_decode((const uint8_t *)text + from, &code) : 1;
        }
    }
    return rule->drop_others ? STATUS_OK : cut_text(j, step + 1, text + done, length - done);
}

/* A stretch of text between added tokens; `first`: it begins the text. */
typedef struct part {
    const char *text;
    int64_t length;
    bool plain, first;
} part;

typedef status part_function(const job *j, const part *p);

/* Emits the added tokens of `a` in the text and passes on the parts between them. */
static status around_added(const job *j, const added *a, part_function *next, const part *p)
{
    int64_t start, stop;
    added_search s = {.text = p->text, .length = p->length, .ordinary_only = p->plain};
    const added_token *token;
    while ((token = added_next(a, &start, &stop, &s))) {
        const part before = {p->text + s.taken, start - s.taken, p->plain, p->first && s.taken == 0};
        if (before.length > 0)
            TRY(next(j, &before));
        buffer_ids_append(j->out, &token->id, 1);
        s.taken = stop;
    }
    const part rest = {p->text + s.taken, p->length - s.taken, p->plain, p->first && s.taken == 0};
    return rest.length > 0 ? next(j, &rest) : STATUS_OK;
}

/* Encodes words one by one if no merge crosses them; a word begins at a mark after another character. */
static void encode_characters(const job *j, const part *p)
{
    const bpe *b = j->b;
    const char *text = p->text;
    int64_t length = p->length;
    if (b->metaspace) {
        buffer *marked = &j->s->marked;
        marked->length = 0;
        bool begins = text[0] == ' ' || mark_begins(text, length);
        if (!begins && (b->scheme == BPE_ALWAYS || (b->scheme == BPE_FIRST && p->first)))
            buffer_append(marked, " ", 1);
        mark_append(marked, text, length);
        text = marked->bytes;
        length = marked->length;
    }
    for (int64_t at = 0, end; at < length; at = end) {
        end = b->words_apart ? at + 1 : length;
        while (end < length && !(text[end] == ' ' && text[end - 1] != ' '))
            end++;
        encode_word(j, (const uint8_t *)text + at, end - at);
    }
}

static status encode_ordinary(const job *j, const part *p)
{
    if (!j->b->characters)
        return cut_text(j, 0, p->text, p->length);
    encode_characters(j, p);
    return STATUS_OK;
}

status bpe_normalize(const bpe *b, buffer normal[2], const char **text, int64_t *length)
{
    for (int i = 0; i<b->normal_count && * length> 0; i++) {
        const bpe_normal *step = &b->normals[i];
        bool stable = step->kind == BPE_FORM && step->form == UNICODE_NFC;
        if (stable && unicode_is_stable(b->classes, *text, *length))
            continue;
        buffer *to = &normal[*text == normal[0].bytes]; /* the buffer that does not hold the text */
        to->length = 0;
        if (step->kind == BPE_FORM)
            TRY(unicode_normalize(to, *text, *length, step->form));
        if (step->kind == BPE_PREPEND) {
            buffer_append(to, " ", 1);
            buffer_append(to, *text, *length);
        }
        if (step->kind == BPE_MARK)
            mark_append(to, *text, *length);
        *text = to->bytes;
        *length = to->length;
    }
    return STATUS_OK;
}

static status encode_stretch(const job *j, const part *p)
{
    part normal = *p;
    TRY(bpe_normalize(j->b, j->s->normal, &normal.text, &normal.length));
    return around_added(j, j->b->normalized, encode_ordinary, &normal);
}

status bpe_encode(const bpe *b, bpe_scratch *s, buffer_ids *out, const char *text, int64_t length, bool plain)
{
    job j = {b, s, out};
    const part whole = {text, length, plain, true};
    return around_added(&j, b->raw, encode_stretch, &whole);
}
