#include "tools/data/dataset.h"

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
                                             "files to the store",
                                             option, path)
                               : STATUS_OK;
}

status dataset_prepare(const char *prefix, bool force)
{
    static const char *const suffixes[] = {"idx", "bin"};
    const char *slash = strrchr(prefix, '/');
    if (!*prefix || (slash && !slash[1]))
        return status_fail(STATUS_USAGE, "--output %s names a folder: add the data set's name, as in %strain", prefix,
                           *prefix ? prefix : "corpus/");
    TRY(dataset_is_here("--output", prefix));
    status s = STATUS_OK;
    for (int i = 0; i < 2 && s == STATUS_OK && !force; i++) {
        AUTO_FREE char *path = must_format("%s.%s", prefix, suffixes[i]);
        bool there = false;
        s = atomic_look(&there, path);
        if (there)
            s = status_fail(STATUS_FAILED, "%s is there already: name another --output, or replace it with --force",
                            path);
    }
    return s == STATUS_OK ? dataset_make_parent(prefix) : s;
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
