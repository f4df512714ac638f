#include "engine/system/atomic.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/system/reading.h"
#include "engine/system/retry.h"
#include "memory/log.h"
#include "memory/scope.h"

#define BUFFER_BYTES (4 << 20) /* large enough that a network file system sees large writes */

struct atomic_file {
    char *path, *temporary;
    int descriptor;
    int64_t written; /* bytes handed to the kernel */
    int64_t used;    /* bytes waiting in the buffer */
    char *buffer;
};

/* Looks for a file; false with errno: still unknown after retries. */
static bool path_exists(bool *there, const char *path)
{
    *there = RETRY(path, access(path, F_OK)) == 0;
    return *there || errno == ENOENT || errno == ENOTDIR;
}

bool atomic_exists(const char *path)
{
    bool there;
    return path_exists(&there, path) && there;
}

status atomic_look(bool *there, const char *path)
{
    return path_exists(there, path) ? STATUS_OK : retry_failed("tell whether there is", path);
}

int atomic_create(const char *path, mode_t mode)
{
    int descriptor = -1;
    for (int i = 0; i < 3 && descriptor < 0 && (i == 0 || errno == EEXIST); i++) {
        if (unlink(path) != 0 && errno != ENOENT && errno != EISDIR)
            continue;
        descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    }
    return descriptor;
}

static void free_file(atomic_file *f)
{
    free(f->path);
    free(f->temporary);
    free(f->buffer);
    free(f);
}

static status open_new(atomic_file **out, const char *path, mode_t mode)
{
    struct stat info;
    if (lstat(path, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISLNK(info.st_mode) && !S_ISDIR(info.st_mode))
        return status_fail(STATUS_USAGE, "%s is a device or a pipe, which a new file would replace: name a file", path);
    atomic_file *f = must_calloc(1, sizeof *f);
    f->path = must_strdup(path);
    f->temporary = must_format("%s.tmp", path);
    f->descriptor = RETRY(f->temporary, atomic_create(f->temporary, mode));
    if (f->descriptor < 0) {
        status s = retry_failed("create", f->temporary);
        free_file(f);
        return s;
    }
    *out = f;
    return STATUS_OK;
}

status atomic_open(atomic_file **out, const char *path)
{
    return open_new(out, path, 0666);
}

int64_t atomic_write_all(int descriptor, const void *data, int64_t bytes, int64_t offset)
{
    int64_t done = 0;
    while (done < bytes) {
        const char *from = (const char *)data + done;
        size_t left = (size_t)(bytes - done);
        ssize_t wrote =
            offset < 0 ? write(descriptor, from, left) : pwrite(descriptor, from, left, (off_t)(offset + done));
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            break;
        done += wrote;
    }
    return done;
}

static status write_bytes(atomic_file *f, const char *data, int64_t bytes)
{
    int64_t wrote = atomic_write_all(f->descriptor, data, bytes, -1);
    f->written += wrote;
    return wrote == bytes ? STATUS_OK : retry_failed("write", f->temporary);
}

static status flush_buffer(atomic_file *f)
{
    int64_t bytes = f->used;
    f->used = 0;
    return write_bytes(f, f->buffer, bytes);
}

status atomic_write(atomic_file *f, const void *data, int64_t bytes)
{
    if (f->used + bytes > BUFFER_BYTES)
        TRY(flush_buffer(f)); /* writes large data past the buffer */
    if (bytes >= BUFFER_BYTES)
        return write_bytes(f, data, bytes);
    if (!f->buffer)
        f->buffer = must_alloc(BUFFER_BYTES);
    if (bytes > 0)
        memcpy(f->buffer + f->used, data, (size_t)bytes);
    f->used += bytes;
    return STATUS_OK;
}

int64_t atomic_position(const atomic_file *f)
{
    return f->written + f->used;
}

void atomic_abandon(atomic_file *f)
{
    int error = errno;
    if (!f)
        return;
    if (f->descriptor >= 0)
        close(f->descriptor);
    unlink(f->temporary);
    free_file(f);
    errno = error;
}

status atomic_sync(atomic_file *f)
{
    TRY(flush_buffer(f));
    return fsync(f->descriptor) == 0 ? STATUS_OK : retry_failed("fsync", f->temporary);
}

status atomic_commit(atomic_file *f)
{
    status s = atomic_sync(f);
    if (close(f->descriptor) != 0 && s == STATUS_OK)
        s = retry_failed("close", f->temporary); /* NFS reports a full disk here */
    f->descriptor = -1;
    if (s == STATUS_OK)
        s = atomic_rename(f->temporary, f->path);
    if (s == STATUS_OK)
        free_file(f);
    else
        atomic_abandon(f);
    return s;
}

/* Replaces the file, from the beginning at each try: no later fsync brings back pages that a failed one dropped. */
static status replace_file(const char *path, const void *data, int64_t bytes, mode_t mode)
{
    retry r = {0};
    status s;
    do {
        atomic_file *f = NULL;
        TRY(open_new(&f, path, mode));
        s = write_bytes(f, data, bytes); /* writes past the buffer, needless for one write */
        if (s == STATUS_OK)
            s = atomic_commit(f);
        else
            atomic_abandon(f);
    } while (s != STATUS_OK && retry_again(&r, errno, path));
    return s;
}

status atomic_replace(const char *path, const void *data, int64_t bytes)
{
    return replace_file(path, data, bytes, 0666);
}

status atomic_replace_private(const char *path, const void *data, int64_t bytes)
{
    return replace_file(path, data, bytes, 0600);
}

status atomic_remove_all(const char *folder, const char *prefix)
{
    RELEASED_BY(reading_names_free) reading_names all = {0};
    TRY(reading_folder(&all, folder));
    for (int i = 0; i < all.count; i++)
        if (!strncmp(all.name[i], prefix, strlen(prefix))) {
            AUTO_FREE char *path = must_format("%s/%s", folder, all.name[i]);
            TRY(atomic_remove(path));
        }
    return STATUS_OK;
}

status atomic_sync_folder(const char *path)
{
    AUTO_CLOSE descriptor = RETRY(path, open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (descriptor < 0)
        return retry_failed("open folder", path);
    /* EINVAL: folders need no fsync here */
    bool good = RETRY(path, fsync(descriptor) == 0 || errno == EINVAL ? 0 : -1) == 0;
    return good ? STATUS_OK : retry_failed("fsync folder", path);
}

static status sync_parent(const char *path)
{
    AUTO_FREE char *parent = must_strdup(path);
    size_t length = strlen(parent);
    while (length > 1 && parent[length - 1] == '/')
        parent[--length] = 0;
    char *slash = strrchr(parent, '/');
    if (slash)
        slash[slash == parent] = 0;
    return atomic_sync_folder(slash ? parent : ".");
}

status atomic_rename(const char *from, const char *to)
{
    retry r = {0};
    while (rename(from, to) != 0) {
        int error = errno;
        bool before, after;
        if (error == ENOENT && r.failures > 0 && path_exists(&before, from) && !before && path_exists(&after, to) &&
            after)
            break; /* an earlier try had succeeded, and only its answer was lost */
        if (!retry_again(&r, error, from))
            return status_fail(STATUS_FAILED, "cannot rename %s to %s: %s", from, to, strerror(error));
    }
    return sync_parent(to);
}

static status make_folder(const char *path)
{
    struct stat info;
    if (RETRY(path, mkdir(path, 0777)) == 0)
        return sync_parent(path);
    int error = errno;
    if (error == EEXIST) {
        if (RETRY(path, stat(path, &info)) != 0)
            error = errno;
        else if (S_ISDIR(info.st_mode))
            return STATUS_OK;
    }
    errno = error;
    return retry_failed("make folder", path);
}

status atomic_make_folders(const char *path)
{
    AUTO_FREE char *part = must_strdup(path);
    for (char *p = part + 1; *part && *p; p++)
        if (*p == '/' && p[-1] != '/') {
            *p = 0;
            TRY(make_folder(part));
            *p = '/';
        }
    return make_folder(part);
}

status atomic_make_own_folder(const char *path)
{
    struct stat info;
    bool there;
    TRY(reading_look_at_link(&there, &info, path));
    if (there && S_ISLNK(info.st_mode) && unlink(path) != 0 && errno != ENOENT && errno != EISDIR)
        return retry_failed("remove the link", path); /* EISDIR: another rank has made the folder meanwhile */
    TRY(atomic_make_folders(path));
    TRY(reading_look_at_link(&there, &info, path));
    errno = there ? ENOTDIR : ENOENT;
    return there && S_ISDIR(info.st_mode) ? STATUS_OK : retry_failed("make folder", path);
}

/* Removes `name` in folder `parent`; `path` is its full name, for messages. */
static status remove_at(int parent, const char *name, const char *path)
{
    if (RETRY(path, unlinkat(parent, name, 0)) == 0 || errno == ENOENT)
        return STATUS_OK;
    if (errno != EISDIR && errno != EPERM) /* Linux says EISDIR for a folder, POSIX EPERM */
        return retry_failed("remove", path);
    int descriptor = RETRY(path, openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    DIR *folder = descriptor < 0 ? NULL : fdopendir(descriptor);
    if (!folder) {
        status s = retry_failed("remove", path);
        if (descriptor >= 0)
            close(descriptor);
        return s;
    }
    status s = STATUS_OK;
    for (struct dirent *entry; s == STATUS_OK && (entry = readdir(folder));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            AUTO_FREE char *below = must_format("%s/%s", path, entry->d_name);
            s = remove_at(descriptor, entry->d_name, below);
        }
    closedir(folder);
    if (s == STATUS_OK && RETRY(path, unlinkat(parent, name, AT_REMOVEDIR)) != 0 && errno != ENOENT)
        s = retry_failed("remove", path);
    return s;
}

status atomic_remove(const char *path)
{
    return remove_at(AT_FDCWD, path, path);
}
