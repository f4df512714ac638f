/* Writes a tokenizer as Hugging Face's tokenizer.json, with the configuration that makes transformers load it. */
#include "engine/data/tokenizer_files.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/system/mapping.h"
#include "engine/text/unicode.h"
#include "engine/tokenizer/sentencepiece_model.h"
#include "engine/tokenizer/vocabulary.h"
#include "memory/log.h"
#include "memory/scope.h"

#define CANNOT(...) status_fail(STATUS_FAILED, "the SentencePiece model has no exact tokenizer.json: " __VA_ARGS__)

/* --- common parts ------------------------------------------------------------------------------------------------- */

/* Returns the file's name of a special token as a JSON string, which the caller owns; null for the id -1. */
static json_t *tokenizer_json_name(const tokenizer *t, int32_t id)
{
    int64_t length;
    if (id < 0)
        return json_null();
    if (tokenizer_model(t))
        return json_string(sentencepiece_model_name(tokenizer_model(t), id));
    const char *name = tokenizer_token(t, &length, id);
    return json_stringn(name, (size_t)length);
}

static json_t *added_token(const tokenizer *t, int32_t id)
{
    return json_pack("{s:i, s:o, s:b, s:b, s:b, s:b, s:b}", "id", id, "content", tokenizer_json_name(t, id),
                     "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
}

static json_t *replace_step(const char *kind, const char *pattern, const char *content)
{
    return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", kind, pattern, "content", content);
}

/* Makes the post-processor that puts bos before every text; JSON's null if there is none. */
static json_t *frame_of(const tokenizer *t)
{
    int32_t id = tokenizer_ids_of(t)->bos;
    json_auto_t *named = tokenizer_json_name(t, id);
    const char *name = json_string_value(named);
    if (!name)
        return json_null();
    json_t *first = json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", name, "type_id", 0);
    json_t *text = json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0);
    json_t *second = json_pack("{s:{s:s, s:i}}", "Sequence", "id", "B", "type_id", 1);
    json_t *again = json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", name, "type_id", 1);
    return json_pack("{s:s, s:[O, O], s:[o, o, o, o], s:{s:{s:s, s:[i], s:[s]}}}", "type", "TemplateProcessing",
                     "single", first, text, "pair", first, text, again, second, "special_tokens", name, "id", name,
                     "ids", id, "tokens", name);
}

/* Appends the file; takes over the references of its arguments. */
static void append_file(buffer *out, json_t *added, json_t *normalizer, json_t *pre_tokenizer, json_t *post_processor,
                        json_t *decoder, json_t *model)
{
    json_auto_t *root = json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:o, s:o}", "version", "1.0", "truncation",
                                  "padding", "added_tokens", added, "normalizer", normalizer, "pre_tokenizer",
                                  pre_tokenizer, "post_processor", post_processor, "decoder", decoder, "model", model);
    AUTO_FREE char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    MUST(text, "out of host memory");
    buffer_append(out, text, (int64_t)strlen(text));
    buffer_append(out, "\n", 1);
}

/* --- bytes -------------------------------------------------------------------------------------------------------- */

static status append_bytes(buffer *out, const tokenizer *t)
{
    int16_t byte_of[BYTE_ALPHABET_CODES];
    byte_alphabet_fill(byte_of);
    json_t *vocab = json_object();
    for (uint32_t code = 0; code < BYTE_ALPHABET_CODES; code++) {
        char name[5] = {0};
        (void)unicode_encode(name, code);
        if (byte_of[code] >= 0)
            json_object_set_new(vocab, name, json_integer(byte_of[code]));
    }
    int32_t end = tokenizer_ids_of(t)->end_of_document;
    json_t *model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:[]}", "type", "BPE", "dropout",
                              "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                              "byte_fallback", 0, "ignore_merges", 0, "vocab", vocab, "merges");
    json_t *level = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1,
                              "use_regex", 0);
    json_t *added = json_pack("[o]", added_token(t, end));
    append_file(out, added, json_null(), json_incref(level), frame_of(t), level, model);
    return STATUS_OK;
}

/* --- SentencePiece ------------------------------------------------------------------------------------------------ */

static status check_model(const sentencepiece_model *m)
{
    if (m->type != SENTENCEPIECE_MODEL_UNIGRAM && m->type != SENTENCEPIECE_MODEL_BPE)
        return CANNOT("it is neither of type unigram nor bpe");
    if (m->space_suffix)
        return CANNOT("spaces end its pieces (treat_whitespace_as_suffix)");
    for (int32_t id = 0; id < vocabulary_size(m->pieces); id++)
        if (m->types[id] == SENTENCEPIECE_MODEL_USER)
            return CANNOT("piece %d, %s, is user-defined", id, sentencepiece_model_name(m, id));
        else if (m->types[id] == SENTENCEPIECE_MODEL_UNUSED && m->type == SENTENCEPIECE_MODEL_BPE)
            return CANNOT("piece %d, %s, is unused", id, sentencepiece_model_name(m, id));
    return STATUS_OK;
}

/* Makes the model's normalizer: its character map, removal of surplus spaces, the space in front, the space mark. */
static json_t *make_normalizer(const sentencepiece_model *m)
{
    json_t *steps = json_array();
    AUTO_FREE char *map = must_alloc((size_t)m->map.length / 3 * 4 + 5); /* base64 */
    EVP_EncodeBlock((unsigned char *)map, (const unsigned char *)m->map.bytes, (int)m->map.length);
    if (*map)
        json_array_append_new(steps, json_pack("{s:s, s:s}", "type", "Precompiled", "precompiled_charsmap", map));
    if (m->remove_extra) {
        json_array_append_new(steps, replace_step("Regex", "\\A +", ""));
        json_array_append_new(steps, replace_step("Regex", " {2,}", " "));
    }
    if (m->dummy_prefix)
        json_array_append_new(steps, json_pack("{s:s, s:s}", "type", "Prepend", "prepend", MARK));
    json_array_append_new(steps, replace_step("String", " ", MARK));
    if (m->remove_extra) /* also removes marks of the text itself at its end */
        json_array_append_new(steps, replace_step("Regex", "(?:" MARK ")+\\z", ""));
    return json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", steps);
}

static json_t *make_decoder(const sentencepiece_model *m)
{
    json_t *steps = json_array();
    json_array_append_new(steps, replace_step("String", MARK, " "));
    json_array_append_new(steps, json_pack("{s:s}", "type", "ByteFallback"));
    json_array_append_new(steps, json_pack("{s:s}", "type", "Fuse"));
    if (m->dummy_prefix || m->remove_extra)
        json_array_append_new(
            steps, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content", " ", "start", 1, "stop", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", steps);
}

static json_t *list_controls(const tokenizer *t, const sentencepiece_model *m)
{
    json_t *list = json_array();
    for (int32_t id = 0; id < vocabulary_size(m->pieces); id++)
        if (m->types[id] == SENTENCEPIECE_MODEL_CONTROL || m->types[id] == SENTENCEPIECE_MODEL_UNKNOWN)
            json_array_append_new(list, added_token(t, id));
    return list;
}

/* Checks whether every character of the name is a normal piece. */
static bool is_spelled(const sentencepiece_model *m, const json_t *ids, const char *name, const char **missing)
{
    for (const char *at = name; *at;) {
        uint32_t code;
        char character[5] = {0};
        int length = unicode_decode((const uint8_t *)at, &code);
        memcpy(character, at, (size_t)length);
        const json_t *id = json_object_get(ids, character);
        *missing = at;
        if (!id || m->types[json_integer_value(id)] != SENTENCEPIECE_MODEL_NORMAL)
            return false;
        at += length;
    }
    return true;
}

/* Requires a piece for each character of a piece: else no merge makes it, and the unknown token's score counts. */
static status check_characters(const sentencepiece_model *m, const json_t *ids)
{
    for (int32_t id = 0; id < vocabulary_size(m->pieces); id++) {
        const char *name = sentencepiece_model_name(m, id), *missing;
        if (m->types[id] == SENTENCEPIECE_MODEL_NORMAL && !is_spelled(m, ids, name, &missing))
            return CANNOT("a character of piece %d, %s, is no piece", id, name);
    }
    return STATUS_OK;
}

static json_t *map_ids(const sentencepiece_model *m)
{
    json_t *ids = json_object();
    for (int32_t id = 0; id < vocabulary_size(m->pieces); id++)
        json_object_set_new(ids, sentencepiece_model_name(m, id), json_integer(id));
    return ids;
}

static void append_quoted(buffer *out, const char *text, int64_t length)
{
    for (int64_t i = 0; i < length; i++) {
        if (strchr("\\^$.[]|()?*+{}/-#&~", text[i]))
            buffer_append(out, "\\", 1);
        buffer_append(out, text + i, 1);
    }
}

/* `tokenizers` matches all pieces, SentencePiece only normal ones. So names of control and byte pieces get a score
 * below that of any path through their characters, and are spelled out. If one of these characters is unknown, with a
 * still lower score, this pre-tokenizer cuts the text there, so that no piece reaches across. */
static json_t *make_cuts(const sentencepiece_model *m, const json_t *ids)
{
    RELEASED_BY(buffer_free) buffer regex = {0};
    for (int32_t id = 0; id < vocabulary_size(m->pieces); id++) {
        const char *name = sentencepiece_model_name(m, id), *missing;
        if (m->types[id] == SENTENCEPIECE_MODEL_NORMAL || is_spelled(m, ids, name, &missing))
            continue;
        uint32_t code;
        int length = unicode_decode((const uint8_t *)missing, &code);
        if (regex.length)
            buffer_append(&regex, "|", 1);
        if (missing > name) {
            buffer_append(&regex, "(?<=", 4);
            append_quoted(&regex, name, missing - name);
            buffer_append(&regex, ")", 1);
        }
        append_quoted(&regex, missing, length);
        buffer_append(&regex, "(?=", 3);
        append_quoted(&regex, missing + length, (int64_t)strlen(missing + length));
        buffer_append(&regex, ")", 1);
    }
    if (!regex.length)
        return json_null();
    return json_pack("{s:s, s:{s:o}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                     json_stringn(regex.bytes, (size_t)regex.length), "behavior", "Isolated", "invert", 0);
}

/* Lists every piece with its score. `tokenizers` derives an unknown character's score from the lowest score; that
 * shifts all paths alike, since the characters of normal pieces are pieces themselves. */
static status make_unigram(json_t **model, json_t **pre_tokenizer, const sentencepiece_model *m, int32_t unknown)
{
    json_t *vocab = json_array();
    json_auto_t *ids = map_ids(m);
    double lowest = 0.0;
    for (int32_t id = 0; id < vocabulary_size(m->pieces); id++)
        if (m->types[id] == SENTENCEPIECE_MODEL_NORMAL && (double)m->scores[id] < lowest)
            lowest = (double)m->scores[id];
    for (int32_t id = 0; id < vocabulary_size(m->pieces); id++) {
        const char *name = sentencepiece_model_name(m, id);
        bool normal = m->types[id] == SENTENCEPIECE_MODEL_NORMAL;
        double score = normal ? (double)m->scores[id] : (lowest - 10.0) * (double)(strlen(name) + 1);
        json_array_append_new(vocab, json_pack("[s, f]", name, score));
    }
    *pre_tokenizer = make_cuts(m, ids);
    *model = json_pack("{s:s, s:i, s:o, s:b}", "type", "Unigram", "unk_id", unknown, "vocab", vocab, "byte_fallback",
                       m->byte_fallback);
    return check_characters(m, ids);
}

typedef struct merge {
    float score;
    int32_t piece;
    int left; /* bytes of its name on the left side */
} merge;

/* Orders by score, highest first, and the merges of one piece by the longest left side. */
static int compare_rank(const void *a, const void *b)
{
    const merge *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    if (x->piece != y->piece)
        return x->piece < y->piece ? -1 : 1;
    return (x->left < y->left) - (x->left > y->left);
}

/* Lists the merges: SentencePiece merges two neighbours that make a piece, so each cut of a piece in two is a merge. */
static merge *list_merges(const sentencepiece_model *m, int64_t *count, const json_t *vocab)
{
    merge *list = NULL;
    RELEASED_BY(buffer_free) buffer left = {0};
    *count = 0;
    for (int32_t id = 0; id < vocabulary_size(m->pieces); id++) {
        const char *name = sentencepiece_model_name(m, id);
        int length = (int)strlen(name);
        if (m->types[id] != SENTENCEPIECE_MODEL_NORMAL)
            continue;
        for (int at = 1; at < length; at++) {
            if (((uint8_t)name[at] & 0xC0) == 0x80)
                continue;
            left.length = 0;
            buffer_append(&left, name, at);
            buffer_append(&left, "", 1);
            const json_t *first = json_object_get(vocab, left.bytes), *second = json_object_get(vocab, name + at);
            if (first && second && m->types[json_integer_value(first)] == SENTENCEPIECE_MODEL_NORMAL &&
                m->types[json_integer_value(second)] == SENTENCEPIECE_MODEL_NORMAL)
                APPEND(list, *count) = (merge){m->scores[id], id, at};
        }
    }
    if (*count)
        qsort(list, (size_t)*count, sizeof *list, compare_rank);
    return list;
}

static status make_bpe(json_t **model, const sentencepiece_model *m, int32_t unknown)
{
    json_t *vocab = map_ids(m), *merges = json_array();
    status s = check_characters(m, vocab);
    int64_t count = 0;
    AUTO_FREE merge *list = s == STATUS_OK ? list_merges(m, &count, vocab) : NULL;
    for (int64_t i = 0; i < count; i++) {
        const char *name = sentencepiece_model_name(m, list[i].piece);
        AUTO_FREE char *text = must_format("%.*s %s", list[i].left, name, name + list[i].left);
        json_array_append_new(merges, json_string(text));
    }
    *model =
        json_pack("{s:s, s:n, s:s, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout", "unk_token",
                  sentencepiece_model_name(m, unknown), "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                  1, "byte_fallback", m->byte_fallback, "ignore_merges", 0, "vocab", vocab, "merges", merges);
    return s;
}

static status append_model(buffer *out, const tokenizer *t, const sentencepiece_model *m)
{
    TRY(check_model(m));
    int32_t unknown = tokenizer_ids_of(t)->unknown;
    json_auto_t *model = NULL, *pre_tokenizer = json_null();
    TRY(m->type == SENTENCEPIECE_MODEL_UNIGRAM ? make_unigram(&model, &pre_tokenizer, m, unknown)
                                               : make_bpe(&model, m, unknown));
    append_file(out, list_controls(t, m), make_normalizer(m), TAKE(pre_tokenizer), frame_of(t), make_decoder(m),
                TAKE(model));
    return STATUS_OK;
}

/* --- BPE of a tokenizer.json -------------------------------------------------------------------------------------- */

static bool is_template(const json_t *processor)
{
    const char *type = json_string_value(json_object_get(processor, "type"));
    return type && strcmp(type, "TemplateProcessing") == 0;
}

/* Appends the file with another frame in its post-processor's place; steps that only trim offsets stay. */
static void append_reframed(buffer *out, const tokenizer *t)
{
    const tokenizer_source source = tokenizer_made_from(t);
    json_auto_t *root = json_loadb(source.file, (size_t)source.length, 0, NULL);
    json_t *old = json_object_get(root, "post_processor"), *parts = json_object_get(old, "processors"),
           *steps = json_array(), *frame = frame_of(t);
    if (json_is_object(old) && !parts && !is_template(old))
        json_array_append(steps, old);
    for (size_t i = 0; i < json_array_size(parts); i++)
        if (!is_template(json_array_get(parts, i)))
            json_array_append(steps, json_array_get(parts, i));
    if (json_is_object(frame))
        json_array_append(steps, frame);
    json_decref(frame);
    json_object_set_new(root, "post_processor",
                        json_array_size(steps) ? json_pack("{s:s, s:O}", "type", "Sequence", "processors", steps)
                                               : json_null());
    json_decref(steps);
    AUTO_FREE char *text = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    MUST(text, "out of host memory");
    buffer_append(out, text, (int64_t)strlen(text));
    buffer_append(out, "\n", 1);
}

status tokenizer_json_write(buffer *out, const tokenizer *t)
{
    const tokenizer_source source = tokenizer_made_from(t);
    if (tokenizer_model(t))
        return append_model(out, t, tokenizer_model(t));
    if (strcmp(tokenizer_suffix(t), "json") != 0)
        return append_bytes(out, t);
    if (tokenizer_is_reframed(t))
        append_reframed(out, t);
    else
        buffer_append(out, source.file, source.length);
    return STATUS_OK;
}

bool tokenizer_json_splits_names(const tokenizer *t)
{
    return strcmp(tokenizer_suffix(t), "json") != 0;
}

/* --- a folder ----------------------------------------------------------------------------------------------------- */

#define CONFIG "tokenizer_config.json"

/* This class loads tokenizer.json unchanged, in transformers 4 and 5. */
#define PLAIN_CLASS "PreTrainedTokenizerFast"

/* The folder names this class by auto_map, and holds its code: for Qwen2, transformers 5 otherwise builds its own
 * tokenizer around the file's vocabulary, whatever tokenizer_class says. The class needs trust_remote_code. */
#define MODULE "tokenization_phalanx"
static const char module_text[] = "from transformers import PreTrainedTokenizerFast\n"
                                  "\n"
                                  "\n"
                                  "class TokenizerOfFile(PreTrainedTokenizerFast):\n"
                                  "    \"\"\"tokenizer.json as it is.\"\"\"\n";

static bool has_file(const char *folder, const char *name)
{
    AUTO_FREE char *path = must_format("%s/%s", folder, name);
    return atomic_exists(path);
}

static status write_file(const char *folder, const char *name, const char *text, int64_t length)
{
    AUTO_FREE char *path = must_format("%s/%s", folder, name);
    return atomic_replace(path, text, length);
}

static status write_object(const char *folder, const char *name, const json_t *value)
{
    AUTO_FREE char *body = json_dumps(value, JSON_INDENT(2) | JSON_SORT_KEYS);
    MUST(body, "out of host memory");
    AUTO_FREE char *text = must_format("%s\n", body);
    return write_file(folder, name, text, (int64_t)strlen(text));
}

/* Reads a JSON object of the folder; an empty one if it is missing or unreadable, as another program may leave it. */
static json_t *read_json(const char *folder, const char *name)
{
    AUTO_FREE char *path = must_format("%s/%s", folder, name);
    mapping file = {0};
    json_t *value = NULL;
    if (atomic_exists(path) && mapping_open(&file, path) == STATUS_OK)
        value = json_loadb((const char *)file.data, (size_t)file.bytes, 0, NULL);
    mapping_close(&file);
    if (json_is_object(value))
        return value;
    json_decref(value);
    return json_object();
}

/* Sets the names of the special tokens that exist. */
static void set_names(json_t *into, const tokenizer *t)
{
    const struct {
        const char *key;
        int32_t id;
    } names[] = {{"bos_token", tokenizer_ids_of(t)->bos},
                 {"eos_token", tokenizer_ids_of(t)->eos},
                 {"pad_token", tokenizer_ids_of(t)->pad},
                 {"unk_token", tokenizer_ids_of(t)->unknown}};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].id >= 0 && !json_object_get(into, names[i].key))
            json_object_set_new(into, names[i].key, tokenizer_json_name(t, names[i].id));
}

static bool is_class(const json_t *config, const char *name)
{
    const char *given = json_string_value(json_object_get(config, "tokenizer_class"));
    size_t length = strlen(name);
    return given && strncmp(given, name, length) == 0 && (!given[length] || strcmp(given + length, "Fast") == 0);
}

/* transformers 5 builds tokenizers of these classes around the file's vocabulary with the class's pre-tokenizer, except
 * for some architectures. */
static bool builds_its_own(const json_t *config)
{
    static const char *const classes[] = {"GPT2Tokenizer", "GPTNeoXTokenizer", "LlamaTokenizer", "GemmaTokenizer"};
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (is_class(config, classes[i]))
            return true;
    return false;
}

/* Names the recorded beginning of a text as bos_token, for programs that ask no tokenizer.json. */
static bool name_begin(json_t *config, const tokenizer *t)
{
    tokenizer_begin begin = tokenizer_begins_with(t);
    if (begin == TOKENIZER_BEGIN_UNKNOWN || begin == TOKENIZER_BEGIN_OWN)
        return false;
    json_object_set_new(config, "bos_token", tokenizer_json_name(t, tokenizer_ids_of(t)->bos));
    json_object_set_new(config, "add_bos_token", json_boolean(tokenizer_ids_of(t)->bos >= 0));
    return true;
}

/* `made`: tokenizer.json was written here, and the model's original class would read it differently. */
static status write_config(const tokenizer *t, const char *folder, const model_shape *shape, bool made)
{
    json_auto_t *config = read_json(folder, CONFIG);
    bool chat = json_object_get(config, "chat_template") || has_file(folder, "chat_template.jinja");
    bool begins = name_begin(config, t), changed = made || !json_object_get(config, "tokenizer_class");
    if (changed) {
        json_object_set_new(config, "tokenizer_class", json_string(PLAIN_CLASS));
        json_object_set_new(config, "clean_up_tokenization_spaces", json_false());
        if (!json_object_get(config, "model_max_length"))
            json_object_set_new(config, "model_max_length", json_integer(shape->max_sequence));
        if (tokenizer_json_splits_names(t) && !chat) /* a chat template consists of such names */
            json_object_set_new(config, "split_special_tokens", json_true());
        set_names(config, t);
    } else if (builds_its_own(config)) {
        json_object_set_new(config, "tokenizer_class", json_string(PLAIN_CLASS));
        changed = true;
    }
    if (shape_has_key(shape->architecture, KEY_TOKENIZER_CLASS) && !is_class(config, "Qwen2Tokenizer") &&
        !json_object_get(config, "auto_map")) {
        json_object_set_new(config, "auto_map", json_pack("{s:[n, s]}", "AutoTokenizer", MODULE ".TokenizerOfFile"));
        TRY(write_file(folder, MODULE ".py", module_text, sizeof module_text - 1));
        changed = true;
    }
    return changed || begins ? write_object(folder, CONFIG, config) : STATUS_OK;
}

static status write_tokenizer(const tokenizer *t, const char *folder, bool *made)
{
    RELEASED_BY(buffer_free) buffer text = {0};
    *made = !has_file(folder, "tokenizer.json") || tokenizer_is_reframed(t);
    if (!*made)
        return STATUS_OK;
    TRY(tokenizer_json_write(&text, t));
    return write_file(folder, "tokenizer.json", text.bytes, text.length);
}

status tokenizer_export(const tokenizer *t, const char *folder, const model_shape *shape, const json_t *tokens)
{
    bool made;
    if (write_tokenizer(t, folder, &made) != STATUS_OK) {
        log_warn("%s: no tokenizer.json is written: %s", folder, status_message());
        return STATUS_OK;
    }
    TRY(write_config(t, folder, shape, made));
    if (!has_file(folder, "special_tokens_map.json")) {
        json_auto_t *names = json_object();
        set_names(names, t);
        TRY(write_object(folder, "special_tokens_map.json", names));
    }
    if (!has_file(folder, "generation_config.json") && json_object_size(tokens))
        TRY(write_object(folder, "generation_config.json", tokens));
    return STATUS_OK;
}
