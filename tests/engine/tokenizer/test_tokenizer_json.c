/* The tokenizer.json that is written means our ids: it is read here as Hugging Face's `tokenizers` reads it, by rules
 * written down once more. (interop_autotokenizer.py asks the library itself.) */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/merges.h"
#include "engine/tokenizer/sentencepiece_model.h"
#include "engine/text/unicode.h"
#include "engine/data/tokenizer_files.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

#define FOLDER "tests/golden/text/"
#define MARK   "\xE2\x96\x81"

static uint64_t random_state;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)((random_state >> 33) % n);
}

static void random_text(buffer *out)
{
    static const char *const parts[] = {
        "the", " of ", " and ", "  ",  "12",   "foo(x);",         MARK,     "\xE6\x88\x91",
        "ing", "aaaa", "----",  "<s>", "</s>", "<unk>",           "<0x41>", "na\xC3\xAFve",
        " ",   "a",    "\n",    "\t",  "=",    "\xF0\x9F\x98\x80"};
    out->length = 0;
    for (uint32_t n = 1 + random_below(25); n; n--) {
        const char *word = parts[random_below(sizeof parts / sizeof *parts)];
        buffer_append(out, word, (int64_t)strlen(word));
    }
}

/* Open a tokenizer (a unigram model with rounded scores) and read the file that is written of it. */
static json_t *written(tokenizer **t, const char *path)
{
    buffer text = {0};
    int64_t bytes;
    json_error_t error;
    if (strcmp(path, "bytes") == 0) {
        *t = tokenizer_open_bytes();
    } else {
        AUTO_FREE uint8_t *file = workfolder_read(path, &bytes);
        if (strstr(path, "unigram"))
            assert_int_equal(sentencepiece_model_round(file, bytes, path), STATUS_OK);
        const tokenizer_source source = {.file = (const char *)file, .length = bytes};
        if (tokenizer_open(t, &source, path) != STATUS_OK)
            fail_msg("%s", status_message());
    }
    if (tokenizer_json_write(&text, *t) != STATUS_OK)
        fail_msg("%s", status_message());
    json_t *root = json_loadb(text.bytes, (size_t)text.length, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        fail_msg("line %d: %s", error.line, error.text);
    buffer_free(&text);
    return root;
}

static const char *text_at(const json_t *value, const char *key)
{
    return json_string_value(json_object_get(value, key));
}

/* The normalizers that are written: Prepend (of what is not empty), Replace of a string. */
static void normalize(buffer *text, const json_t *normalizer)
{
    const json_t *steps = json_object_get(normalizer, "normalizers");
    assert_string_equal(text_at(normalizer, "type"), "Sequence");
    for (size_t i = 0; i < json_array_size(steps); i++) {
        const json_t *step = json_array_get(steps, i);
        buffer made = {0};
        if (strcmp(text_at(step, "type"), "Prepend") == 0) {
            if (text->length)
                buffer_append(&made, text_at(step, "prepend"), (int64_t)strlen(text_at(step, "prepend")));
            buffer_append(&made, text->bytes, text->length);
        } else {
            const char *pattern = text_at(json_object_get(step, "pattern"), "String"),
                       *content = text_at(step, "content");
            assert_string_equal(text_at(step, "type"), "Replace");
            assert_int_equal(strlen(pattern), 1);
            for (int64_t at = 0; at < text->length; at++)
                if (text->bytes[at] == *pattern)
                    buffer_append(&made, content, (int64_t)strlen(content));
                else
                    buffer_append(&made, text->bytes + at, 1);
        }
        buffer_free(text);
        *text = made;
    }
}

/* The ids of a character's bytes. */
static void put_bytes(buffer_ids *out, const json_t *ids, const char *bytes, int64_t length)
{
    for (int64_t i = 0; i < length; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)(uint8_t)bytes[i]);
        const json_t *id = json_object_get(ids, name);
        assert_non_null(id);
        buffer_ids_append(out, &(int32_t){(int32_t)json_integer_value(id)}, 1);
    }
}

/* BPE: characters, unknown ones as their bytes; then the pair whose merge is earliest in the list, the leftmost of
 * these. */
static void encode_bpe(buffer_ids *out, const merges *m, merges_scratch *scratch, const json_t *vocab,
                       const buffer *text)
{
    buffer_ids symbols = {0};
    uint32_t code;
    for (int64_t at = 0, step; at < text->length; at += step) {
        char character[5] = {0};
        step = unicode_decode((const uint8_t *)text->bytes + at, &code);
        memcpy(character, text->bytes + at, (size_t)step);
        const json_t *id = json_object_get(vocab, character);
        if (id)
            buffer_ids_append(&symbols, &(int32_t){(int32_t)json_integer_value(id)}, 1);
        else
            put_bytes(&symbols, vocab, character, step);
    }
    if (symbols.count)
        merges_apply(m, scratch, out, symbols.ids, symbols.count);
    buffer_ids_free(&symbols);
}

static merges *read_merges(const json_t *model)
{
    const json_t *list = json_object_get(model, "merges"), *vocab = json_object_get(model, "vocab");
    merges *m = merges_open((int64_t)json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        char *left = must_strdup(json_string_value(json_array_get(list, i))), *right = strchr(left, ' ');
        assert_non_null(right);
        *right++ = 0;
        assert_null(strchr(right, ' '));
        AUTO_FREE char *whole = must_format("%s%s", left, right);
        const char *names[] = {left, right, whole};
        int32_t ids[3];
        for (int k = 0; k < 3; k++) {
            assert_non_null(json_object_get(vocab, names[k]));
            ids[k] = (int32_t)json_integer_value(json_object_get(vocab, names[k]));
        }
        merges_add(m, ids[0], ids[1], (uint32_t)i, ids[2]);
        free(left);
    }
    return m;
}

/* Unigram: the path of the highest score in double precision, over all pieces, whatever they are to the library; an
 * unknown character has the lowest score of all, less 10. */
static void encode_unigram(buffer_ids *out, const json_t *ids, const double *scores, double unknown, const buffer *text)
{
    int64_t length = text->length, *from = must_alloc((unsigned long)(length + 1) * sizeof *from);
    AUTO_FREE double *best = must_alloc((unsigned long)(length + 1) * sizeof *best);
    int32_t *piece = must_alloc((unsigned long)(length + 1) * sizeof *piece);
    char name[64];
    uint32_t code;
    for (int64_t i = 0; i <= length; i++)
        from[i] = -1;
    best[0] = 0.0;
    for (int64_t start = 0, step; start < length; start += step) {
        step = unicode_decode((const uint8_t *)text->bytes + start, &code);
        bool single = false;
        for (int64_t end = start + 1; end <= length && end - start < (int64_t)sizeof name; end++) {
            memcpy(name, text->bytes + start, (size_t)(end - start));
            name[end - start] = 0;
            const json_t *id = json_object_get(ids, name);
            double score = id ? scores[json_integer_value(id)] + best[start] : 0.0;
            single |= id && end - start == step;
            if (id && (from[end] < 0 || score > best[end])) {
                best[end] = score;
                from[end] = start;
                piece[end] = (int32_t)json_integer_value(id);
            }
        }
        if (!single && (from[start + step] < 0 || unknown + best[start] > best[start + step])) {
            best[start + step] = unknown + best[start];
            from[start + step] = start;
            piece[start + step] = -1;
        }
    }
    int64_t count = 0, *ends = must_alloc((unsigned long)(length + 1) * sizeof *ends);
    for (int64_t at = length; at > 0; at = from[at])
        ends[count++] = at;
    while (count--)
        if (piece[ends[count]] >= 0)
            buffer_ids_append(out, &piece[ends[count]], 1);
        else
            put_bytes(out, ids, text->bytes + from[ends[count]], ends[count] - from[ends[count]]);
    free(ends);
    free(from);
    free(piece);
}

static void same_ids(const buffer_ids *a, const buffer_ids *b, const buffer *text)
{
    if (a->count != b->count || (a->count && memcmp(a->ids, b->ids, (size_t)a->count * sizeof *a->ids) != 0))
        fail_msg("other ids of \"%.*s\"", (int)text->length, text->bytes);
}

TEST(bpe_of_a_sentencepiece_model_has_its_ids)
{
    tokenizer *t;
    json_t *root = written(&t, FOLDER "bpe.model"), *model = json_object_get(root, "model");
    const json_t *vocab = json_object_get(model, "vocab");
    assert_string_equal(text_at(model, "type"), "BPE");
    assert_true(json_is_true(json_object_get(model, "byte_fallback")));
    assert_true(json_is_true(json_object_get(model, "fuse_unk")));
    assert_int_equal(json_object_size(vocab), tokenizer_vocab_size(t));
    merges *m = read_merges(model);
    merges_scratch *scratch = merges_scratch_open();
    tokenizer_scratch *s = tokenizer_scratch_open(t);
    buffer text = {0};
    buffer_ids ours = {0}, theirs = {0};
    random_state = 1;
    for (int i = 0; i < 2000; i++) {
        random_text(&text);
        ours.count = theirs.count = 0;
        assert_int_equal(tokenizer_encode(t, s, &ours, text.bytes, text.length, 0), STATUS_OK);
        normalize(&text, json_object_get(root, "normalizer"));
        encode_bpe(&theirs, m, scratch, vocab, &text);
        same_ids(&ours, &theirs, &text);
    }
    buffer_free(&text);
    buffer_ids_free(&ours);
    buffer_ids_free(&theirs);
    merges_scratch_close(scratch);
    merges_close(m);
    tokenizer_scratch_close(s);
    tokenizer_close(t);
    json_decref(root);
}

TEST(unigram_of_a_sentencepiece_model_has_its_ids)
{
    tokenizer *t;
    json_t *root = written(&t, FOLDER "unigram.model"), *model = json_object_get(root, "model"), *ids = json_object();
    const json_t *vocab = json_object_get(model, "vocab");
    size_t size = json_array_size(vocab);
    double *scores = must_alloc(size * sizeof *scores), lowest = 0.0;
    assert_string_equal(text_at(model, "type"), "Unigram");
    assert_int_equal(size, tokenizer_vocab_size(t));
    assert_int_equal(json_integer_value(json_object_get(model, "unk_id")), tokenizer_ids_of(t)->unknown);
    assert_true(json_is_null(json_object_get(root, "pre_tokenizer"))); /* "<s>" can be spelled */
    for (size_t i = 0; i < size; i++) {
        const json_t *pair = json_array_get(vocab, i);
        json_object_set_new(ids, json_string_value(json_array_get(pair, 0)), json_integer((json_int_t)i));
        scores[i] = json_number_value(json_array_get(pair, 1));
        lowest = scores[i] < lowest ? scores[i] : lowest;
    }
    tokenizer_scratch *s = tokenizer_scratch_open(t);
    buffer text = {0};
    buffer_ids ours = {0}, theirs = {0};
    random_state = 1;
    for (int i = 0; i < 2000; i++) {
        random_text(&text);
        ours.count = theirs.count = 0;
        assert_int_equal(tokenizer_encode(t, s, &ours, text.bytes, text.length, 0), STATUS_OK);
        normalize(&text, json_object_get(root, "normalizer"));
        encode_unigram(&theirs, ids, scores, lowest - 10.0, &text);
        same_ids(&ours, &theirs, &text);
    }
    free(scores);
    buffer_free(&text);
    buffer_ids_free(&ours);
    buffer_ids_free(&theirs);
    tokenizer_scratch_close(s);
    tokenizer_close(t);
    json_decref(ids);
    json_decref(root);
}

/* Read by ourselves: a byte-level BPE without merges. */
TEST(bytes_are_a_byte_level_bpe)
{
    tokenizer *t, *again;
    json_t *root = written(&t, "bytes");
    char *json = json_dumps(root, 0);
    const tokenizer_source source = {.file = json, .length = (int64_t)strlen(json)};
    if (tokenizer_open(&again, &source, "written") != STATUS_OK)
        fail_msg("%s", status_message());
    assert_int_equal(tokenizer_vocab_size(again), 257);
    assert_int_equal(tokenizer_find(again, "<eod>", 5), 256);
    buffer text = {0};
    buffer_ids ours = {0}, theirs = {0};
    tokenizer_scratch *s = tokenizer_scratch_open(t), *other = tokenizer_scratch_open(again);
    random_state = 1;
    for (int i = 0; i < 300; i++) {
        random_text(&text);
        buffer_append(&text, "\x01\x7F\xC2\xA0\xC2\xAD", 6);
        ours.count = theirs.count = 0;
        assert_int_equal(tokenizer_encode(t, s, &ours, text.bytes, text.length, 0), STATUS_OK);
        assert_int_equal(tokenizer_encode(again, other, &theirs, text.bytes, text.length, TOKENIZER_PLAIN), STATUS_OK);
        same_ids(&ours, &theirs, &text);
    }
    assert_true(tokenizer_json_splits_names(t) && !tokenizer_json_splits_names(again));
    buffer_free(&text);
    buffer_ids_free(&ours);
    buffer_ids_free(&theirs);
    tokenizer_scratch_close(s);
    tokenizer_scratch_close(other);
    tokenizer_close(t);
    tokenizer_close(again);
    free(json);
    json_decref(root);
}

TEST(special_tokens_frame_and_map_are_written)
{
    tokenizer *t;
    json_t *root = written(&t, FOLDER "mapped.model"), *added = json_object_get(root, "added_tokens");
    static const char *const names[] = {"<unk>", "<s>", "</s>"};
    assert_int_equal(json_array_size(added), 3);
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(text_at(json_array_get(added, i), "content"), names[i]);
        assert_int_equal(json_integer_value(json_object_get(json_array_get(added, i), "id")), i);
        assert_true(json_is_true(json_object_get(json_array_get(added, i), "special")));
    }
    const json_t *single = json_object_get(json_object_get(root, "post_processor"), "single");
    assert_string_equal(text_at(json_object_get(json_array_get(single, 0), "SpecialToken"), "id"), "<s>");
    assert_string_equal(text_at(json_object_get(json_array_get(single, 1), "Sequence"), "id"), "A");
    assert_int_equal(json_array_size(single), 2);
    const json_t *steps = json_object_get(json_object_get(root, "normalizer"), "normalizers");
    static const char *const types[] = {"Precompiled", "Replace", "Replace", "Prepend", "Replace", "Replace"};
    assert_int_equal(json_array_size(steps), 6);
    for (size_t i = 0; i < 6; i++)
        assert_string_equal(text_at(json_array_get(steps, i), "type"), types[i]);
    const sentencepiece_model *m = tokenizer_model(t);
    const char *map = text_at(json_array_get(steps, 0), "precompiled_charsmap");
    assert_int_equal(strlen(map), (m->map.length + 2) / 3 * 4);
    assert_false(json_is_true(json_object_get(json_object_get(root, "model"), "byte_fallback")));
    tokenizer_close(t);
    json_decref(root);
}

/* A model's pieces of a type that `tokenizers` has nothing for. */
TEST(what_has_no_counterpart_is_refused)
{
    static const struct {
        const char *file;
        int type;
        const char *message;
    } cases[] = {{"unigram.model", SENTENCEPIECE_MODEL_USER, "is user-defined"},
                 {"bpe.model", SENTENCEPIECE_MODEL_UNUSED, "is unused"}};
    for (int i = 0; i < 2; i++) {
        AUTO_FREE char *path = must_format(FOLDER "%s", cases[i].file);
        int64_t bytes;
        AUTO_FREE uint8_t *file = workfolder_read(path, &bytes);
        uint8_t *control = memmem(file, (size_t)bytes, "<s>", 3); /* then its score, then 18 03: the type */
        assert_non_null(control);
        uint8_t *type = memmem(control, 20, "\x18\x03", 2);
        assert_non_null(type);
        type[1] = (uint8_t)cases[i].type;
        const tokenizer_source source = {.file = (const char *)file, .length = bytes};
        tokenizer *t;
        buffer text = {0};
        if (tokenizer_open(&t, &source, path) != STATUS_OK)
            fail_msg("%s", status_message());
        assert_int_equal(tokenizer_json_write(&text, t), STATUS_FAILED);
        workfolder_message_has(cases[i].message);
        workfolder_message_has("<s>");
        assert_int_equal(text.length, 0);
        tokenizer_close(t);
    }
}

TEST_MAIN(NULL, NULL)
