#include "tools/data/dataset.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/data/stored.h"
#include "engine/data/tokenizer_files.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tools/stop.h"

#define ANY_ID ((int64_t)INT32_MAX + 1) /* a vocabulary that has every stored id */

status dataset_make_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return STATUS_OK;
    AUTO_FREE char *folder = must_format("%.*s", (int)(slash - path), path);
    return atomic_make_folders(folder);
}

status dataset_is_here(const char *option, const char *path)
{
    return object_is_url(path) ? status_fail(STATUS_USAGE,
                                             "%s %s: it is written to this machine: name a place here, then copy the "
                                             "file to the store",
                                             option, path)
                               : STATUS_OK;
}

/* Makes the folder in which a store's data set is made. */
static status make_aside(dataset_output *out)
{
    const char *given = getenv("TMPDIR"), *slash = strrchr(out->name, '/');
    char *folder = must_format("%s/phalanx-XXXXXX", given && *given ? given : "/tmp");
    if (!mkdtemp(folder)) {
        status s = status_fail(STATUS_FAILED, "%s: it is made in a folder of this machine first, and %s cannot be: %s",
                               out->name, folder, strerror(errno));
        free(folder);
        return s;
    }
    out->folder = folder;
    out->prefix = must_format("%s/%s", folder, slash + 1);
    return STATUS_OK;
}

status dataset_output_open(dataset_output *out, const char *name, bool force)
{
    static const char *const suffixes[] = {"idx", "bin"};
    const char *slash = strrchr(name, '/');
    AUTO(object_store) *s = NULL;
    AUTO_FREE char *key = NULL;
    *out = (dataset_output){.name = name};
    if (!*name || (slash && !slash[1]))
        return status_fail(STATUS_USAGE, "--output %s names a folder: add the data set's name, as in %strain", name,
                           *name ? name : "corpus/");
    if (object_is_url(name))
        TRY(object_open_url(&s, &key, name, NULL));
    if (s && !*key)
        return status_fail(STATUS_USAGE, "--output %s names a bucket: add the data set's name, as in %s/train", name,
                           name);
    for (int i = 0; i < 2 && !force; i++) {
        bool there = false;
        object_facts facts = {0};
        AUTO_FREE char *path = must_format("%s.%s", s ? key : name, suffixes[i]);
        TRY(s ? object_look(&facts, s, path) : atomic_look(&there, path));
        if (there || facts.there)
            return status_fail(STATUS_FAILED,
                               "%s.%s is there already: name another --output, or replace it with --force", name,
                               suffixes[i]);
    }
    if (s)
        return make_aside(out);
    out->prefix = must_strdup(name);
    return dataset_make_parent(name);
}

status dataset_output_end(dataset_output *out, status s)
{
    AUTO_FREE char *bucket = NULL, *key = NULL;
    if (s == STATUS_OK && out->folder)
        s = object_split(&bucket, &key, out->name);
    if (s == STATUS_OK && out->folder) {
        char *name = strrchr(key, '/');
        AUTO_FREE char *last = must_format("%s.idx", name ? name + 1 : key);
        *(name ? name + 1 : key) = 0;
        s = upload_folder(&(upload_target){.bucket = bucket, .root = key, .asked = stop_asked}, out->folder, last);
    }
    AUTO_FREE char *message = must_strdup(status_message());
    if (out->folder)
        (void)atomic_remove(out->folder);
    free(out->folder);
    free(out->prefix);
    *out = (dataset_output){0};
    return s == STATUS_OK ? s : status_fail(s, "%s", message);
}

int64_t dataset_room(indexed *const *inputs, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(indexed_dtype(inputs[i]), "uint16") != 0 && strcmp(indexed_dtype(inputs[i]), "uint8") != 0)
            return ANY_ID - 1;
    return 65499;
}

status dataset_copy(indexed_writer *w, buffer_ids *ids, const indexed *x, int64_t document)
{
    TRY(stop_asked());
    int64_t start = indexed_document_start(x, document), count = indexed_document_start(x, document + 1) - start;
    ids->count = 0;
    buffer_ids_reserve(ids, count + 1);
    TRY(indexed_read(x, ids->ids, start, count, ANY_ID));
    return indexed_writer_document(w, ids->ids, count);
}

status dataset_finish(status s, indexed_writer *w)
{
    if (s == STATUS_OK)
        return indexed_writer_close(w);
    indexed_writer_abandon(w);
    return s;
}

status dataset_tokenizer(tokenizer **out, const char *prefix)
{
    *out = NULL;
    return tokenizer_files_is_beside(prefix) ? tokenizer_files_open_beside(out, prefix) : STATUS_OK;
}
