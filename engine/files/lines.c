#include "engine/files/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/files/atomic.h"
#include "engine/files/reading.h"
#include "memory/log.h"

struct lines {
    char *path, *folder;
    int file;  /* -1: none at the moment */
    int moved; /* one that went away with its folder, and gets the same lines as long as it may come back; -1: none */
    struct stat home; /* the folder of `file` */
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
    if (l->file < 0)
        return failed(l, errno);
    if (stat(l->folder, &l->home) != 0)
        memset(&l->home, 0, sizeof l->home);
    return STATUS_OK;
}

status lines_open(lines **out, const char *path)
{
    lines *l = must_calloc(1, sizeof *l);
    l->path = must_strdup(path);
    l->file = l->moved = -1;
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

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev;
}

/* The folder has another name, or none was left of it: a file that has a name is in it still. */
static bool went_with_folder(const lines *l, const struct stat *file)
{
    struct stat now;
    bool there = stat(l->folder, &now) == 0;
    return file->st_nlink > 0 && (there ? !is_same(&now, &l->home) : errno == ENOENT || errno == ENOTDIR);
}

/* Another file is to be made, or is there already: the one that is open goes on beside it, or is given up. */
static void leave(lines *l, const struct stat *file)
{
    if (l->moved < 0 && went_with_folder(l, file)) {
        log_warn("%s was moved with its folder: it begins anew, and the one that was moved goes on as well", l->path);
        l->moved = l->file;
    } else {
        log_warn("%s was deleted or replaced: it begins anew, without its earlier lines", l->path);
        close(l->file);
    }
    l->file = -1;
}

/* The one that was moved has its name again: it has all lines. */
static bool take_back(lines *l, const struct stat *named)
{
    struct stat moved;
    if (l->moved < 0 || fstat(l->moved, &moved) != 0 || !is_same(&moved, named))
        return false;
    log_info("%s is back", l->path);
    if (l->file >= 0)
        close(l->file);
    l->file = l->moved;
    l->moved = -1;
    return stat(l->folder, &l->home) == 0;
}

/* Is the file that is open still the one that the path names? */
static status look(lines *l)
{
    struct stat open_one, named;
    bool there = stat(l->path, &named) == 0, gone = !there && (errno == ENOENT || errno == ENOTDIR);
    if (there && take_back(l, &named))
        return STATUS_OK;
    if (l->file >= 0) {
        if (fstat(l->file, &open_one) != 0 || (there ? is_same(&open_one, &named) : !gone))
            return STATUS_OK; /* where that cannot be told, too */
        leave(l, &open_one);
    }
    TRY(atomic_make_folders(l->folder));
    return open_file(l);
}

/* Whole, or not at all. */
static status put(const lines *l, int file, const char *text)
{
    struct stat before;
    size_t bytes = strlen(text), done = 0;
    bool known = fstat(file, &before) == 0; /* a look that fails loses no line */
    while (done < bytes) {
        ssize_t wrote = write(file, text + done, bytes - done);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0) {
            status s = failed(l, errno);
            if (done && (!known || ftruncate(file, before.st_size) != 0))
                return status_context(s, "and a torn line is left in it");
            return s;
        }
        done += (size_t)wrote;
    }
    return STATUS_OK;
}

/* The copy that was moved is given up where it cannot be written to. */
static status append(lines *l, const char *text)
{
    TRY(look(l));
    if (l->moved >= 0 && put(l, l->moved, text) != STATUS_OK) {
        close(l->moved);
        l->moved = -1;
    }
    return put(l, l->file, text);
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
    if (l->moved >= 0)
        close(l->moved);
    free(l->path);
    free(l->folder);
    free(l);
}
