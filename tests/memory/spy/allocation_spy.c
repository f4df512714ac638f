/* A shared object for LD_PRELOAD that writes down every allocation of 64 KiB or more that the process asks for.
 *
 *     PHALANX_ALLOCATION_LOG=/tmp/x/log LD_PRELOAD=build/tests/allocation_spy.so build/phalanx train ...
 *
 * Each is a line "<CLOCK_MONOTONIC, ns> <pid> <function> <bytes> <caller's file>+<offset>" appended to that file
 * (addr2line -e FILE OFFSET names the line of code). The program adds lines "<ns> <pid> seal close|open" of its own
 * (memory/seal.h), so that no test must compare clocks. Seen are malloc, calloc, realloc, reallocarray, posix_memalign,
 * aligned_alloc, memalign, valloc, C++'s new (through malloc), and anonymous mmap and growing mremap; not seen are the
 * C library's own mappings (thread stacks, malloc's arenas) and file mappings, which are no allocations of the program.
 *
 * It calls glibc's __libc_* names for the real work, so that there is no dlsym, which would itself allocate. Not for a
 * process under a sanitizer, which brings an allocator of its own.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "memory/seal.h"

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

void *memalign(size_t alignment, size_t bytes);

static int log_file = -1;

__attribute__((constructor)) static void open_log(void)
{
    const char *path = getenv(SEAL_ENVIRONMENT);
    if (path && *path)
        log_file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
}

static void note(const char *function, size_t bytes, void *caller)
{
    if (bytes < (size_t)SEAL_BYTES || log_file < 0)
        return;
    int kept = errno;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    Dl_info origin;
    int known = dladdr(caller, &origin);
    char line[512];
    int length =
        snprintf(line, sizeof line, "%lld %ld %s %zu %.300s+0x%zx\n", (long long)now.tv_sec * 1000000000 + now.tv_nsec,
                 (long)getpid(), function, bytes, known ? origin.dli_fname : "?",
                 known ? (size_t)((char *)caller - (char *)origin.dli_fbase) : (size_t)caller);
    if (write(log_file, line, (size_t)length) != length)
        abort(); /* an allocation that is not written down would be a lie */
    errno = kept;
}

#define NOTE(bytes) note(__func__, bytes, __builtin_return_address(0))

void *malloc(size_t bytes)
{
    NOTE(bytes);
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    size_t all;
    NOTE(__builtin_mul_overflow(count, bytes, &all) ? SIZE_MAX : all);
    return __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
    NOTE(bytes);
    return __libc_realloc(old, bytes);
}

void *reallocarray(void *old, size_t count, size_t bytes)
{
    size_t all;
    if (__builtin_mul_overflow(count, bytes, &all)) {
        errno = ENOMEM;
        return NULL;
    }
    NOTE(all);
    return __libc_realloc(old, all);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    NOTE(bytes);
    if (alignment < sizeof(void *) || (alignment & (alignment - 1)) != 0)
        return EINVAL;
    void *got = __libc_memalign(alignment, bytes);
    if (!got)
        return ENOMEM;
    *out = got;
    return 0;
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    NOTE(bytes);
    return __libc_memalign(alignment, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    NOTE(bytes);
    return __libc_memalign(alignment, bytes);
}

void *valloc(size_t bytes)
{
    NOTE(bytes);
    return __libc_memalign((size_t)sysconf(_SC_PAGESIZE), bytes);
}

static void *map(void *address, size_t bytes, int protection, int flags, int file, off_t offset, void *caller)
{
    if (flags & MAP_ANONYMOUS)
        note("mmap", bytes, caller);
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    return map(address, bytes, protection, flags, file, offset, __builtin_return_address(0));
}

void *mmap64(void *address, size_t bytes, int protection, int flags, int file, off64_t offset)
{
    return map(address, bytes, protection, flags, file, offset, __builtin_return_address(0));
}

void *mremap(void *old, size_t old_bytes, size_t bytes, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    void *address = flags & MREMAP_FIXED ? va_arg(rest, void *) : NULL;
    va_end(rest);
    if (bytes > old_bytes)
        NOTE(bytes);
    return (void *)syscall(SYS_mremap, old, old_bytes, bytes, flags, address);
}
