#include "engine/tokenizer/bpe.h"

#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/words.h"
#include "memory/log.h"

struct bpe_scratch {
    words *words;
    merges_scratch *merging;
    pattern_scratch *matching;
    buffer_ids symbols;
    buffer normal[2];         /* normal forms, by turns */
    buffer spaced[BPE_STEPS]; /* text with a space put in front, by step */
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
    free(s);
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

typedef status part_function(const job *j, const char *text, int64_t length, bool plain);

/* Emit the added tokens of `a` in the text and hand the parts between them on. */
static status around_added(const job *j, const added *a, part_function *part, const char *text, int64_t length,
                           bool plain)
{
    int64_t start, stop;
    added_search s = {.text = text, .length = length, .ordinary_only = plain};
    const added_token *token;
    while ((token = added_next(a, &start, &stop, &s))) {
        if (start > s.taken)
            TRY(part(j, text + s.taken, start - s.taken, plain));
        buffer_ids_append(j->out, &token->id, 1);
        s.taken = stop;
    }
    return s.taken < length ? part(j, text + s.taken, length - s.taken, plain) : STATUS_OK;
}

static status encode_ordinary(const job *j, const char *text, int64_t length, bool plain)
{
    (void)plain;
    return cut(j, 0, text, length);
}

static status encode_stretch(const job *j, const char *text, int64_t length, bool plain)
{
    const bpe *b = j->b;
    for (int i = 0; i < b->form_count; i++) {
        if (b->forms[i] == UNICODE_NFC && unicode_is_stable(b->classes, text, length))
            continue;
        buffer *normal = &j->s->normal[i & 1];
        TRY(unicode_normalize(normal, text, length, b->forms[i]));
        text = normal->bytes;
        length = normal->length;
    }
    return around_added(j, b->normalized, encode_ordinary, text, length, plain);
}

status bpe_encode(const bpe *b, bpe_scratch *s, buffer_ids *out, const char *text, int64_t length, bool plain)
{
    job j = {b, s, out};
    return around_added(&j, b->raw, encode_stretch, text, length, plain);
}
