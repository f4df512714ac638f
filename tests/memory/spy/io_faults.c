/* A shared object for LD_PRELOAD: calls on files whose path ends so fail with this error, so many times.
 *
 *     PHALANX_IO_FAULTS="checkpoints/latest ESTALE 3" LD_PRELOAD=build/tests/io_faults.so build/phalanx train ...
 *
 * -1 is always. Seen are access, open, openat, fopen, opendir, rename and unlinkat (whose name stands for its path).
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct {
    char path[256];
    int error, left;
} fault;

static const struct {
    const char *name;
    int error;
} errors[] = {{"ESTALE", ESTALE}, {"EIO", EIO},     {"EACCES", EACCES},
              {"ELOOP", ELOOP},   {"EPERM", EPERM}, {"EROFS", EROFS}};

__attribute__((constructor)) static void read_fault(void)
{
    const char *text = getenv("PHALANX_IO_FAULTS");
    char name[16];
    if (!text || sscanf(text, "%255s %15s %d", fault.path, name, &fault.left) != 3)
        return;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (!strcmp(errors[i].name, name))
            fault.error = errors[i].error;
}

static bool fails(const char *path)
{
    size_t length = strlen(path), end = strlen(fault.path);
    if (!fault.error || length < end || strcmp(path + length - end, fault.path) != 0 || fault.left == 0)
        return false;
    if (fault.left > 0)
        fault.left--;
    errno = fault.error;
    return true;
}

int access(const char *path, int mode)
{
    return fails(path) ? -1 : (int)syscall(SYS_access, path, mode);
}

int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return fails(path) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return fails(path) ? -1 : (int)syscall(SYS_openat, folder, path, flags, mode);
}

int rename(const char *from, const char *to)
{
    return fails(from) || fails(to) ? -1 : (int)syscall(SYS_rename, from, to);
}

int unlinkat(int folder, const char *path, int flags)
{
    return fails(path) ? -1 : (int)syscall(SYS_unlinkat, folder, path, flags);
}

/* The C library opens these two past the functions above. */
FILE *fopen(const char *path, const char *mode)
{
    static FILE *(*real)(const char *, const char *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "fopen");
    return fails(path) ? NULL : real(path, mode);
}

DIR *opendir(const char *path)
{
    static DIR *(*real)(const char *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "opendir");
    return fails(path) ? NULL : real(path);
}
