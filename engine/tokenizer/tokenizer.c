#include "engine/tokenizer/tokenizer.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/pieces.h"
#include "engine/tokenizer/sentencepiece.h"
#include "engine/tokenizer/sentencepiece_model.h"
#include "engine/text/unicode.h"
#include "engine/tokenizer/vocabulary.h"
#include "memory/log.h"
#include "memory/scope.h"

typedef struct kind {
    const char *name, *suffix; /* name; suffix of the saved file, tokenizer.SUFFIX */
    bool repairs;              /* needs well-formed UTF-8 */
    status (*open)(tokenizer *t, const json_t *config, const char *name);
    void (*close)(tokenizer *t);
    status (*encode)(const tokenizer *t, tokenizer_scratch *s, buffer_ids *out, const char *text, int64_t length,
                     int flags);
} kind;

struct tokenizer {
    const kind *kind;
    buffer source, config; /* the original file; its tokenizer_config.json, or empty */
    const vocabulary *vocabulary;
    vocabulary *own; /* the byte tokenizer's */
    bpe *bpe;
    sentencepiece_model *model;
    sentencepiece_processor *processor;
    pieces *pieces; /* NULL: the library encodes */
    tokenizer_ids ids;
    tokenizer_begin begin;
    buffer_ids before, after; /* the frame of a text */
    bool reframed;            /* another than its own files' */
    bool splits_special;      /* names of special tokens in a text are always text */
};

struct tokenizer_scratch {
    bpe_scratch *bpe;
    pieces_scratch *pieces;
    buffer repaired;
    int64_t repairs;
};

#define PART_BYTES (1 << 20) /* bytes of a long text that the library encodes at once */

/* --- bytes -------------------------------------------------------------------------------------------------------- */

static const char bytes_file[] = "phalanx tokenizer: bytes (ids 0 to 255; 256 ends a document)\n";

static status bytes_open(tokenizer *t, const json_t *config, const char *name)
{
    (void)config, (void)name;
    t->own = vocabulary_open();
    for (int byte = 0; byte < 256; byte++)
        (void)vocabulary_add(t->own, byte, &(char){(char)byte}, 1, VOCABULARY_INDEXED);
    (void)vocabulary_add(t->own, 256, "<eod>", 5, VOCABULARY_SPECIAL);
    t->vocabulary = t->own;
    t->ids.eos = t->ids.end_of_document = 256;
    return STATUS_OK;
}

static void bytes_close(tokenizer *t)
{
    vocabulary_close(t->own);
}

static status bytes_encode(const tokenizer *t, tokenizer_scratch *s, buffer_ids *out, const char *text, int64_t length,
                           int flags)
{
    (void)t, (void)s, (void)flags;
    buffer_ids_reserve(out, length);
    for (int64_t i = 0; i < length; i++)
        out->ids[out->count++] = (uint8_t)text[i];
    return STATUS_OK;
}

/* --- SentencePiece ------------------------------------------------------------------------------------------------ */

static status model_open(tokenizer *t, const json_t *config, const char *name)
{
    (void)config;
    TRY(sentencepiece_model_open(&t->model, t->source.bytes, t->source.length, name));
    TRY(sentencepiece_open(&t->processor, t->source.bytes, t->source.length, name));
    t->pieces = pieces_open(t->model);
    t->vocabulary = t->model->pieces;
    const sentencepiece_ids ids = sentencepiece_reserved(t->processor);
    t->ids = (tokenizer_ids){ids.bos, ids.eos, ids.pad, ids.unknown, ids.eos};
    buffer_ids_append(&t->before, &t->ids.bos, t->ids.bos >= 0);
    return STATUS_OK;
}

static void model_close(tokenizer *t)
{
    pieces_close(t->pieces);
    sentencepiece_model_close(t->model);
    sentencepiece_close(t->processor);
}

static bool is_plain(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Finds the cut of a long text for the library, which takes some hundred times its memory: a single space between two
 * letters, which the model's own leading space replaces in the second part. A unigram's scores are then summed from
 * zero again, so that the whole might take another of two paths that differ by a rounding. */
static int64_t part_end(const tokenizer *t, const char *text, int64_t length)
{
    if (t->pieces || length <= PART_BYTES || !t->model->dummy_prefix || t->model->space_suffix)
        return length;
    for (int64_t at = PART_BYTES; at + 1 < length; at++)
        if (text[at] == ' ' && is_plain(text[at - 1]) && is_plain(text[at + 1]))
            return at;
    return length;
}

static status model_encode(const tokenizer *t, tokenizer_scratch *s, buffer_ids *out, const char *text, int64_t length,
                           int flags)
{
    (void)flags;
    while (length > 0) {
        int64_t end = part_end(t, text, length);
        if (end >= INT32_MAX - 1)
            return status_fail(STATUS_FAILED, "a text of %lld bytes: SentencePiece takes 2 GiB", (long long)length);
        if (t->pieces)
            pieces_encode(t->pieces, s->pieces, out, text, end);
        else
            TRY(sentencepiece_encode(t->processor, out, text, end));
        if (end < length)
            end++; /* the space */
        text += end;
        length -= end;
    }
    return STATUS_OK;
}

/* --- BPE of a tokenizer.json -------------------------------------------------------------------------------------- */

/* Names that end a document in common vocabularies, if no file says which one does. */
static const char *const end_names[] = {
    "<|endoftext|>", "<|end_of_text|>", "<|endofdocument|>", "<|end_of_document|>", "<eod>", "</s>",
    "<eos>",         "<|eos|>"};

static int32_t configured_id(const tokenizer *t, const json_t *config, const char *key)
{
    json_t *value = json_object_get(config, key);
    if (json_is_object(value)) /* {"content": "<s>", "lstrip": ...} */
        value = json_object_get(value, "content");
    return json_is_string(value) ? tokenizer_find(t, json_string_value(value), (int64_t)json_string_length(value)) : -1;
}

static status merging_open(tokenizer *t, const json_t *config, const char *name)
{
    TRY(bpe_json_open(&t->bpe, t->source.bytes, (size_t)t->source.length, name));
    t->vocabulary = t->bpe->vocabulary;
    t->ids.bos = configured_id(t, config, "bos_token");
    t->ids.eos = configured_id(t, config, "eos_token");
    t->ids.pad = configured_id(t, config, "pad_token");
    t->ids.unknown = t->bpe->unknown;
    t->splits_special = json_is_true(json_object_get(config, "split_special_tokens"));
    for (unsigned i = 0; i < sizeof end_names / sizeof *end_names && t->ids.end_of_document < 0; i++)
        t->ids.end_of_document = tokenizer_find(t, end_names[i], (int64_t)strlen(end_names[i]));
    if (t->ids.end_of_document < 0)
        t->ids.end_of_document = t->ids.eos;
    if (t->ids.eos < 0)
        t->ids.eos = t->ids.end_of_document;
    if (t->ids.bos < 0 && t->bpe->before.count == 1)
        t->ids.bos = t->bpe->before.ids[0];
    buffer_ids_append(&t->before, t->bpe->before.ids, t->bpe->before.count);
    buffer_ids_append(&t->after, t->bpe->after.ids, t->bpe->after.count);
    return STATUS_OK;
}

static void merging_close(tokenizer *t)
{
    bpe_close(t->bpe);
}

static status merging_encode(const tokenizer *t, tokenizer_scratch *s, buffer_ids *out, const char *text,
                             int64_t length, int flags)
{
    return bpe_encode(t->bpe, s->bpe, out, text, length, t->splits_special || flags & TOKENIZER_PLAIN);
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

enum { MODEL, MERGING, BYTES, KINDS };

static const kind kinds[KINDS] = {
    [MODEL] = {"SentencePiece", "model", true, model_open, model_close, model_encode},
    [MERGING] = {"BPE", "json", true, merging_open, merging_close, merging_encode},
    [BYTES] = {"bytes", "bytes", false, bytes_open, bytes_close, bytes_encode},
};

/* A model begins with its first piece (field 1), JSON with a brace. */
static const kind *kind_of(const buffer *source)
{
    int64_t at = 0;
    while (at < source->length && strchr(" \t\r\n", source->bytes[at]) && source->bytes[at] && at < 4096)
        at++;
    if (at < source->length && source->bytes[at] == '{')
        return &kinds[MERGING];
    if (source->length && source->bytes[0] == '\n')
        return &kinds[MODEL];
    if (source->length >= 18 && memcmp(source->bytes, bytes_file, 18) == 0)
        return &kinds[BYTES];
    return NULL;
}

const char *const tokenizer_suffixes[] = {"model", "bytes", "json", NULL};

static tokenizer *make_tokenizer(const kind *k)
{
    tokenizer *t = must_calloc(1, sizeof *t);
    t->kind = k;
    t->ids.bos = t->ids.eos = t->ids.pad = t->ids.unknown = t->ids.end_of_document = -1;
    return t;
}

/* Takes the beginning of a text from the configuration: files of these kinds do not say it, and an export must. */
static void follow_config(tokenizer *t, const json_t *config)
{
    const json_t *add = json_object_get(config, "add_bos_token");
    int32_t bos = json_is_true(add) ? configured_id(t, config, "bos_token") : -1;
    if (t->kind == &kinds[MERGING])
        return;
    buffer_free(&t->config); /* names of tokens and classes that the file has itself */
    if (json_is_boolean(add) && (bos >= 0 || json_is_false(add))) {
        t->before.count = 0;
        t->ids.bos = bos;
        buffer_ids_append(&t->before, &bos, bos >= 0);
    }
}

status tokenizer_open(tokenizer **out, const tokenizer_source *source, const char *name)
{
    AUTO(tokenizer) *t = make_tokenizer(NULL);
    buffer_append(&t->source, source->file, source->length);
    buffer_append(&t->config, source->config, source->config_length);
    t->kind = kind_of(&t->source);
    if (!t->kind)
        return status_fail(STATUS_FAILED, "%s: neither a SentencePiece model nor a tokenizer.json", name);
    json_error_t error = {0};
    json_auto_t *config =
        t->config.length ? json_loadb(t->config.bytes, (size_t)t->config.length, 0, &error) : json_object();
    if (!config)
        return status_fail(STATUS_FAILED, "tokenizer_config.json beside %s:%d:%d: %s", name, error.line, error.column,
                           error.text);
    TRY(t->kind->open(t, config, name));
    follow_config(t, config);
    *out = TAKE(t);
    return STATUS_OK;
}

tokenizer *tokenizer_open_bytes(void)
{
    tokenizer *t = make_tokenizer(&kinds[BYTES]);
    buffer_append(&t->source, bytes_file, sizeof bytes_file - 1);
    MUST(t->kind->open(t, NULL, "bytes") == STATUS_OK, "the byte tokenizer does not open");
    return t;
}

void tokenizer_close(tokenizer *t)
{
    if (!t)
        return;
    if (t->kind)
        t->kind->close(t);
    buffer_free(&t->source);
    buffer_free(&t->config);
    buffer_ids_free(&t->before);
    buffer_ids_free(&t->after);
    free(t);
}

tokenizer_source tokenizer_made_from(const tokenizer *t)
{
    return (tokenizer_source){t->source.bytes, t->source.length, t->config.bytes, t->config.length};
}

const char *tokenizer_suffix(const tokenizer *t)
{
    return t->kind->suffix;
}

/* --- the beginning of a text -------------------------------------------------------------------------------------- */

const char *const tokenizer_begin_words[] = {"unknown", "nothing", "end", "token", "tokenizer", NULL};

bool tokenizer_begin_find(tokenizer_begin *out, const char *word)
{
    for (int i = TOKENIZER_BEGIN_NOTHING; word && i < TOKENIZER_BEGINS; i++)
        if (strcmp(word, tokenizer_begin_words[i]) == 0) {
            *out = (tokenizer_begin)i;
            return true;
        }
    return false;
}

void tokenizer_begin_with(tokenizer *t, tokenizer_begin begin)
{
    t->begin = begin;
    if (begin == TOKENIZER_BEGIN_UNKNOWN || begin == TOKENIZER_BEGIN_OWN)
        return;
    int32_t bos = begin == TOKENIZER_BEGIN_NOTHING ? -1
                  : begin == TOKENIZER_BEGIN_END   ? t->ids.end_of_document
                                                   : t->ids.bos;
    const buffer_ids own = t->before;
    t->reframed = t->after.count || own.count != (bos >= 0) || (own.count && own.ids[0] != bos);
    t->before.count = t->after.count = 0;
    buffer_ids_append(&t->before, &bos, bos >= 0);
    t->ids.bos = bos;
}

tokenizer_begin tokenizer_begins_with(const tokenizer *t)
{
    return t->begin;
}

bool tokenizer_is_reframed(const tokenizer *t)
{
    return t->reframed;
}

/* --- encode and decode -------------------------------------------------------------------------------------------- */

tokenizer_scratch *tokenizer_scratch_open(const tokenizer *t)
{
    tokenizer_scratch *s = must_calloc(1, sizeof *s);
    if (t->bpe)
        s->bpe = bpe_scratch_open();
    if (t->pieces)
        s->pieces = pieces_scratch_open();
    return s;
}

void tokenizer_scratch_close(tokenizer_scratch *s)
{
    if (!s)
        return;
    bpe_scratch_close(s->bpe);
    pieces_scratch_close(s->pieces);
    buffer_free(&s->repaired);
    free(s);
}

int64_t tokenizer_scratch_repaired(const tokenizer_scratch *s)
{
    return s->repairs;
}

status tokenizer_encode(const tokenizer *t, tokenizer_scratch *s, buffer_ids *out, const char *text, int64_t length,
                        int flags)
{
    if (t->kind->repairs && unicode_check(text, length) != length) {
        s->repaired.length = 0;
        s->repairs++;
        unicode_repair(&s->repaired, text, length);
        text = s->repaired.bytes;
        length = s->repaired.length;
    }
    if (flags & TOKENIZER_FRAME)
        buffer_ids_append(out, t->before.ids, t->before.count);
    TRY(t->kind->encode(t, s, out, text, length, flags));
    if (flags & TOKENIZER_FRAME)
        buffer_ids_append(out, t->after.ids, t->after.count);
    return STATUS_OK;
}

/* Returns the bytes that an id appends. A SentencePiece model puts a space in front of a text (or removes the existing
 * ones): decoding removes it again. */
static const char *bytes_of(const tokenizer *t, int64_t *length, bool *started, int32_t id, bool skip_special)
{
    const char *bytes = vocabulary_bytes(t->vocabulary, length, id);
    bool hidden = skip_special || t->model;
    if ((hidden && tokenizer_is_special(t, id)) || *length == 0) {
        *length = 0;
        return "";
    }
    const sentencepiece_model *m = t->model;
    bool strips = m ? m->dummy_prefix || m->remove_extra : t->bpe && t->bpe->strips_first;
    if (!*started && strips && bytes[0] == ' ' && id != t->ids.unknown) {
        bytes++;
        --*length;
        *started = !m || !m->remove_extra || *length;
    } else {
        *started = true;
    }
    return bytes;
}

void tokenizer_decode(const tokenizer *t, buffer *out, const int32_t *ids, int64_t count, bool skip_special)
{
    bool started = false;
    for (int64_t i = 0; i < count; i++) {
        int64_t length;
        const char *bytes = bytes_of(t, &length, &started, ids[i], skip_special);
        buffer_append(out, bytes, length);
    }
}

void tokenizer_stream_next(const tokenizer *t, tokenizer_stream *d, buffer *out, int32_t id, bool skip_special)
{
    int64_t length;
    const char *bytes = bytes_of(t, &length, &d->started, id, skip_special);
    RELEASED_BY(buffer_free) buffer all = {0};
    buffer_append(&all, d->bytes, d->waiting);
    buffer_append(&all, bytes, length);
    d->waiting = 0;
    for (int64_t at = 0; at < all.length;) {
        int64_t good = unicode_check(all.bytes + at, all.length - at);
        buffer_append(out, all.bytes + at, good);
        at += good;
        if (at == all.length)
            break;
        bool cut;
        int bad = unicode_malformed(all.bytes + at, all.length - at, &cut);
        if (cut) {
            memcpy(d->bytes, all.bytes + at, (size_t)bad);
            d->waiting = bad;
            break;
        }
        buffer_append(out, "\xEF\xBF\xBD", 3);
        at += bad;
    }
}

void tokenizer_stream_end(tokenizer_stream *d, buffer *out)
{
    if (d->waiting)
        buffer_append(out, "\xEF\xBF\xBD", 3);
    *d = (tokenizer_stream){0};
}

/* --- facts -------------------------------------------------------------------------------------------------------- */

const tokenizer_ids *tokenizer_ids_of(const tokenizer *t)
{
    return &t->ids;
}

const sentencepiece_model *tokenizer_model(const tokenizer *t)
{
    return t->model;
}

bool tokenizer_splits_special(const tokenizer *t)
{
    return t->splits_special;
}

const char *tokenizer_kind(const tokenizer *t)
{
    return t->kind->name;
}

int32_t tokenizer_vocab_size(const tokenizer *t)
{
    return vocabulary_size(t->vocabulary);
}

int32_t tokenizer_data_size(const tokenizer *t)
{
    int32_t id = vocabulary_size(t->vocabulary) - 1;
    while (id >= 0 && id != t->ids.end_of_document && !(t->begin == TOKENIZER_BEGIN_TOKEN && id == t->ids.bos) &&
           (tokenizer_is_special(t, id) || !vocabulary_flags(t->vocabulary, id)))
        id--;
    return id + 1;
}

const char *tokenizer_token(const tokenizer *t, int64_t *length, int32_t id)
{
    return vocabulary_bytes(t->vocabulary, length, id);
}

bool tokenizer_equal(const tokenizer *a, const tokenizer *b)
{
    return a->source.length == b->source.length &&
           memcmp(a->source.bytes, b->source.bytes, (size_t)a->source.length) == 0;
}

bool tokenizer_is_special(const tokenizer *t, int32_t id)
{
    return vocabulary_flags(t->vocabulary, id) & VOCABULARY_SPECIAL;
}

int32_t tokenizer_find(const tokenizer *t, const char *bytes, int64_t length)
{
    int32_t size = vocabulary_size(t->vocabulary);
    for (int32_t id = 0; id < size; id++) {
        int64_t own;
        const char *token = vocabulary_bytes(t->vocabulary, &own, id);
        if (own == length && length && tokenizer_is_special(t, id) && memcmp(token, bytes, (size_t)length) == 0)
            return id;
    }
    return vocabulary_find(t->vocabulary, bytes, length);
}
