/* A shared object for LD_PRELOAD: calls on some files fail with an error, take long, or never return.
 *
 *     PHALANX_IO_FAULTS="checkpoints/latest ESTALE 3" LD_PRELOAD=build/tests/io_faults.so build/phalanx train ...
 *     PHALANX_IO_FAULTS="checkpoints* HANG -1 fsync 2 1" ...
 *
 * Words: what a file's path ends with (with a `*`: what it holds); the error's name, HANG, or SLOW (0.7 s); how many times, -1 always;
 * then, if given: on which call alone (the rest are left in peace; "-": all that only name a file); after how many that match; on
 * which of mpirun's ranks. Seen are access, open, openat, fopen, opendir, rename, unlinkat and, where they are named, read, write
 * and fsync, which stand for pread, pwrite and fdatasync too.
 * PHALANX_IO_ONCE names a file without which nothing happens, and which is removed when it does: once, in all processes together.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { HANG = -1, SLOW = -2, SLOW_MICROSECONDS = 700000 };

static struct {
    char path[256], call[16];
    bool within; /* the path holds it, wherever */
    int error, left, skip;
} fault;

static const struct {
    const char *name;
    int error;
} errors[] = {{"ESTALE", ESTALE}, {"EIO", EIO},       {"EACCES", EACCES}, {"ELOOP", ELOOP}, {"EPERM", EPERM},
              {"EROFS", EROFS},   {"ENOSPC", ENOSPC}, {"HANG", HANG},     {"SLOW", SLOW}};

__attribute__((constructor)) static void read_fault(void)
{
    const char *text = getenv("PHALANX_IO_FAULTS"), *me = getenv("OMPI_COMM_WORLD_RANK");
    char name[16];
    int rank = -1;
    if (!text ||
        sscanf(text, "%255s %15s %d %15s %d %d", fault.path, name, &fault.left, fault.call, &fault.skip, &rank) < 3)
        return;
    if (rank >= 0 && rank != (me ? atoi(me) : 0))
        return;
    size_t length = strlen(fault.path);
    fault.within = fault.path[length - 1] == '*';
    if (fault.within)
        fault.path[length - 1] = 0;
    if (strcmp(fault.call, "-") == 0)
        *fault.call = 0;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (!strcmp(errors[i].name, name))
            fault.error = errors[i].error;
}

static bool is_meant(const char *path)
{
    size_t length = strlen(path), end = strlen(fault.path);
    if (fault.within)
        return strstr(path, fault.path);
    return length >= end && strcmp(path + length - end, fault.path) == 0;
}

/* The path is meant: what happens now? */
static bool happens(void)
{
    if (fault.left == 0 || fault.skip-- > 0)
        return false;
    const char *once = getenv("PHALANX_IO_ONCE");
    if (once && syscall(SYS_unlink, once) != 0)
        return false;
    if (fault.left > 0)
        fault.left--;
    while (fault.error == HANG)
        pause();
    if (fault.error == SLOW)
        usleep(SLOW_MICROSECONDS);
    errno = fault.error > 0 ? fault.error : errno;
    return fault.error > 0;
}

static bool fails(const char *call, const char *path)
{
    return fault.error && (!*fault.call || !strcmp(fault.call, call)) && is_meant(path) && happens();
}

/* The same for a call that names no file: only if it is the one that is meant. */
static bool fails_on(const char *call, int file)
{
    char link[64], path[PATH_MAX];
    if (!fault.error || strcmp(fault.call, call) != 0)
        return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    return is_meant(path) && happens();
}

int access(const char *path, int mode)
{
    return fails("access", path) ? -1 : (int)syscall(SYS_access, path, mode);
}

int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return fails("open", path) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return fails("openat", path) ? -1 : (int)syscall(SYS_openat, folder, path, flags, mode);
}

int rename(const char *from, const char *to)
{
    return fails("rename", from) || fails("rename", to) ? -1 : (int)syscall(SYS_rename, from, to);
}

int unlinkat(int folder, const char *path, int flags)
{
    return fails("unlinkat", path) ? -1 : (int)syscall(SYS_unlinkat, folder, path, flags);
}

ssize_t read(int file, void *to, size_t bytes)
{
    return fails_on("read", file) ? -1 : syscall(SYS_read, file, to, bytes);
}

ssize_t pread(int file, void *to, size_t bytes, off_t at)
{
    return fails_on("read", file) ? -1 : syscall(SYS_pread64, file, to, bytes, at);
}

ssize_t write(int file, const void *from, size_t bytes)
{
    return fails_on("write", file) ? -1 : syscall(SYS_write, file, from, bytes);
}

ssize_t pwrite(int file, const void *from, size_t bytes, off_t at)
{
    return fails_on("write", file) ? -1 : syscall(SYS_pwrite64, file, from, bytes, at);
}

int fsync(int file)
{
    return fails_on("fsync", file) ? -1 : (int)syscall(SYS_fsync, file);
}

int fdatasync(int file)
{
    return fails_on("fsync", file) ? -1 : (int)syscall(SYS_fdatasync, file);
}

/* The C library opens these two past the functions above. */
FILE *fopen(const char *path, const char *mode)
{
    static FILE *(*real)(const char *, const char *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "fopen");
    return fails("fopen", path) ? NULL : real(path, mode);
}

DIR *opendir(const char *path)
{
    static DIR *(*real)(const char *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "opendir");
    return fails("opendir", path) ? NULL : real(path);
}
