#include "engine/tokenizer/bpe.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/vocabulary.h"
#include "engine/tokenizer/pattern.h"
#include "memory/log.h"
#include "memory/scope.h"

#define WRONG(...) status_fail(STATUS_FAILED, __VA_ARGS__)

/* --- small questions to a JSON value ------------------------------------------------------------------------------ */

static bool is_absent(const json_t *value)
{
    return !value || json_is_null(value);
}

static const char *type_of(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "without type";
}

static bool is_true(const json_t *object, const char *key, bool missing)
{
    const json_t *value = json_object_get(object, key);
    return is_absent(value) ? missing : json_is_true(value);
}

static status id_of(int32_t *out, const json_t *value, const char *what, const char *token)
{
    json_int_t id = json_integer_value(value);
    if (!json_is_integer(value) || id < 0 || id >= VOCABULARY_MOST)
        return WRONG("%s: the id of \"%.80s\" is not a whole number from 0 to %d", what, token, VOCABULARY_MOST - 1);
    *out = (int32_t)id;
    return STATUS_OK;
}

/* --- the byte alphabet -------------------------------------------------------------------------------------------- */

/* Decodes a model's token to its bytes; false when a character is not of the alphabet. */
static bool token_bytes(buffer *out, const int16_t byte_of[BYTE_ALPHABET_CODES], const char *text, size_t length)
{
    out->length = 0;
    uint32_t code;
    for (size_t at = 0; at < length;) {
        at += (size_t)unicode_decode((const uint8_t *)text + at, &code);
        if (code >= BYTE_ALPHABET_CODES || byte_of[code] < 0)
            return false;
        char byte = (char)byte_of[code];
        buffer_append(out, &byte, 1);
    }
    return true;
}

/* --- model -------------------------------------------------------------------------------------------------------- */

/* Adds a token of the byte alphabet by its bytes, another by its text. */
static bool enter_bytes(bpe *b, buffer *bytes, const int16_t *byte_of, const char *key, int32_t id)
{
    size_t length = strlen(key);
    if (!token_bytes(bytes, byte_of, key, length))
        return vocabulary_add(b->vocabulary, id, key, (int64_t)length, 0);
    if (bytes->length == 1)
        b->byte_ids[(uint8_t)bytes->bytes[0]] = id;
    return vocabulary_add(b->vocabulary, id, bytes->bytes, bytes->length, VOCABULARY_INDEXED);
}

/* Adds a token of characters by its text with spaces for marks, <0x41> by its byte. */
static bool enter_characters(bpe *b, buffer *text, const char *key, int32_t id)
{
    int64_t length = (int64_t)strlen(key);
    int byte = mark_byte(key, length);
    if (byte >= 0) {
        b->byte_ids[byte] = id;
        return vocabulary_add(b->vocabulary, id, &(char){(char)byte}, 1, 0);
    }
    text->length = 0;
    mark_append(text, key, length);
    return vocabulary_add(b->vocabulary, id, text->bytes, text->length, VOCABULARY_INDEXED);
}

static status read_vocabulary(bpe *b, json_t *vocab)
{
    int16_t byte_of[BYTE_ALPHABET_CODES];
    byte_alphabet_fill(byte_of);
    RELEASED_BY(buffer_free) buffer bytes = {0};
    const char *key;
    json_t *value;
    json_object_foreach(vocab, key, value)
    {
        int32_t id = -1;
        TRY(id_of(&id, value, "model.vocab", key));
        bool entered = b->characters ? enter_characters(b, &bytes, key, id) : enter_bytes(b, &bytes, byte_of, key, id);
        if (!entered)
            return vocabulary_flags(b->vocabulary, id) ? WRONG("model.vocab: two tokens have the id %d", id)
                                                       : WRONG("model.vocab: \"%.80s\" is there with a mark, too", key);
    }
    if (vocabulary_size(b->vocabulary) == 0)
        return WRONG("model.vocab is empty");
    for (int i = 0; i < 256 && b->characters; i++)
        if (b->byte_ids[i] < 0)
            return WRONG("model.byte_fallback without <0x%02X> in model.vocab is not supported", (unsigned)i);
    return STATUS_OK;
}

/* Splits a merge into its two sides, "a b" or ["a", "b"]; the first form is cut within *own, which the caller frees. */
static status merge_sides(const char **left, const char **right, char **own, json_t *merge, size_t rank)
{
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        *left = json_string_value(json_array_get(merge, 0));
        *right = json_string_value(json_array_get(merge, 1));
        if (*left && *right)
            return STATUS_OK;
    } else if (json_is_string(merge)) {
        *own = must_strdup(json_string_value(merge));
        char *space = strchr(*own, ' ');
        if (space && !strchr(space + 1, ' ')) {
            *space = 0;
            *left = *own;
            *right = space + 1;
            return STATUS_OK;
        }
    }
    return WRONG("model.merges: number %zu is neither \"a b\" nor [\"a\", \"b\"]", rank);
}

/* True if a mark follows another character. */
static bool crosses_words(const char *text)
{
    for (const char *mark = strstr(text, MARK); mark; mark = strstr(mark + 1, MARK))
        if (mark > text && (mark - text < MARK_BYTES || !mark_begins(mark - MARK_BYTES, MARK_BYTES)))
            return true;
    return false;
}

static status read_merge(bpe *b, json_t *vocab, json_t *merge, size_t rank)
{
    const char *left = NULL, *right = NULL;
    AUTO_FREE char *own = NULL;
    int32_t ids[3];
    TRY(merge_sides(&left, &right, &own, merge, rank));
    AUTO_FREE char *whole = must_format("%s%s", left, right);
    const char *names[3] = {left, right, whole};
    for (int i = 0; i < 3; i++) {
        json_t *id = json_object_get(vocab, names[i]);
        if (!id)
            return WRONG("model.merges: number %zu needs \"%.80s\", which is not in model.vocab", rank, names[i]);
        ids[i] = (int32_t)json_integer_value(id);
    }
    merges_add(b->merges, ids[0], ids[1], (uint32_t)rank, ids[2]);
    b->words_apart = b->words_apart && !crosses_words(whole);
    return STATUS_OK;
}

static status refuse_model_extras(const json_t *model)
{
    static const char *const texts[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(model, texts[i]);
        if (!is_absent(value) && json_string_length(value) != 0)
            return WRONG("model.%s is not supported", texts[i]);
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (!is_absent(dropout) && !(json_number_value(dropout) <= 0.0))
        return WRONG("model.dropout is not supported");
    return STATUS_OK;
}

static status read_model(bpe *b, json_t *root)
{
    json_t *model = json_object_get(root, "model");
    json_t *vocab = json_object_get(model, "vocab"), *list = json_object_get(model, "merges");
    if (!json_is_object(model))
        return WRONG("there is no model");
    bool named = !is_absent(json_object_get(model, "type")); /* old files name no type */
    if (named ? strcmp(type_of(model), "BPE") != 0 : !list)
        return WRONG("model.type %s is not supported: only BPE is", type_of(model));
    if (!json_is_object(vocab) || !json_is_array(list))
        return WRONG("model.vocab or model.merges is missing");
    TRY(refuse_model_extras(model));
    b->characters = is_true(model, "byte_fallback", false);
    TRY(read_vocabulary(b, vocab));
    b->whole_words = is_true(model, "ignore_merges", false);
    b->words_apart = !b->whole_words;
    b->merges = merges_open((int64_t)json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(read_merge(b, vocab, json_array_get(list, i), i));
    const json_t *unknown = json_object_get(model, "unk_token");
    if (!is_absent(unknown) && json_string_length(unknown)) {
        const char *text = json_string_value(unknown);
        const json_t *id = json_object_get(vocab, text);
        if (!id)
            return WRONG("model.unk_token \"%.80s\" is not in model.vocab", text);
        b->unknown = (int32_t)json_integer_value(id);
    }
    b->fuse_unknown = is_true(model, "fuse_unk", false);
    return STATUS_OK;
}

/* --- normalizer --------------------------------------------------------------------------------------------------- */

static status add_normal(bpe *b, bpe_normal step)
{
    if (b->normal_count == BPE_NORMALS)
        return WRONG("more than %d normalizers", BPE_NORMALS);
    b->normals[b->normal_count++] = step;
    return STATUS_OK;
}

static status read_form(bpe *b, json_t *value)
{
    static const char *const names[] = {
        [UNICODE_NFC] = "NFC", [UNICODE_NFD] = "NFD", [UNICODE_NFKC] = "NFKC", [UNICODE_NFKD] = "NFKD"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(type_of(value), names[i]) == 0)
            return add_normal(b, (bpe_normal){BPE_FORM, (unicode_form)i});
    return WRONG("normalizer.type %s is not supported", type_of(value));
}

static const char *string_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* Reads the marks of a model of characters: marks for spaces, and one in front. */
static status read_marks(bpe *b, json_t *value)
{
    bool prepends = strcmp(type_of(value), "Prepend") == 0;
    if (!b->characters)
        return WRONG("normalizer.type %s without model.byte_fallback is not supported", type_of(value));
    if (prepends && strcmp(string_of(value, "prepend"), MARK) != 0)
        return WRONG("normalizer Prepend of \"%.80s\" is not supported", string_of(value, "prepend"));
    const char *from = string_of(json_object_get(value, "pattern"), "String"), *to = string_of(value, "content");
    if (!prepends && (strcmp(from, " ") != 0 || strcmp(to, MARK) != 0))
        return WRONG("normalizer Replace of \"%.80s\" by \"%.80s\" is not supported", from, to);
    return add_normal(b, (bpe_normal){.kind = prepends ? BPE_PREPEND : BPE_MARK});
}

static status read_normalizer(bpe *b, json_t *value)
{
    if (is_absent(value))
        return STATUS_OK;
    const char *type = type_of(value);
    if (strcmp(type, "Prepend") == 0 || strcmp(type, "Replace") == 0)
        return read_marks(b, value);
    if (strcmp(type, "Sequence") != 0)
        return read_form(b, value);
    json_t *parts = json_object_get(value, "normalizers");
    if (!json_is_array(parts))
        return WRONG("normalizer.normalizers is missing");
    for (size_t i = 0; i < json_array_size(parts); i++) {
        if (strcmp(type_of(json_array_get(parts, i)), "Sequence") == 0)
            return WRONG("a normalizer Sequence within another is not supported");
        TRY(read_normalizer(b, json_array_get(parts, i)));
    }
    return STATUS_OK;
}

/* --- pre-tokenizer ------------------------------------------------------------------------------------------------ */

static status add_step(bpe *b, bpe_step step, const char *regex, bool literal)
{
    if (b->step_count == BPE_STEPS)
        return WRONG("more than %d pre-tokenizer steps", BPE_STEPS);
    if (regex)
        TRY(pattern_open(&step.cut, regex, b->classes, literal, false));
    b->steps[b->step_count++] = step;
    return STATUS_OK;
}

static status read_split(bpe *b, json_t *value)
{
    json_t *rule = json_object_get(value, "pattern");
    const char *regex = json_string_value(json_object_get(rule, "Regex"));
    const char *literal = json_string_value(json_object_get(rule, "String"));
    const char *behavior = json_string_value(json_object_get(value, "behavior"));
    bool invert = is_true(value, "invert", false);
    if ((!regex && !literal) || !behavior)
        return WRONG("pre_tokenizer Split lacks a pattern or behavior");
    bpe_step step = {0};
    if (strcmp(behavior, "Removed") == 0)
        step = (bpe_step){.drop_matches = !invert, .drop_others = invert};
    else if (strcmp(behavior, "Isolated") != 0)
        return WRONG("pre_tokenizer Split behavior %s is not supported", behavior);
    return add_step(b, step, regex ? regex : literal, !regex);
}

static status read_byte_level(bpe *b, json_t *value)
{
    bpe_step step = {.prefix_space = is_true(value, "add_prefix_space", true)};
    return add_step(b, step, is_true(value, "use_regex", true) ? scanner_gpt2_pattern : NULL, false);
}

static status read_digits(bpe *b, json_t *value)
{
    return add_step(b, (bpe_step){0}, is_true(value, "individual_digits", false) ? "\\p{N}" : "\\p{N}+", false);
}

static status read_step(bpe *b, json_t *value, bool *byte_level)
{
    static const struct {
        const char *type;
        status (*read)(bpe *b, json_t *value);
    } kinds[] = {{"Split", read_split}, {"ByteLevel", read_byte_level}, {"Digits", read_digits}};
    if (*byte_level)
        return WRONG("a pre_tokenizer step (%s) after ByteLevel is not supported", type_of(value));
    for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(type_of(value), kinds[i].type) == 0) {
            *byte_level = kinds[i].read == read_byte_level;
            return kinds[i].read(b, value);
        }
    return WRONG("pre_tokenizer.type %s is not supported", type_of(value));
}

static status read_metaspace(bpe *b, json_t *value)
{
    static const char *const schemes[] = {[BPE_ALWAYS] = "always", [BPE_FIRST] = "first", [BPE_NEVER] = "never"};
    const char *scheme = string_of(value, "prepend_scheme"), *mark = string_of(value, "replacement");
    if (!*scheme) /* the form of older files */
        scheme = is_true(value, "add_prefix_space", true) ? "always" : "never";
    if (strcmp(mark, MARK) != 0)
        return WRONG("pre_tokenizer Metaspace: the replacement \"%.80s\" is not supported", mark);
    if (is_true(value, "split", true) && !b->words_apart)
        return WRONG(
            "pre_tokenizer Metaspace with split beside merges across words, or ignore_merges, is not supported");
    for (int i = 0; i < 3; i++)
        if (strcmp(scheme, schemes[i]) == 0) {
            b->metaspace = true;
            b->scheme = (bpe_scheme)i;
            return STATUS_OK;
        }
    return WRONG("pre_tokenizer Metaspace: the prepend_scheme %s is not supported", scheme);
}

/* Reads how a model of characters finds its words: by marks. A cut at spaces has no effect if all are marks. */
static status read_pre_tokenizer_of_characters(bpe *b, json_t *value)
{
    const char *at = string_of(json_object_get(value, "pattern"), "String");
    if (!is_absent(value) && strcmp(type_of(value), "Metaspace") == 0)
        return read_metaspace(b, value);
    bool marked = false; /* all spaces of the normal form */
    for (int i = 0; i < b->normal_count; i++)
        marked |= b->normals[i].kind == BPE_MARK;
    if (!marked)
        return WRONG("model.byte_fallback where spaces are not replaced by \"" MARK "\" is not supported");
    if (is_absent(value) || (strcmp(type_of(value), "Split") == 0 && strcmp(at, " ") == 0))
        return STATUS_OK;
    return WRONG("pre_tokenizer.type %s beside model.byte_fallback is not supported", type_of(value));
}

static status read_pre_tokenizer(bpe *b, json_t *value)
{
    bool byte_level = false;
    if (b->characters)
        return read_pre_tokenizer_of_characters(b, value);
    if (is_absent(value))
        return WRONG("there is no pre_tokenizer: only byte-level BPE is supported");
    if (strcmp(type_of(value), "Sequence") == 0) {
        json_t *steps = json_object_get(value, "pretokenizers");
        for (size_t i = 0; i < json_array_size(steps); i++)
            TRY(read_step(b, json_array_get(steps, i), &byte_level));
    } else {
        TRY(read_step(b, value, &byte_level));
    }
    return byte_level ? STATUS_OK : WRONG("pre_tokenizer has no ByteLevel: only byte-level BPE is supported");
}

/* --- decoder and post-processor ----------------------------------------------------------------------------------- */

/* Reads: spaces for marks, bytes for <0x41>, all one text, and perhaps without a space in front. */
static status read_decoder_of_characters(bpe *b, const json_t *value)
{
    static const char *const types[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
    const json_t *parts = json_object_get(value, "decoders");
    size_t count = json_array_size(parts);
    bool good = !is_absent(value) && strcmp(type_of(value), "Sequence") == 0 && (count == 3 || count == 4);
    for (size_t i = 0; good && i < count; i++)
        good = strcmp(type_of(json_array_get(parts, i)), types[i]) == 0;
    const json_t *replaces = json_array_get(parts, 0);
    if (!good || strcmp(string_of(json_object_get(replaces, "pattern"), "String"), MARK) != 0 ||
        strcmp(string_of(replaces, "content"), " ") != 0)
        return WRONG(
            "a decoder beside model.byte_fallback that is not Replace, ByteFallback, Fuse and perhaps Strip is "
            "not supported");
    const json_t *strip = json_array_get(parts, 3);
    b->strips_first = json_integer_value(json_object_get(strip, "start")) == 1;
    if (strip && (strcmp(string_of(strip, "content"), " ") != 0 || !b->strips_first ||
                  json_integer_value(json_object_get(strip, "stop")) != 0))
        return WRONG("decoder Strip of other than one space in front is not supported");
    return STATUS_OK;
}

static status read_decoder(bpe *b, const json_t *value)
{
    if (b->characters)
        return read_decoder_of_characters(b, value);
    if (is_absent(value) || strcmp(type_of(value), "ByteLevel") == 0)
        return STATUS_OK;
    const json_t *parts = json_object_get(value, "decoders");
    if (strcmp(type_of(value), "Sequence") == 0 && json_array_size(parts) == 1)
        value = json_array_get(parts, 0);
    if (strcmp(type_of(value), "ByteLevel") == 0)
        return STATUS_OK;
    return WRONG("decoder.type %s is not supported", type_of(value));
}

static status read_template(bpe *b, json_t *value)
{
    json_t *special = json_object_get(value, "special_tokens"), *pieces = json_object_get(value, "single");
    bool after_text = false;
    for (size_t i = 0; i < json_array_size(pieces); i++) {
        json_t *piece = json_array_get(pieces, i);
        if (json_object_get(piece, "Sequence")) {
            if (after_text)
                return WRONG("post_processor TemplateProcessing repeats the text");
            after_text = true;
            continue;
        }
        const char *name = json_string_value(json_object_get(json_object_get(piece, "SpecialToken"), "id"));
        json_t *ids = json_object_get(name ? json_object_get(special, name) : NULL, "ids");
        if (!json_array_size(ids))
            return WRONG("post_processor.single: piece %zu names no special token that has ids", i);
        for (size_t k = 0; k < json_array_size(ids); k++) {
            int32_t id = -1;
            TRY(id_of(&id, json_array_get(ids, k), "post_processor.special_tokens", name));
            buffer_ids_append(after_text ? &b->after : &b->before, &id, 1);
        }
    }
    return after_text ? STATUS_OK : WRONG("post_processor.single leaves the text out");
}

static status read_post_processor(bpe *b, json_t *value)
{
    if (is_absent(value) || strcmp(type_of(value), "ByteLevel") == 0) /* that one trims offsets only */
        return STATUS_OK;
    if (strcmp(type_of(value), "TemplateProcessing") == 0)
        return read_template(b, value);
    if (strcmp(type_of(value), "Sequence") != 0)
        return WRONG("post_processor.type %s is not supported", type_of(value));
    json_t *parts = json_object_get(value, "processors");
    bool seen = false;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        json_t *part = json_array_get(parts, i);
        bool template = strcmp(type_of(part), "TemplateProcessing") == 0;
        if (strcmp(type_of(part), "Sequence") == 0 || (template && seen))
            return WRONG("nested or repeated post_processors are not supported");
        seen |= template;
        TRY(read_post_processor(b, part));
    }
    return STATUS_OK;
}

/* --- added tokens ------------------------------------------------------------------------------------------------- */

static status normalize_token(const bpe *b, buffer *text)
{
    buffer normal[2] = {{0}};
    const char *bytes = text->bytes;
    int64_t length = text->length;
    status s = bpe_normalize(b, normal, &bytes, &length);
    if (s == STATUS_OK && bytes != text->bytes) {
        text->length = 0;
        buffer_append(text, bytes, length);
    }
    buffer_free(&normal[0]);
    buffer_free(&normal[1]);
    return s;
}

/* Adds an added token by its decoded text. */
static bool enter_added(bpe *b, int32_t id, const char *content, int64_t length)
{
    if (!b->characters)
        return vocabulary_add(b->vocabulary, id, content, length, 0);
    RELEASED_BY(buffer_free) buffer text = {0};
    mark_append(&text, content, length);
    return vocabulary_add(b->vocabulary, id, text.bytes, text.length, 0);
}

static status read_added_token(bpe *b, json_t *vocab, json_t *value)
{
    const char *content = json_string_value(json_object_get(value, "content"));
    if (!content || !*content)
        return WRONG("added_tokens: one has no content");
    int64_t length = (int64_t)json_string_length(json_object_get(value, "content"));
    int32_t id = -1;
    TRY(id_of(&id, json_object_get(value, "id"), "added_tokens", content));
    added_token token = {.id = id,
                         .special = is_true(value, "special", false),
                         .single_word = is_true(value, "single_word", false),
                         .left_strip = is_true(value, "lstrip", false),
                         .right_strip = is_true(value, "rstrip", false)};
    json_t *known = json_object_get(vocab, content);
    if (known && json_integer_value(known) != id)
        return WRONG("added_tokens: \"%.80s\" has the id %d, but %d in model.vocab", content, id,
                     (int)json_integer_value(known));
    if (!known && !enter_added(b, id, content, length))
        return WRONG("added_tokens: the id %d of \"%.80s\" is another token's", id, content);
    if (token.special)
        vocabulary_mark(b->vocabulary, id, VOCABULARY_SPECIAL);
    bool normalized = is_true(value, "normalized", !token.special);
    RELEASED_BY(buffer_free) buffer text = {0};
    buffer_append(&text, content, length);
    if (normalized)
        TRY(normalize_token(b, &text));
    token.text = text.bytes;
    token.length = text.length;
    if (text.length)
        added_put(normalized ? b->normalized : b->raw, &token);
    return STATUS_OK;
}

static status read_added(bpe *b, json_t *root)
{
    json_t *list = json_object_get(root, "added_tokens");
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(read_added_token(b, vocab, json_array_get(list, i)));
    added_sort(b->raw);
    added_sort(b->normalized);
    return STATUS_OK;
}

static status read_all(bpe *b, json_t *root)
{
    if (!json_is_object(root))
        return WRONG("not a tokenizer: the file is not one JSON object");
    TRY(read_model(b, root));
    TRY(read_normalizer(b, json_object_get(root, "normalizer")));
    b->classes = unicode_classes_open(b->normal_count > 0);
    TRY(read_pre_tokenizer(b, json_object_get(root, "pre_tokenizer")));
    TRY(read_decoder(b, json_object_get(root, "decoder")));
    TRY(read_added(b, root));
    return read_post_processor(b, json_object_get(root, "post_processor"));
}

status bpe_json_open(bpe **out, const char *json, size_t length, const char *name)
{
    json_error_t error;
    json_auto_t *root = json_loadb(json, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!root)
        return WRONG("%s:%d:%d: %s", name, error.line, error.column, error.text);
    AUTO(bpe) *b = must_calloc(1, sizeof *b);
    b->vocabulary = vocabulary_open();
    b->raw = added_open();
    b->normalized = added_open();
    b->unknown = -1;
    for (int i = 0; i < 256; i++)
        b->byte_ids[i] = -1;
    status s = read_all(b, root);
    if (s != STATUS_OK)
        return status_context(s, "%s", name);
    *out = TAKE(b);
    return STATUS_OK;
}
