#include "engine/data/tokenizer_files.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/system/atomic.h"
#include "engine/system/mapping.h"
#include "engine/store/object.h"
#include "memory/log.h"
#include "memory/scope.h"

/* Maps x/tokenizer.SUFFIX -> x/tokenizer_config.json, PREFIX.tokenizer.SUFFIX -> PREFIX.tokenizer_config.json; NULL for
 * others */
static char *config_beside(const char *path)
{
    size_t length = strlen(path);
    for (int i = 0; tokenizer_suffixes[i]; i++) {
        AUTO_FREE char *ending = must_format("tokenizer.%s", tokenizer_suffixes[i]);
        size_t tail = strlen(ending);
        if (length >= tail && strcmp(path + length - tail, ending) == 0)
            return must_format("%.*stokenizer_config.json", (int)(length - tail), path);
    }
    return NULL;
}

/* A file of this machine, or an object of a store. */
typedef struct content {
    mapping map;
    char *memory; /* the object's bytes */
    const char *data;
    int64_t bytes;
} content;

static status read_object(content *out, const char *url)
{
    enum { MOST = 1 << 30 };
    AUTO(object_store) *store = NULL;
    AUTO_FREE char *key = NULL;
    TRY(object_open_url(&store, &key, url, NULL));
    TRY(object_read_whole(&out->memory, &out->bytes, store, key, MOST));
    out->data = out->memory;
    return out->memory ? STATUS_OK : status_fail(STATUS_FAILED, "there is no object %s (a folder ends in /)", url);
}

static status read_content(content *out, const char *path)
{
    if (object_is_url(path))
        return read_object(out, path);
    TRY(mapping_open(&out->map, path));
    out->data = (const char *)out->map.data;
    out->bytes = out->map.bytes;
    return STATUS_OK;
}

static void free_content(content *c)
{
    mapping_close(&c->map);
    free(c->memory);
}

/* Checks for a file; one that cannot be looked at counts as missing. */
static bool is_there(const char *path)
{
    AUTO(object_store) *store = NULL;
    AUTO_FREE char *key = NULL;
    object_facts o = {0};
    if (!object_is_url(path))
        return atomic_exists(path);
    return object_open_url(&store, &key, path, NULL) == STATUS_OK && object_look(&o, store, key) == STATUS_OK &&
           o.there;
}

static status open_file(tokenizer **out, const char *path)
{
    AUTO_FREE char *config_path = config_beside(path);
    content file = {0}, config = {0};
    status s = read_content(&file, path);
    if (s == STATUS_OK && config_path && is_there(config_path))
        s = read_content(&config, config_path);
    if (s == STATUS_OK) {
        const tokenizer_source source = {file.data, file.bytes, config.data, config.bytes};
        s = tokenizer_open(out, &source, path);
    }
    free_content(&file);
    free_content(&config);
    return s;
}

/* Returns the stem of a folder, which ends in a slash if it is a store's. */
static char *stem_of_folder(const char *folder)
{
    return must_format("%s%s", folder, *folder && folder[strlen(folder) - 1] == '/' ? "" : "/");
}

static char *stem_of_prefix(const char *prefix)
{
    return must_format("%s.", prefix);
}

/* Finds the first existing STEMtokenizer.SUFFIX, which the caller frees; NULL: none. */
static char *find_file(const char *stem)
{
    for (int i = 0; tokenizer_suffixes[i]; i++) {
        char *path = must_format("%stokenizer.%s", stem, tokenizer_suffixes[i]);
        if (is_there(path))
            return path;
        free(path);
    }
    return NULL;
}

/* Opens a tokenizer.json beside the model, as in the folders of Gemma and Phi-3: AutoTokenizer reads it, and it has
 * tokens that the model lacks. Skips one that cannot be read here, or that an export made from the model. */
static bool open_json_beside(tokenizer **out, const char *stem, const char *found)
{
    AUTO_FREE char *path = must_format("%stokenizer.json", stem);
    AUTO(tokenizer) *t = NULL;
    bool taken =
        strcmp(found, path) != 0 && is_there(path) && open_file(&t, path) == STATUS_OK && !tokenizer_splits_special(t);
    if (taken)
        *out = TAKE(t);
    return taken;
}

static status open_first(tokenizer **out, const char *stem)
{
    AUTO_FREE char *path = find_file(stem);
    if (!path && !object_is_url(stem))
        return status_fail(STATUS_FAILED, "there is no %stokenizer.model, .json or .bytes", stem);
    if (!path) /* a store had none or did not answer: the failure says which */
        path = must_format("%stokenizer.json", stem);
    else if (open_json_beside(out, stem, path))
        return STATUS_OK;
    return open_file(out, path);
}

status tokenizer_files_open(tokenizer **out, const char *spec)
{
    if (strcmp(spec, "bytes") == 0) {
        *out = tokenizer_open_bytes();
        return STATUS_OK;
    }
    struct stat facts;
    bool folder = object_is_url(spec) ? object_is_folder(spec) : stat(spec, &facts) == 0 && S_ISDIR(facts.st_mode);
    if (!folder)
        return open_file(out, spec);
    AUTO_FREE char *stem = stem_of_folder(spec);
    return open_first(out, stem);
}

status tokenizer_files_open_beside(tokenizer **out, const char *prefix)
{
    AUTO_FREE char *stem = stem_of_prefix(prefix);
    return open_first(out, stem);
}

bool tokenizer_files_is_in(const char *folder)
{
    AUTO_FREE char *stem = stem_of_folder(folder), *path = find_file(stem);
    return path != NULL;
}

bool tokenizer_files_is_beside(const char *prefix)
{
    AUTO_FREE char *stem = stem_of_prefix(prefix), *path = find_file(stem);
    return path != NULL;
}

static status save_file(const tokenizer *t, const char *stem)
{
    const tokenizer_source source = tokenizer_made_from(t);
    AUTO_FREE char *path = must_format("%stokenizer.%s", stem, tokenizer_suffix(t)),
                   *beside = must_format("%stokenizer_config.json", stem);
    TRY(atomic_replace(path, source.file, source.length));
    return source.config_length > 0 ? atomic_replace(beside, source.config, source.config_length) : STATUS_OK;
}

status tokenizer_files_save(const tokenizer *t, const char *folder)
{
    AUTO_FREE char *stem = stem_of_folder(folder);
    return save_file(t, stem);
}

/* The copy of another tokenizer, which was saved there before, would be found first or beside this one. */
static status remove_others(const tokenizer *t, const char *stem)
{
    status s = STATUS_OK;
    for (int i = 0; tokenizer_suffixes[i] && s == STATUS_OK; i++) {
        AUTO_FREE char *path = must_format("%stokenizer.%s", stem, tokenizer_suffixes[i]);
        if (strcmp(tokenizer_suffixes[i], tokenizer_suffix(t)) != 0)
            s = atomic_remove(path);
    }
    AUTO_FREE char *config = must_format("%stokenizer_config.json", stem);
    if (s == STATUS_OK && tokenizer_made_from(t).config_length == 0)
        s = atomic_remove(config);
    return s;
}

status tokenizer_files_save_beside(const tokenizer *t, const char *prefix)
{
    AUTO_FREE char *stem = stem_of_prefix(prefix);
    TRY(save_file(t, stem));
    return remove_others(t, stem);
}

/* ---- the beginning of documents ---- */

#define BEGIN_KEY "document_begin"

status tokenizer_files_begin(tokenizer_begin *out, const char *prefix)
{
    AUTO_FREE char *path = must_format("%s.facts", prefix);
    content file = {0};
    *out = TOKENIZER_BEGIN_UNKNOWN;
    if (!is_there(path))
        return STATUS_OK;
    status s = read_content(&file, path);
    json_auto_t *facts = s == STATUS_OK ? json_loadb(file.data, (size_t)file.bytes, 0, NULL) : NULL;
    free_content(&file);
    TRY(s);
    return tokenizer_begin_find(out, json_string_value(json_object_get(facts, BEGIN_KEY)))
               ? STATUS_OK
               : status_fail(STATUS_FAILED,
                             "%s is not {\"" BEGIN_KEY "\": \"nothing\"}, \"end\" or \"token\": write "
                             "what begins a document, or remove it (phalanx help data)",
                             path);
}

status tokenizer_files_save_begin(const char *prefix, tokenizer_begin begin)
{
    AUTO_FREE char *path = must_format("%s.facts", prefix),
                   *text = must_format("{\"" BEGIN_KEY "\": \"%s\"}\n", tokenizer_begin_words[begin]);
    return begin ? atomic_replace(path, text, (int64_t)strlen(text)) : atomic_remove(path);
}
