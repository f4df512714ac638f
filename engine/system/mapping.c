#include "engine/system/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/system/retry.h"
#include "memory/scope.h"

/* Returns false with errno if a call failed. *regular false: it can never be mapped. */
static bool try_map(mapping *out, bool *regular, const char *path)
{
    struct stat info;
    void *data = NULL;
    AUTO_CLOSE descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0)
        return false;
    bool looked = fstat(descriptor, &info) == 0;
    *regular = !looked || S_ISREG(info.st_mode);
    if (looked && *regular && info.st_size > 0)
        data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, descriptor, 0);
    if (!looked || data == MAP_FAILED)
        return false;
    *out = (mapping){.data = data, .bytes = (int64_t)info.st_size};
    return true;
}

status mapping_open(mapping *out, const char *path)
{
    bool regular = true;
    if (RETRY(path, try_map(out, &regular, path) ? 0 : -1) != 0)
        return retry_failed("open", path);
    if (regular)
        return STATUS_OK;
    *out = (mapping){0};
    return status_fail(STATUS_FAILED, "%s is not a regular file", path);
}

void mapping_close(mapping *m)
{
    if (m->data)
        munmap((void *)(uintptr_t)m->data, (size_t)m->bytes);
    *m = (mapping){0};
}

/* Linux reads no more than a device's largest request for one advice, and on its own 128 KiB at a time. From the page
 * of the first byte on: it looks at every page of an advice, and a page can hold several small tensors. */
#define EXPECT_BYTES (256 << 10)

void mapping_expect(const mapping *m, int64_t offset, int64_t bytes)
{
    int64_t page = sysconf(_SC_PAGESIZE), end = offset + bytes < m->bytes ? offset + bytes : m->bytes;
    for (int64_t at = offset / page * page; at < end; at += EXPECT_BYTES)
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
