/* A shared object for LD_PRELOAD: an allocation finds no memory.
 *
 *     PHALANX_ALLOCATION_ONCE=/tmp/x/once LD_PRELOAD=build/tests/allocation_faults.so build/phalanx train ...
 *
 * Nothing happens until that file is there. It holds a number n: in the process that comes first the n-th allocation
 * from then on (from 0) fails with ENOMEM, once, and the file is removed. Seen are malloc, calloc, realloc,
 * posix_memalign and aligned_alloc, whoever calls them, and C++'s new.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

static atomic_int seen;

static bool fails(void)
{
    char text[16] = "";
    const char *once = getenv("PHALANX_ALLOCATION_ONCE");
    int kept = errno;
    long file = once ? syscall(SYS_openat, AT_FDCWD, once, O_RDONLY | O_CLOEXEC) : -1;
    bool now = false;
    if (file >= 0) {
        long got = syscall(SYS_read, file, text, sizeof text - 1);
        syscall(SYS_close, file);
        now = got > 0 && atomic_fetch_add(&seen, 1) >= atoi(text) && syscall(SYS_unlink, once) == 0;
    }
    if (now)
        atomic_store(&seen, 0);
    errno = now ? ENOMEM : kept;
    return now;
}

void *malloc(size_t bytes)
{
    return fails() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
    return fails() ? NULL : __libc_realloc(old, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return fails() ? NULL : __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    void *got = fails() ? NULL : __libc_memalign(alignment, bytes);
    if (!got)
        return ENOMEM;
    *out = got;
    return 0;
}
