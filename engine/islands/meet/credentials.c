#include "engine/islands/meet/credentials.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/islands/islands.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { MOST = 1024 };

static void wipe_text(char **text)
{
    if (*text)
        explicit_bzero(*text, strlen(*text));
    free(*text);
    *text = NULL;
}

void credentials_wipe(credentials *c)
{
    wipe_text(&c->user);
    wipe_text(&c->password);
}

/* "USER:PASSWORD"; the password may have colons. */
static status split(credentials *out, const char *text, const char *from)
{
    const char *colon = strchr(text, ':');
    if (!colon || colon == text || !colon[1] || strpbrk(text, "\r\n"))
        return status_fail(STATUS_USAGE, "%s holds no USER:PASSWORD of etcd, one line", from);
    *out = (credentials){must_format("%.*s", (int)(colon - text), text), must_strdup(colon + 1)};
    return STATUS_OK;
}

static status read_file(credentials *out, const char *path)
{
    char text[MOST] = "";
    struct stat s;
    AUTO_CLOSE file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return status_fail(STATUS_USAGE, "outer.credentials: cannot read %s: %s", path, strerror(errno));
    bool known = fstat(file, &s) == 0;
    ssize_t length = read(file, text, sizeof text - 1);
    if (!known || length < 0)
        return status_fail(STATUS_FAILED, "outer.credentials: cannot read %s: %s", path, strerror(errno));
    while (length > 0 && strchr("\r\n", text[length - 1]))
        text[--length] = 0;
    status result = (s.st_mode & 077) != 0 ? status_fail(STATUS_USAGE,
                                                         "outer.credentials: %s can be read by others than its owner: "
                                                         "chmod 600 it",
                                                         path)
                                           : split(out, text, path);
    explicit_bzero(text, sizeof text);
    return result;
}

status credentials_take(credentials *out, const char *file)
{
    char *given = getenv(ISLANDS_CREDENTIALS), *copy = given ? must_strdup(given) : NULL;
    *out = (credentials){0};
    if (given) {
        explicit_bzero(given, strlen(given)); /* /proc/PID/environ shows this memory */
        unsetenv(ISLANDS_CREDENTIALS);
    }
    status s = file ? read_file(out, file) : copy && *copy ? split(out, copy, ISLANDS_CREDENTIALS) : STATUS_OK;
    wipe_text(&copy);
    return s;
}
