#include "engine/system/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/system/crc32c.h"
#include "engine/system/retry.h"
#include "memory/log.h"

static status fail_file(int *error, const char *what, const char *path)
{
    *error = errno;
    return retry_failed(what, path);
}

static bool to_cache(bool *past_cache, int descriptor)
{
    int flags = fcntl(descriptor, F_GETFL);
    *past_cache = false;
    return flags >= 0 && fcntl(descriptor, F_SETFL, flags & ~O_DIRECT) == 0;
}

/* ---- writing ---- */

status direct_open(direct *d, const char *path, char *buffer, int64_t capacity)
{
    MUST((uintptr_t)buffer % DIRECT_ALIGNMENT == 0 && capacity > 0 && capacity % DIRECT_ALIGNMENT == 0,
         "a buffer of %lld bytes at %p", (long long)capacity, (void *)buffer);
    *d = (direct){.path = path, .buffer = buffer, .capacity = capacity, .descriptor = atomic_create(path, 0666)};
    if (d->descriptor < 0)
        return fail_file(&d->error, "create", path);
    int flags = fcntl(d->descriptor, F_GETFL);
    d->past_cache = flags >= 0 && fcntl(d->descriptor, F_SETFL, flags | O_DIRECT) == 0;
    return STATUS_OK;
}

static status flush_buffer(direct *d)
{
    int64_t bytes = d->used, done = 0;
    d->used = 0;
    while (done < bytes) {
        int64_t left = bytes - done, whole = left / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT;
        /* The end of a file, or what a torn write has left, is no whole block. */
        if (d->past_cache && (!whole || done % DIRECT_ALIGNMENT) && !to_cache(&d->past_cache, d->descriptor))
            return fail_file(&d->error, "write", d->path);
        ssize_t wrote = write(d->descriptor, d->buffer + done, (size_t)(d->past_cache ? whole : left));
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0 && errno == EINVAL && d->past_cache && to_cache(&d->past_cache, d->descriptor))
            continue; /* opening allowed it, writing does not */
        if (wrote < 0)
            return fail_file(&d->error, "write", d->path);
        done += wrote;
        d->written += wrote;
    }
    return STATUS_OK;
}

status direct_print(direct *d, const char *format, ...)
{
    char text[DIRECT_PRINT];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    MUST(length >= 0 && length < (int)sizeof text, "%d bytes at once", length);
    return direct_write(d, text, length, NULL);
}

char *direct_room(direct *d, int64_t *room)
{
    *room = d->capacity - d->used;
    return d->buffer + d->used;
}

status direct_added(direct *d, int64_t bytes, direct_values *of)
{
    enum { BLOCK = 8 * 3 * 4096 }; /* stays in the processor's cache between checksum and check */
    uint32_t crc = 0;
    for (int64_t done = 0, now; done < bytes; done += now) {
        const char *data = d->buffer + d->used + done;
        now = bytes - done < BLOCK ? bytes - done : BLOCK;
        crc = crc32c(crc, data, now);
        if (of)
            of->finite = of->finite && dtype_all_finite(of->type, data, now / dtype_bytes(of->type));
    }
    if (of)
        of->crc32c = crc32c_combine(of->crc32c, crc, bytes);
    d->crc32c = crc32c_combine(d->crc32c, crc, bytes);
    d->used += bytes;
    MUST(d->used <= d->capacity, "%lld bytes in a buffer of %lld", (long long)d->used, (long long)d->capacity);
    return d->used == d->capacity ? flush_buffer(d) : STATUS_OK;
}

status direct_write(direct *d, const void *data, int64_t bytes, direct_values *of)
{
    const char *from = data;
    while (bytes > 0) {
        int64_t room;
        char *to = direct_room(d, &room);
        int64_t now = bytes < room ? bytes : room;
        memcpy(to, from, (size_t)now);
        TRY(direct_added(d, now, of));
        from += now;
        bytes -= now;
    }
    return STATUS_OK;
}

int64_t direct_position(const direct *d)
{
    return d->written + d->used;
}

status direct_close(direct *d, status written)
{
    status s = written == STATUS_OK ? flush_buffer(d) : written;
    if (s == STATUS_OK && fsync(d->descriptor) != 0)
        s = fail_file(&d->error, "fsync", d->path);
    if (close(d->descriptor) != 0 && s == STATUS_OK)
        s = fail_file(&d->error, "close", d->path); /* NFS reports a full disk here */
    d->descriptor = -1;
    return s;
}

/* ---- reading back ---- */

status direct_verify(int *error, const char *path, int64_t bytes, uint32_t crc, char *buffer, int64_t capacity)
{
    uint32_t found = 0;
    int64_t done = 0;
    ssize_t now;
    int descriptor = open(path, O_RDONLY | O_DIRECT | O_NONBLOCK | O_CLOEXEC); /* reads past the cache, if possible */
    bool past_cache = descriptor >= 0;
    if (!past_cache && errno == EINVAL)
        descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0)
        return fail_file(error, "open", path);
    if (!past_cache) /* drops clean pages only: written bytes have been fsynced */
        (void)posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    while ((now = read(descriptor, buffer, (size_t)capacity)) != 0) {
        if (now < 0 && (errno == EINTR || (errno == EINVAL && past_cache && to_cache(&past_cache, descriptor))))
            continue;
        if (now < 0)
            break;
        found = crc32c(found, buffer, now);
        done += now;
    }
    status s = now < 0 ? fail_file(error, "read back", path) : STATUS_OK;
    close(descriptor);
    if (now < 0 || (done == bytes && found == crc))
        return s;
    *error = EIO;
    return status_fail(STATUS_FAILED,
                       "%s: the storage gives back %lld bytes with checksum %08x, but %lld with %08x were written",
                       path, (long long)done, found, (long long)bytes, crc);
}
