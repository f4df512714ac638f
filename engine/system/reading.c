#include "engine/system/reading.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/system/retry.h"
#include "memory/log.h"
#include "memory/scope.h"

static bool is_absent(int error)
{
    return error == ENOENT || error == ENOTDIR;
}

/* ---- names ---- */

bool reading_is_name(const char *name)
{
    return name && *name && *name != '.' && !strchr(name, '/') && strlen(name) <= NAME_MAX && !log_has_control(name);
}

bool reading_ends_in(const char *name, const char *ending)
{
    size_t length = strlen(name), tail = strlen(ending);
    return length > tail && strcmp(name + length - tail, ending) == 0;
}

/* ---- files ---- */

bool reading_exactly(int file, void *to, int64_t offset, int64_t bytes)
{
    for (int64_t done = 0; done < bytes;) {
        ssize_t now = pread(file, (char *)to + done, (size_t)(bytes - done), (off_t)(offset + done));
        if (now == 0)
            errno = 0;
        if (now == 0 || (now < 0 && errno != EINTR))
            return false;
        done += now > 0 ? now : 0;
    }
    return true;
}

/* Returns false with errno if a call failed. */
static bool try_at(int64_t *got, char *to, const char *path, int64_t offset, int64_t bytes)
{
    AUTO_CLOSE file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ssize_t now = 1;
    *got = 0;
    while (file >= 0 && *got < bytes && now > 0) {
        now = pread(file, to + *got, (size_t)(bytes - *got), offset + *got);
        *got += now > 0 ? now : 0;
    }
    return file >= 0 && now >= 0;
}

status reading_at(int64_t *got, void *to, const char *path, int64_t offset, int64_t bytes)
{
    if (RETRY(path, try_at(got, to, path, offset, bytes) ? 0 : -1) == 0)
        return STATUS_OK;
    *got = -1;
    return is_absent(errno) ? STATUS_OK : retry_failed("read", path);
}

status reading_file(char **out, int64_t *bytes, const char *path)
{
    enum { FIRST = 1 << 16 };
    int64_t room = FIRST, used = 0, got;
    char *all = must_alloc((unsigned long)room);
    *out = NULL;
    *bytes = 0;
    do {
        if (room - used < FIRST)
            all = must_realloc(all, (unsigned long)(room *= 2));
        status s = reading_at(&got, all + used, path, used, room - used - 1);
        if (s != STATUS_OK || got < 0) {
            free(all);
            return s;
        }
        used += got;
    } while (got > 0);
    all[used] = 0;
    *out = all;
    *bytes = used;
    return STATUS_OK;
}

FILE *reading_stream(const char *path)
{
    struct stat info;
    AUTO_CLOSE file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (file < 0 || fstat(file, &info) != 0)
        return NULL;
    errno = EINVAL;
    FILE *out = S_ISREG(info.st_mode) ? fdopen(file, "r") : NULL;
    if (out)
        file = -1;
    return out;
}

/* ---- folders ---- */

static bool try_folder(reading_names *out, const char *path)
{
    reading_names_free(out); /* the previous try's names */
    DIR *entries = opendir(path);
    if (!entries)
        return false;
    out->there = true;
    errno = 0;
    for (struct dirent *e; (e = readdir(entries)); errno = 0) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        APPEND(out->name, out->count) = must_strdup(e->d_name);
    }
    int error = errno;
    closedir(entries);
    errno = error;
    return error == 0;
}

status reading_folder(reading_names *out, const char *path)
{
    *out = (reading_names){0};
    if (RETRY(path, try_folder(out, path) ? 0 : -1) == 0)
        return STATUS_OK;
    status s = is_absent(errno) && !out->there ? STATUS_OK : retry_failed("list", path);
    int error = errno;
    reading_names_free(out);
    errno = error;
    return s;
}

void reading_names_free(reading_names *n)
{
    for (int i = 0; i < n->count; i++)
        free(n->name[i]);
    free(n->name);
    *n = (reading_names){0};
}

/* ---- paths ---- */

status reading_real_path(char **out, const char *path)
{
    RETRY(path, (*out = realpath(path, NULL)) ? 0 : -1);
    return *out || is_absent(errno) ? STATUS_OK : retry_failed("resolve", path);
}

static status stat_path(bool *there, struct stat *out, const char *path, bool follow)
{
    *there = RETRY(path, follow ? stat(path, out) : lstat(path, out)) == 0;
    return *there || is_absent(errno) ? STATUS_OK : retry_failed("look at", path);
}

status reading_look(bool *there, struct stat *out, const char *path)
{
    return stat_path(there, out, path, true);
}

status reading_look_at_link(bool *there, struct stat *out, const char *path)
{
    return stat_path(there, out, path, false);
}

status reading_place_of(reading_place *out, int folder, const char *path)
{
    struct stat own, named;
    bool there;
    *out = PLACE_SAME;
    TRY(reading_look(&there, &named, path));
    if (fstat(folder, &own) != 0)
        *out = PLACE_STALE;
    else if (!there)
        *out = PLACE_FREE;
    else if (own.st_ino != named.st_ino || own.st_dev != named.st_dev)
        *out = PLACE_TAKEN;
    return STATUS_OK;
}
