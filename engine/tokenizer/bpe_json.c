#include "engine/tokenizer/bpe_json.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/byte_alphabet.h"
#include "engine/tokenizer/scanner.h"
#include "memory/log.h"

#define WRONG(...) status_fail(STATUS_FAILED, __VA_ARGS__)

/* --- small questions to a JSON value ------------------------------------------------------------------------------ */

static bool absent(const json_t *value)
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
    return absent(value) ? missing : json_is_true(value);
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

/* The bytes that a model's token is written for; false when a character is not of the alphabet. */
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

static status read_vocabulary(bpe *b, json_t *vocab)
{
    int16_t byte_of[BYTE_ALPHABET_CODES];
    byte_alphabet_fill(byte_of);
    buffer bytes = {0};
    status s = STATUS_OK;
    const char *key;
    json_t *value;
    json_object_foreach(vocab, key, value)
    {
        int32_t id = -1;
        size_t length = strlen(key);
        if ((s = id_of(&id, value, "model.vocab", key)) != STATUS_OK)
            break;
        bool ours = token_bytes(&bytes, byte_of, key, length);
        bool entered = ours ? vocabulary_add(b->vocabulary, id, bytes.bytes, bytes.length, VOCABULARY_INDEXED)
                            : vocabulary_add(b->vocabulary, id, key, (int64_t)length, 0);
        if (!entered) {
            s = WRONG("model.vocab: two tokens have the id %d", id);
            break;
        }
        if (ours && bytes.length == 1)
            b->byte_ids[(uint8_t)bytes.bytes[0]] = id;
    }
    buffer_free(&bytes);
    if (s == STATUS_OK && vocabulary_size(b->vocabulary) == 0)
        s = WRONG("model.vocab is empty");
    return s;
}

/* The two sides of a merge, "a b" or ["a", "b"]; the first form is cut within *own, which the caller frees. */
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

static status read_merge(bpe *b, json_t *vocab, json_t *merge, size_t rank)
{
    const char *left = NULL, *right = NULL;
    char *own = NULL, *whole = NULL;
    int32_t ids[3];
    status s = merge_sides(&left, &right, &own, merge, rank);
    if (s == STATUS_OK) {
        whole = must_format("%s%s", left, right);
        const char *names[3] = {left, right, whole};
        for (int i = 0; i < 3 && s == STATUS_OK; i++) {
            json_t *id = json_object_get(vocab, names[i]);
            if (!id)
                s = WRONG("model.merges: number %zu needs \"%.80s\", which is not in model.vocab", rank, names[i]);
            else
                ids[i] = (int32_t)json_integer_value(id);
        }
    }
    if (s == STATUS_OK)
        merges_add(b->merges, ids[0], ids[1], (uint32_t)rank, ids[2]);
    free(own);
    free(whole);
    return s;
}

static status refuse_model_extras(const json_t *model)
{
    static const char *const texts[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(model, texts[i]);
        if (!absent(value) && json_string_length(value) != 0)
            return WRONG("model.%s is not supported", texts[i]);
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (!absent(dropout) && !(json_number_value(dropout) <= 0.0))
        return WRONG("model.dropout is not supported");
    if (is_true(model, "byte_fallback", false))
        return WRONG("model.byte_fallback (a SentencePiece model in JSON) is not supported: use its tokenizer.model");
    return STATUS_OK;
}

static status read_model(bpe *b, json_t *root)
{
    json_t *model = json_object_get(root, "model");
    json_t *vocab = json_object_get(model, "vocab"), *list = json_object_get(model, "merges");
    if (!json_is_object(model))
        return WRONG("there is no model");
    bool named = !absent(json_object_get(model, "type")); /* old files name no type */
    if (named ? strcmp(type_of(model), "BPE") != 0 : !list)
        return WRONG("model.type %s is not supported: only BPE is", type_of(model));
    if (!json_is_object(vocab) || !json_is_array(list))
        return WRONG("model.vocab or model.merges is missing");
    TRY(refuse_model_extras(model));
    TRY(read_vocabulary(b, vocab));
    b->merges = merges_open((int64_t)json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++)
        TRY(read_merge(b, vocab, json_array_get(list, i), i));
    const json_t *unknown = json_object_get(model, "unk_token");
    if (!absent(unknown) && json_string_length(unknown)) {
        const char *text = json_string_value(unknown);
        const json_t *id = json_object_get(vocab, text);
        if (!id)
            return WRONG("model.unk_token \"%.80s\" is not in model.vocab", text);
        b->unknown = (int32_t)json_integer_value(id);
    }
    b->fuse_unknown = is_true(model, "fuse_unk", false);
    b->whole_words = is_true(model, "ignore_merges", false);
    return STATUS_OK;
}

/* --- normalizer --------------------------------------------------------------------------------------------------- */

static status read_normalizer(bpe *b, json_t *value)
{
    static const char *const names[] = {
        [UNICODE_NFC] = "NFC", [UNICODE_NFD] = "NFD", [UNICODE_NFKC] = "NFKC", [UNICODE_NFKD] = "NFKD"};
    if (absent(value))
        return STATUS_OK;
    if (strcmp(type_of(value), "Sequence") == 0) {
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
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(type_of(value), names[i]) == 0) {
            if (b->form_count == BPE_FORMS)
                return WRONG("more than %d normalizers", BPE_FORMS);
            b->forms[b->form_count++] = (unicode_form)i;
            return STATUS_OK;
        }
    return WRONG("normalizer.type %s is not supported", type_of(value));
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

static status read_pre_tokenizer(bpe *b, json_t *value)
{
    bool byte_level = false;
    if (absent(value))
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

static status check_decoder(const json_t *value)
{
    if (absent(value) || strcmp(type_of(value), "ByteLevel") == 0)
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
    if (absent(value) || strcmp(type_of(value), "ByteLevel") == 0) /* that one trims offsets only */
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
    for (int i = 0; i < b->form_count; i++) {
        buffer normal = {0};
        status s = unicode_normalize(&normal, text->bytes, text->length, b->forms[i]);
        buffer old = *text;
        *text = normal;
        buffer_free(&old);
        TRY(s);
    }
    return STATUS_OK;
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
    if (!known && !vocabulary_add(b->vocabulary, id, content, length, 0))
        return WRONG("added_tokens: the id %d of \"%.80s\" is another token's", id, content);
    if (token.special)
        vocabulary_mark(b->vocabulary, id, VOCABULARY_SPECIAL);
    bool normalized = is_true(value, "normalized", !token.special);
    buffer text = {0};
    buffer_append(&text, content, length);
    status s = normalized ? normalize_token(b, &text) : STATUS_OK;
    token.text = text.bytes;
    token.length = text.length;
    if (s == STATUS_OK && text.length)
        added_put(normalized ? b->normalized : b->raw, &token);
    buffer_free(&text);
    return s;
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
    b->classes = unicode_classes_open(b->form_count > 0);
    TRY(read_pre_tokenizer(b, json_object_get(root, "pre_tokenizer")));
    TRY(check_decoder(json_object_get(root, "decoder")));
    TRY(read_added(b, root));
    return read_post_processor(b, json_object_get(root, "post_processor"));
}

status bpe_json_open(bpe **out, const char *json, size_t length, const char *name)
{
    json_error_t error;
    json_t *root = json_loadb(json, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!root)
        return WRONG("%s:%d:%d: %s", name, error.line, error.column, error.text);
    bpe *b = must_calloc(1, sizeof *b);
    b->vocabulary = vocabulary_open();
    b->raw = added_open();
    b->normalized = added_open();
    b->unknown = -1;
    for (int i = 0; i < 256; i++)
        b->byte_ids[i] = -1;
    status s = read_all(b, root);
    json_decref(root);
    if (s != STATUS_OK) {
        bpe_close(b);
        return status_context(s, "%s", name);
    }
    *out = b;
    return STATUS_OK;
}
