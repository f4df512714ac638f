#include "engine/files/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/files/retry.h"

status mapping_open(mapping *out, const char *path)
{
    struct stat info;
    void *data = NULL;
    int descriptor;
    retry r = {0};
    for (;;) {
        descriptor = open(path, O_RDONLY | O_CLOEXEC);
        if (descriptor >= 0 && fstat(descriptor, &info) == 0)
            break;
        int error = errno;
        if (descriptor >= 0)
            close(descriptor);
        if (!retry_again(&r, error, path))
            return status_fail(STATUS_FAILED, "cannot open %s: %s", path, strerror(error));
    }
    if (!S_ISREG(info.st_mode)) {
        close(descriptor);
        return status_fail(STATUS_FAILED, "%s is not a regular file", path);
    }
    if (info.st_size > 0)
        data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, descriptor, 0);
    int error = errno;
    close(descriptor);
    if (data == MAP_FAILED)
        return status_fail(STATUS_FAILED, "cannot map %s: %s", path, strerror(error));
    *out = (mapping){.data = data, .bytes = (int64_t)info.st_size};
    return STATUS_OK;
}

void mapping_close(mapping *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, (size_t)m->bytes);
    *m = (mapping){0};
}

/* Linux reads no more than a device's largest request for one advice, and on its own 128 KiB at a time. */
#define EXPECT_BYTES (256 << 10)

void mapping_expect(const mapping *m, int64_t offset, int64_t bytes)
{
    int64_t end = offset + bytes < m->bytes ? offset + bytes : m->bytes;
    for (int64_t at = offset / EXPECT_BYTES * EXPECT_BYTES; at < end; at += EXPECT_BYTES)
        (void)madvise((void *)(uintptr_t)(m->data + at), (size_t)(end - at < EXPECT_BYTES ? end - at : EXPECT_BYTES),
                      MADV_WILLNEED);
}

void mapping_forget(const mapping *m, int64_t offset, int64_t bytes)
{
    int64_t page = sysconf(_SC_PAGESIZE), first = offset / page * page;
    if (bytes > 0)
        (void)madvise((void *)(uintptr_t)(m->data + first), (size_t)(offset + bytes - first),
                      MADV_DONTNEED); /* advice */
}
