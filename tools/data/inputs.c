#include "tools/data/tokenize_parts.h"

#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/store/object.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { DEEPEST = 64 }; /* deepest folder read, since a link may lead back */

#define KINDS "*.txt, *.md, *.jsonl, *.json, packed or not, *.parquet, *.arrow"

typedef struct left_out {
    int files, hidden;
    char *one; /* path of one such file */
} left_out;

void inputs_free(inputs *in)
{
    for (int i = 0; i < in->count; i++)
        free(in->paths[i]);
    free(in->paths);
    *in = (inputs){0};
}

/* Cuts off the ending that the name has, if any. */
static bool cut_ending(const char *name, size_t *length, const char *const *endings)
{
    for (int i = 0; endings[i]; i++) {
        size_t tail = strlen(endings[i]);
        if (*length > tail && memcmp(name + *length - tail, endings[i], tail) == 0) {
            *length -= tail;
            return true;
        }
    }
    return false;
}

static bool is_known(const char *name)
{
    static const char *const packed[] = {".gz", ".zst", ".zstd", ".xz", ".bz2", NULL};
    static const char *const texts[] = {".txt", ".text", ".md", ".jsonl", ".ndjson", ".json", NULL};
    static const char *const columns[] = {".parquet", ".arrow", ".feather", NULL};
    size_t length = strlen(name);
    if (cut_ending(name, &length, columns))
        return true;
    cut_ending(name, &length, packed);
    return cut_ending(name, &length, texts);
}

static status take_folder(inputs *in, left_out *out, const char *folder, int depth);

static status take_entry(inputs *in, left_out *out, const char *folder, const char *name, int depth)
{
    if (*name == '.' || *name == '_') {
        out->hidden += strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
        return STATUS_OK;
    }
    struct stat facts;
    size_t length = strlen(folder);
    char *path = must_format("%s%s%s", folder, length && folder[length - 1] == '/' ? "" : "/", name);
    status s = stat(path, &facts) == 0 ? STATUS_OK : status_fail(STATUS_FAILED, "%s: %s", path, strerror(errno));
    if (s == STATUS_OK && S_ISDIR(facts.st_mode)) {
        s = take_folder(in, out, path, depth + 1);
    } else if (s == STATUS_OK && S_ISREG(facts.st_mode) && is_known(name)) {
        APPEND(in->paths, in->count) = path;
        return STATUS_OK;
    } else if (s == STATUS_OK) {
        out->files++;
        if (!out->one)
            out->one = must_strdup(path);
    }
    free(path);
    return s;
}

static status take_folder(inputs *in, left_out *out, const char *folder, int depth)
{
    if (depth > DEEPEST)
        return status_fail(STATUS_FAILED, "%s: more than %d folders deep: does a link lead back?", folder, DEEPEST);
    DIR *list = opendir(folder);
    if (!list)
        return status_fail(STATUS_FAILED, "%s: %s", folder, strerror(errno));
    status s = STATUS_OK;
    errno = 0;
    for (struct dirent *entry; s == STATUS_OK && (entry = readdir(list)); errno = 0)
        s = take_entry(in, out, folder, entry->d_name, depth);
    if (s == STATUS_OK && errno)
        s = status_fail(STATUS_FAILED, "%s: %s", folder, strerror(errno));
    closedir(list);
    return s;
}

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void say_folder(const char *folder, int taken, const left_out *out)
{
    if (out->files)
        log_info("%s: %d files; %d of other kinds are left out, such as %s (named itself, it is read)", folder, taken,
                 out->files, out->one);
    else
        log_info("%s: %d files", folder, taken);
    if (out->hidden)
        log_info("%s: %d hidden files and folders (. and _) are left out", folder, out->hidden);
}

static status add_folder(inputs *in, const char *folder)
{
    left_out out = {0};
    int before = in->count;
    status s = take_folder(in, &out, folder, 1);
    int taken = in->count - before;
    if (s == STATUS_OK && taken == 0)
        s = status_fail(STATUS_FAILED, "%s: this folder has no file whose name says that it holds text (" KINDS ")",
                        folder);
    if (s == STATUS_OK) {
        qsort(in->paths + before, (size_t)taken, sizeof *in->paths, compare);
        if (!in->quiet)
            say_folder(folder, taken, &out);
    }
    free(out.one);
    return s;
}

/* Tells whether an object's path below the folder is hidden, by the rules for files. */
static bool is_hidden_path(const char *path)
{
    for (const char *name = path; name; name = strchr(name, '/') ? strchr(name, '/') + 1 : NULL)
        if (*name == '.' || *name == '_')
            return true;
    return false;
}

static void take_objects(inputs *in, left_out *out, const char *bucket, size_t prefix, const object_listing *list)
{
    for (int64_t i = 0; i < list->count; i++) {
        const char *key = list->entry[i].key, *below = key + prefix;
        size_t length = strlen(key);
        if (key[length - 1] == '/') /* some tools mark folders by empty objects */
            continue;
        if (is_hidden_path(below)) {
            out->hidden++;
        } else if (is_known(below)) {
            APPEND(in->paths, in->count) = must_format("s3://%s/%s", bucket, key);
        } else {
            out->files++;
            out->one = out->one ? out->one : must_format("s3://%s/%s", bucket, key);
        }
    }
}

/* Adds all objects below a prefix that ends in a slash. */
static status add_objects(inputs *in, const char *folder)
{
    enum { MOST = 10 << 20 };
    AUTO_FREE char *bucket = NULL, *prefix = NULL;
    AUTO(object_store) *s = NULL;
    RELEASED_BY(object_listing_free) object_listing list = {0};
    left_out out = {0};
    int before = in->count;
    TRY(object_split(&bucket, &prefix, folder));
    TRY(object_open(&s, bucket, NULL));
    TRY(object_list(&list, s, prefix, true, MOST));
    take_objects(in, &out, bucket, strlen(prefix), &list);
    status result =
        in->count > before
            ? STATUS_OK
            : status_fail(STATUS_FAILED,
                          "%s: there is no object below it whose name says that it holds text (" KINDS ")", folder);
    if (result == STATUS_OK) {
        qsort(in->paths + before, (size_t)(in->count - before), sizeof *in->paths, compare);
        if (!in->quiet)
            say_folder(folder, in->count - before, &out);
    }
    free(out.one);
    return result;
}

status inputs_add(inputs *in, const char *path)
{
    struct stat facts;
    if (object_is_folder(path))
        return add_objects(in, path);
    if (strcmp(path, "-") != 0 && stat(path, &facts) == 0 && S_ISDIR(facts.st_mode))
        return add_folder(in, path);
    APPEND(in->paths, in->count) = must_strdup(path); /* a later open reports a missing file */
    return STATUS_OK;
}

status inputs_add_list(inputs *in, const char *list)
{
    bool standard = strcmp(list, "-") == 0;
    FILE *f = standard ? stdin : fopen(list, "re");
    if (!f)
        return status_fail(STATUS_FAILED, "--files-from %s: %s", list, strerror(errno));
    char *line = NULL;
    size_t room = 0;
    status s = STATUS_OK;
    errno = 0;
    for (ssize_t length; s == STATUS_OK && (length = getline(&line, &room, f)) >= 0; errno = 0) {
        while (length > 0 && (line[length - 1] == '\n' || line[length - 1] == '\r'))
            line[--length] = 0;
        if (length > 0)
            s = inputs_add(in, line);
    }
    if (s == STATUS_OK && ferror(f))
        s = status_fail(STATUS_FAILED, "--files-from %s: %s", list, strerror(errno));
    free(line);
    if (!standard)
        fclose(f);
    return s;
}
