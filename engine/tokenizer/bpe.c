#include "engine/tokenizer/bpe.h"

#include <stdlib.h>

#include "engine/tokenizer/vocabulary.h"
#include "engine/tokenizer/merges.h"
#include "memory/log.h"

struct bpe_scratch {
    words *words;
    merges_scratch *merging;
    pattern_scratch *matching;
    buffer_ids symbols;
    buffer normal[2];         /* normal forms, by turns */
    buffer spaced[BPE_STEPS]; /* text with a space put in front, by step */
    buffer marked;            /* a part with spaces for marks */
};

typedef struct job { /* what every step of one bpe_encode needs */
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

/* The token of each byte. */
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

/* The token of each character, or those of its bytes; a space is a mark. */
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

/* Cut text by step number `step` and hand the pieces to the next one; after the last step they are words. */
static status cut(const job *j, int step, const char *text, int64_t length)
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
        return cut(j, step + 1, text, length);
    int64_t done = 0, from = 0, start, stop;
    while (from <= length) {
        TRY(pattern_next(rule->cut, j->s->matching, &start, &stop, text, from, length));
        if (start < 0)
            break;
        if (start > done && !rule->drop_others)
            TRY(cut(j, step + 1, text + done, start - done));
        if (!rule->drop_matches)
            TRY(cut(j, step + 1, text + start, stop - start));
        done = from = stop;
        if (stop == start) { /* an empty match is a cut; go on after the next character */
            uint32_t code;
            from += from < length ? unicode_decode((const uint8_t *)text + from, &code) : 1;
        }
    }
    return rule->drop_others ? STATUS_OK : cut(j, step + 1, text + done, length - done);
}

/* What stands between added tokens; `first`: it begins the text. */
typedef struct part {
    const char *text;
    int64_t length;
    bool plain, first;
} part;

typedef status part_function(const job *j, const part *p);

/* Emit the added tokens of `a` in the text and hand the parts between them on. */
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

/* Words begin at a mark behind another character; without merges across those they are encoded one by one. */
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
        return cut(j, 0, p->text, p->length);
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
        buffer *to = &normal[*text == normal[0].bytes]; /* the one that it is not in */
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
