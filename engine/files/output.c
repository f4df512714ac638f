#include "engine/files/output.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/system/reading.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { MOST_LINKS = 40 }; /* the kernel's own limit */

/* Follows a chain of links to the name of its file, which need not exist yet. NULL with errno: it is unknown. */
static char *follow_links(const char *path)
{
    char *name = must_strdup(path), target[PATH_MAX];
    for (int i = 0; i < MOST_LINKS; i++) {
        ssize_t n = readlink(name, target, sizeof target - 1);
        if (n < 0 && (errno == EINVAL || errno == ENOENT)) /* not a link, or missing */
            return name;
        if (n < 0)
            break;
        target[n] = 0;
        char *slash = strrchr(name, '/');
        char *next = target[0] == '/' || !slash ? must_strdup(target)
                                                : must_format("%.*s/%s", (int)(slash - name), name, target);
        free(name);
        name = next;
        errno = ELOOP;
    }
    free(name);
    return NULL;
}

static status fail_at(const char *path)
{
    return status_fail(STATUS_FAILED, "cannot write %s: %s", path, strerror(errno));
}

static status write_all(int file, const char *path, const char *data, int64_t bytes)
{
    return atomic_write_all(file, data, bytes, -1) == bytes ? STATUS_OK : fail_at(path);
}

/* Checks for a device or pipe, which a rename would destroy. */
static status look_for_special(bool *special, const char *path)
{
    struct stat info;
    bool there;
    TRY(reading_look(&there, &info, path));
    *special = there && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
    return STATUS_OK;
}

static status write_special(const char *path, const void *data, int64_t bytes)
{
    int file = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (file < 0)
        return fail_at(path);
    TRY(write_all(file, path, data, bytes));
    return close(file) != 0 ? fail_at(path) : STATUS_OK;
}

status output_write(const char *path, const void *data, int64_t bytes)
{
    if (strcmp(path, "-") == 0)
        return fflush(stdout) == 0 ? write_all(STDOUT_FILENO, "standard output", data, bytes)
                                   : fail_at("standard output");
    bool special;
    TRY(look_for_special(&special, path));
    if (special)
        return write_special(path, data, bytes);
    AUTO_FREE char *file = follow_links(path);
    if (!file)
        return fail_at(path);
    return atomic_replace(file, data, bytes);
}

status output_check(const char *path)
{
    if (strcmp(path, "-") == 0)
        return STATUS_OK;
    bool special;
    TRY(look_for_special(&special, path));
    if (special)
        return access(path, W_OK) == 0 ? STATUS_OK : fail_at(path);
    AUTO_FREE char *file = follow_links(path);
    if (!file)
        return fail_at(path);
    atomic_file *tried;
    TRY(atomic_open(&tried, file));
    atomic_abandon(tried);
    return STATUS_OK;
}

status output_print(const char *path, void (*draw)(FILE *out, const void *what), const void *what)
{
    AUTO_FREE char *text = MUST_PRINT(out, draw(out, what));
    return output_write(path, text, (int64_t)strlen(text));
}
