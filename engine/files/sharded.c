#include "engine/files/sharded.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/system/mapping.h"
#include "engine/system/reading.h"
#include "memory/log.h"
#include "memory/scope.h"

struct sharded {
    int files, count;
    safetensors **file;      /* [files] */
    sharded_tensor *tensors; /* [count] by name */
};

/* Neither file is there: the message names the weights that are. */
static status fail_without_weights(const char *folder)
{
    AUTO(DIR) *entries = opendir(folder);
    if (!entries)
        return status_fail(STATUS_FAILED, "cannot open folder %s", folder);
    char pickle[256] = "", other[256] = "";
    for (struct dirent *entry; (entry = readdir(entries));) {
        const char *name = entry->d_name;
        bool shown = !log_has_control(name); /* a name goes into a message of one line */
        bool pickled = reading_ends_in(name, ".bin") || reading_ends_in(name, ".pt") || reading_ends_in(name, ".pth");
        if (shown && pickled && (!*pickle || strcmp(name, pickle) < 0))
            strcpy(pickle, name);
        if (shown && reading_ends_in(name, ".safetensors") && (!*other || strcmp(name, other) < 0))
            strcpy(other, name);
    }
    if (*pickle)
        return status_fail(
            STATUS_FAILED,
            "%s/%s is a pickle, which could run any code and is not opened: save the model as safetensors "
            "(in Python: model.save_pretrained(folder))",
            folder, pickle);
    if (*other)
        return status_fail(STATUS_FAILED,
                           "%s has %s but neither " SHARDED_FILE " nor " SHARDED_INDEX ": rename it, or "
                           "fetch the index",
                           folder, other);
    return status_fail(STATUS_FAILED, "%s holds no weights: neither " SHARDED_FILE " nor " SHARDED_INDEX " is there",
                       folder);
}

static int compare_tensor(const void *a, const void *b)
{
    return strcmp(((const sharded_tensor *)a)->tensor->name, ((const sharded_tensor *)b)->tensor->name);
}

/* Takes the tensors of all files, ordered by name. */
static void collect_tensors(sharded *s)
{
    for (int f = 0; f < s->files; f++)
        s->count += safetensors_count(s->file[f]);
    s->tensors = must_alloc((unsigned long)s->count * sizeof *s->tensors);
    for (int f = 0, n = 0; f < s->files; f++)
        for (int i = 0; i < safetensors_count(s->file[f]); i++)
            s->tensors[n++] = (sharded_tensor){safetensors_at(s->file[f], i), s->file[f]};
    qsort(s->tensors, (size_t)s->count, sizeof *s->tensors, compare_tensor);
}

/* Opens each file that the map names, once; `opened` gets its number by name. */
static status open_files(sharded *s, json_t *opened, const json_t *map, const char *folder, const char *path)
{
    s->file = must_calloc(json_object_size(map), sizeof(safetensors *));
    for (void *i = json_object_iter((json_t *)(uintptr_t)map); i;
         i = json_object_iter_next((json_t *)(uintptr_t)map, i)) {
        const char *name = json_string_value(json_object_iter_value(i));
        if (!reading_is_name(name))
            return status_fail(STATUS_FAILED, "%s: weight_map must give every tensor the name of a file beside it",
                               path);
        if (json_object_get(opened, name))
            continue;
        AUTO_FREE char *file = must_format("%s/%s", folder, name);
        TRY(safetensors_open(&s->file[s->files], file));
        json_object_set_new(opened, name, json_integer(s->files++));
    }
    return STATUS_OK;
}

/* Checks that the index and the files agree. */
static status check_map(const sharded *s, const json_t *opened, const json_t *map, const char *path)
{
    for (int i = 0; i < s->count; i++) {
        const char *name = s->tensors[i].tensor->name, *file = json_string_value(json_object_get(map, name));
        if (!file)
            return status_fail(STATUS_FAILED, "%s: tensor %s is in a file but not in the weight_map", path, name);
        if (s->file[json_integer_value(json_object_get(opened, file))] != s->tensors[i].file)
            return status_fail(STATUS_FAILED, "%s: tensor %s is not only in %s, as the weight_map says", path, name,
                               file);
    }
    for (void *i = json_object_iter((json_t *)(uintptr_t)map); i;
         i = json_object_iter_next((json_t *)(uintptr_t)map, i))
        if (!sharded_find(s, json_object_iter_key(i)))
            return status_fail(STATUS_FAILED, "%s: a tensor of the weight_map is missing from %s", path,
                               json_string_value(json_object_iter_value(i)));
    return STATUS_OK;
}

static status open_index(sharded *s, const char *folder, const char *path)
{
    RELEASED_BY(mapping_close) mapping text = {0};
    json_error_t error;
    TRY(mapping_open(&text, path));
    json_auto_t *index = json_loadb((const char *)text.data, (size_t)text.bytes, JSON_REJECT_DUPLICATES, &error);
    json_auto_t *opened = json_object();
    json_t *map = json_object_get(index, "weight_map");
    if (!index)
        return status_fail(STATUS_FAILED, "%s:%d: no JSON", path, error.line > 0 ? error.line : 1);
    if (!json_is_object(map))
        return status_fail(STATUS_FAILED, "%s: weight_map is missing", path);
    TRY(open_files(s, opened, map, folder, path));
    collect_tensors(s);
    return check_map(s, opened, map, path);
}

status sharded_open(sharded **out, const char *folder)
{
    AUTO(sharded) *s = must_calloc(1, sizeof *s);
    AUTO_FREE char *whole = must_format("%s/" SHARDED_FILE, folder), *index = must_format("%s/" SHARDED_INDEX, folder);
    if (atomic_exists(whole)) {
        s->file = must_calloc(1, sizeof(safetensors *));
        TRY(safetensors_open(&s->file[0], whole));
        s->files = 1;
        collect_tensors(s);
    } else if (atomic_exists(index))
        TRY(open_index(s, folder, index));
    else
        return fail_without_weights(folder);
    *out = TAKE(s);
    return STATUS_OK;
}

void sharded_close(sharded *s)
{
    if (!s)
        return;
    for (int f = 0; f < s->files; f++)
        safetensors_close(s->file[f]);
    free(s->file);
    free(s->tensors);
    free(s);
}

int sharded_files(const sharded *s)
{
    return s->files;
}

int sharded_count(const sharded *s)
{
    return s->count;
}

const sharded_tensor *sharded_at(const sharded *s, int i)
{
    MUST(i >= 0 && i < s->count, "tensor %d of %d", i, s->count);
    return &s->tensors[i];
}

int sharded_number(const sharded *s, const sharded_tensor *t)
{
    MUST(t >= s->tensors && t < s->tensors + s->count, "%s is another folder's", t->tensor->name);
    return (int)(t - s->tensors);
}

const sharded_tensor *sharded_find(const sharded *s, const char *name)
{
    const safetensors_tensor wanted = {.name = name};
    const sharded_tensor key = {.tensor = &wanted};
    return s->count ? bsearch(&key, s->tensors, (size_t)s->count, sizeof *s->tensors, compare_tensor) : NULL;
}

const void *sharded_data(const sharded_tensor *t)
{
    return safetensors_data(t->file, t->tensor);
}

/* Returns the tensor's file, up to the end of its last tensor. */
static mapping mapped_file(const sharded_tensor *t)
{
    const safetensors_tensor *last = safetensors_at(t->file, safetensors_count(t->file) - 1);
    return (mapping){.data = (const uint8_t *)sharded_data(t) - t->tensor->offset, .bytes = last->offset + last->bytes};
}

void sharded_expect(const sharded_tensor *t, int64_t offset, int64_t bytes)
{
    const mapping file = mapped_file(t);
    mapping_expect(&file, t->tensor->offset + offset, bytes);
}

void sharded_forget(const sharded_tensor *t, int64_t offset, int64_t bytes)
{
    const mapping file = mapped_file(t);
    mapping_forget(&file, t->tensor->offset + offset, bytes);
}
