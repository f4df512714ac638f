#include "tools/data/tokenize_parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/system/atomic.h"
#include "engine/files/output.h"
#include "memory/log.h"
#include "tools/data/dataset.h"

struct rejects {
    char *path;
    atomic_file *file; /* NULL: the path is no regular file */
};

/* Tells whether the path is, or will be, a regular file. */
static bool is_regular(const char *path)
{
    struct stat facts;
    return strcmp(path, "-") != 0 && (stat(path, &facts) != 0 || S_ISREG(facts.st_mode));
}

status rejects_check(const char *path, char *const *files, int count, bool force)
{
    struct stat own, other;
    if (strcmp(path, "-") == 0 || stat(path, &own) != 0 || !S_ISREG(own.st_mode))
        return STATUS_OK;
    for (int i = 0; i < count; i++)
        if (stat(files[i], &other) == 0 && own.st_dev == other.st_dev && own.st_ino == other.st_ino)
            return status_fail(STATUS_USAGE, "--skip-bad %s: this is one of the inputs: name the file to write first",
                               path);
    return force ? STATUS_OK
                 : status_fail(STATUS_FAILED,
                               "--skip-bad %s is there already: name another, or replace it with --force", path);
}

status rejects_open(rejects **out, const char *path)
{
    rejects *r = must_calloc(1, sizeof *r);
    char *linked = is_regular(path) ? realpath(path, NULL) : NULL; /* a link stays, and its target is written */
    r->path = linked ? linked : must_strdup(path);
    status s = STATUS_OK;
    if (is_regular(path)) {
        s = dataset_make_parent(r->path);
        if (s == STATUS_OK)
            s = atomic_open(&r->file, r->path);
    }
    if (s == STATUS_OK)
        *out = r;
    else
        rejects_abandon(r);
    return s;
}

status rejects_add(rejects *r, const char *lines, int64_t length)
{
    return r->file ? atomic_write(r->file, lines, length) : output_write(r->path, lines, length);
}

status rejects_close(rejects *r)
{
    status s = STATUS_OK;
    if (r->file)
        s = atomic_commit(r->file);
    r->file = NULL;
    rejects_abandon(r);
    return s;
}

void rejects_abandon(rejects *r)
{
    if (!r)
        return;
    atomic_abandon(r->file);
    free(r->path);
    free(r);
}
