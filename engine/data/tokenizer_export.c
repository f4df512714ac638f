#include "engine/data/tokenizer_export.h"

#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/system/mapping.h"
#include "engine/tokenizer/tokenizer_json.h"
#include "memory/log.h"
#include "memory/scope.h"

#define CONFIG "tokenizer_config.json"

/* The class that takes tokenizer.json as it is, in transformers 4 and 5. */
#define PLAIN_CLASS "PreTrainedTokenizerFast"

/* For Qwen2 transformers 5 builds a tokenizer of its own around the file's vocabulary, whatever tokenizer_class says,
 * unless the folder names a class by auto_map; that one it takes only if the caller trusts remote code, so it must be
 * there as well. */
#define MODULE "tokenization_phalanx"
static const char module_text[] = "from transformers import PreTrainedTokenizerFast\n"
                                  "\n"
                                  "\n"
                                  "class TokenizerOfFile(PreTrainedTokenizerFast):\n"
                                  "    \"\"\"tokenizer.json as it is.\"\"\"\n";

static bool has(const char *folder, const char *name)
{
    AUTO_FREE char *path = must_format("%s/%s", folder, name);
    return atomic_exists(path);
}

static status put(const char *folder, const char *name, const char *text, int64_t length)
{
    AUTO_FREE char *path = must_format("%s/%s", folder, name);
    return atomic_replace(path, text, length);
}

static status put_json(const char *folder, const char *name, const json_t *value)
{
    AUTO_FREE char *body = json_dumps(value, JSON_INDENT(2) | JSON_SORT_KEYS);
    MUST(body, "out of host memory");
    AUTO_FREE char *text = must_format("%s\n", body);
    return put(folder, name, text, (int64_t)strlen(text));
}

/* A JSON object of the folder; an empty one when there is none, or none that can be read: other programs' files are not
 * ours to judge. */
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

/* Names of the special tokens, of those that there are. */
static void set_names(json_t *into, const tokenizer *t)
{
    const struct {
        const char *key;
        int32_t id;
    } names[] = {{"bos_token", tokenizer_bos(t)},
                 {"eos_token", tokenizer_eos(t)},
                 {"pad_token", tokenizer_pad(t)},
                 {"unk_token", tokenizer_unknown(t)}};
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

/* transformers 5 builds tokenizers of these classes around the file's vocabulary, with a pre-tokenizer of the class's
 * own, unless the model's architecture is among those for which it knows better. */
static bool builds_its_own(const json_t *config)
{
    static const char *const classes[] = {"GPT2Tokenizer", "GPTNeoXTokenizer", "LlamaTokenizer", "GemmaTokenizer"};
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (is_class(config, classes[i]))
            return true;
    return false;
}

/* `made`: tokenizer.json was written here, and the class that the model came with would make something else of it. */
static status write_config(const tokenizer *t, const char *folder, const model_shape *shape, bool made)
{
    json_auto_t *config = read_json(folder, CONFIG);
    bool chat = json_object_get(config, "chat_template") || has(folder, "chat_template.jinja");
    bool changed = made || !json_object_get(config, "tokenizer_class");
    if (changed) {
        json_object_set_new(config, "tokenizer_class", json_string(PLAIN_CLASS));
        json_object_set_new(config, "clean_up_tokenization_spaces", json_false());
        if (!json_object_get(config, "model_max_length"))
            json_object_set_new(config, "model_max_length", json_integer(shape->max_sequence));
        if (tokenizer_json_splits_names(t) && !chat) /* a chat template is made of such names */
            json_object_set_new(config, "split_special_tokens", json_true());
        set_names(config, t);
    } else if (builds_its_own(config)) {
        json_object_set_new(config, "tokenizer_class", json_string(PLAIN_CLASS));
        changed = true;
    }
    status s = STATUS_OK;
    if (shape_has_key(shape->architecture, KEY_TOKENIZER_CLASS) && !is_class(config, "Qwen2Tokenizer") &&
        !json_object_get(config, "auto_map")) {
        json_object_set_new(config, "auto_map", json_pack("{s:[n, s]}", "AutoTokenizer", MODULE ".TokenizerOfFile"));
        s = put(folder, MODULE ".py", module_text, sizeof module_text - 1);
        changed = true;
    }
    if (s == STATUS_OK && changed)
        s = put_json(folder, CONFIG, config);
    return s;
}

static status write_json(const tokenizer *t, const char *folder, bool *made)
{
    buffer text = {0};
    *made = !has(folder, "tokenizer.json");
    status s = *made ? tokenizer_json_write(&text, t) : STATUS_OK;
    if (s == STATUS_OK && *made)
        s = put(folder, "tokenizer.json", text.bytes, text.length);
    buffer_free(&text);
    return s;
}

status tokenizer_export(const tokenizer *t, const char *folder, const model_shape *shape, const json_t *tokens)
{
    bool made;
    if (write_json(t, folder, &made) != STATUS_OK) {
        log_warn("%s: no tokenizer.json is written: %s", folder, status_message());
        return STATUS_OK;
    }
    TRY(write_config(t, folder, shape, made));
    status s = STATUS_OK;
    if (!has(folder, "special_tokens_map.json")) {
        json_auto_t *names = json_object();
        set_names(names, t);
        s = put_json(folder, "special_tokens_map.json", names);
    }
    if (s == STATUS_OK && !has(folder, "generation_config.json") && json_object_size(tokens))
        s = put_json(folder, "generation_config.json", tokens);
    return s;
}
