#include "engine/files/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/files/atomic.h"
#include "engine/files/reading.h"
#include "memory/log.h"

struct lines {
    char *path, *folder;
    int file; /* -1: none at the moment */
    long long lost;
};

static status failed(const lines *l, int error)
{
    return status_fail(STATUS_FAILED, "cannot write to %s: %s", l->path, strerror(error));
}

status lines_own(const char *path)
{
    struct stat info;
    char *all;
    int64_t bytes;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) || info.st_nlink < 2)
        return STATUS_OK;
    TRY(reading_file(&all, &bytes, path));
    status s = all ? atomic_replace(path, all, bytes) : STATUS_OK;
    free(all);
    return s;
}

static status open_file(lines *l)
{
    TRY(lines_own(l->path));
    l->file = open(l->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    return l->file >= 0 ? STATUS_OK : failed(l, errno);
}

status lines_open(lines **out, const char *path)
{
    lines *l = must_calloc(1, sizeof *l);
    l->path = must_strdup(path);
    char *copy = must_strdup(path);
    l->folder = must_strdup(dirname(copy));
    free(copy);
    status s = open_file(l);
    if (s != STATUS_OK) {
        lines_close(l);
        return s;
    }
    *out = l;
    return STATUS_OK;
}

/* Is the file that is open still the one that the path names? */
static status look(lines *l)
{
    struct stat open_one, named;
    if (l->file >= 0) {
        bool known = fstat(l->file, &open_one) == 0, there = stat(l->path, &named) == 0;
        bool gone = !there && (errno == ENOENT || errno == ENOTDIR);
        if (known && (there ? open_one.st_ino == named.st_ino && open_one.st_dev == named.st_dev : !gone))
            return STATUS_OK; /* where that cannot be told, too */
    }
    if (l->file >= 0) {
        close(l->file);
        log_warn("%s was deleted or replaced: it begins anew, without its earlier lines", l->path);
    }
    l->file = -1;
    TRY(atomic_make_folders(l->folder));
    return open_file(l);
}

static status append(lines *l, const char *text)
{
    TRY(look(l));
    struct stat before;
    size_t bytes = strlen(text), done = 0;
    if (fstat(l->file, &before) != 0)
        return failed(l, errno);
    while (done < bytes) {
        ssize_t wrote = write(l->file, text + done, bytes - done);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0) {
            status s = failed(l, errno);
            if (done && ftruncate(l->file, before.st_size) != 0)
                return status_context(s, "and a torn line is left in it");
            return s;
        }
        done += (size_t)wrote;
    }
    return STATUS_OK;
}

status lines_write(lines *l, const char *text)
{
    status s = append(l, text);
    l->lost += s != STATUS_OK;
    return s;
}

long long lines_lost(const lines *l)
{
    return l->lost;
}

void lines_close(lines *l)
{
    if (!l)
        return;
    if (l->file >= 0)
        close(l->file);
    free(l->path);
    free(l->folder);
    free(l);
}
