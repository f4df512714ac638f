/* A shared object for LD_PRELOAD: calls on some files and sockets fail with an error, take long, never return, or end
 * the process.
 *
 *     PHALANX_IO_FAULTS="checkpoints/latest ESTALE 3" LD_PRELOAD=build/tests/io_faults.so build/phalanx train ...
 *     PHALANX_IO_FAULTS="checkpoints* HANG -1 fsync 2 1" ...
 *
 * Words: what a file's path ends with (with a `*`: what it holds; a socket's path is "socket:[N]"); the error's name or
 * what happens: NOTE (nothing), HANG, SLOW (0.7 s), KILL (the process, before the call), RESET (the socket's
 * connection), MUTE (from then on nothing comes or goes on this socket); how many times, -1 always; then, if given: on
 * which call alone ("-": all that only name a file; "any": all; "look": all that read and change nothing); after how
 * many that match; on which of mpirun's ranks. Seen are access, open, openat, fopen, opendir, mkdir, link, rename,
 * unlink, unlinkat, truncate, ftruncate and, where they are named, read, write, fsync and close, where pread, pwrite
 * and fdatasync count too; on sockets send and recv, each in all its forms. These are all the calls by which the engine
 * changes a file.
 * "look" sees stat, fstat, realpath, readdir and mmap as well, of open and fopen those for reading.
 *
 * PHALANX_IO_ONCE names a file without which nothing happens, and which is removed when it does: once, in all processes
 * together. Where that file holds words, these are the fault. PHALANX_IO_SAID names a file that gets a line for each
 * fault: the call and the path. With PHALANX_IO_HASTE set, nanosleep returns at once: pauses between tries take no
 * time.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "memory/scope.h"

enum {
    HANG = -1,
    SLOW = -2,
    KILL = -3,
    RESET = -4,
    MUTE = -5,
    NOTE = -6,
    SLOW_MICROSECONDS = 700000,
    WORDS = 400,
    SOCKETS = 4096
};

static struct {
    char words[WORDS], path[256], call[16];
    bool within; /* the path holds it, wherever */
    int error, left, skip;
} fault;
static bool mute[SOCKETS];

static const struct {
    const char *name;
    int error;
} errors[] = {{"ESTALE", ESTALE}, {"EIO", EIO},       {"EACCES", EACCES}, {"ELOOP", ELOOP}, {"EPERM", EPERM},
              {"EROFS", EROFS},   {"ENOSPC", ENOSPC}, {"ENOMEM", ENOMEM}, {"HANG", HANG},   {"SLOW", SLOW},
              {"KILL", KILL},     {"RESET", RESET},   {"MUTE", MUTE},     {"NOTE", NOTE}};

static void read_fault(const char *text)
{
    const char *me = getenv("OMPI_COMM_WORLD_RANK");
    char name[16];
    int rank = -1;
    memset(&fault, 0, sizeof fault);
    snprintf(fault.words, sizeof fault.words, "%s", text);
    if (sscanf(text, "%255s %15s %d %15s %d %d", fault.path, name, &fault.left, fault.call, &fault.skip, &rank) < 3)
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

__attribute__((constructor)) static void begin(void)
{
    if (getenv("PHALANX_IO_FAULTS"))
        read_fault(getenv("PHALANX_IO_FAULTS"));
}

/* Is there a fault now? */
static bool is_armed(void)
{
    const char *once = getenv("PHALANX_IO_ONCE");
    char words[WORDS] = "";
    if (!once)
        return fault.error;
    long file = syscall(SYS_openat, AT_FDCWD, once, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    long got = syscall(SYS_read, file, words, sizeof words - 1);
    syscall(SYS_close, file);
    if (got > 0 && strcmp(words, fault.words) != 0)
        read_fault(words);
    return fault.error;
}

static bool is_meant(const char *path)
{
    size_t length = strlen(path), end = strlen(fault.path);
    if (fault.within)
        return strstr(path, fault.path);
    return length >= end && strcmp(path + length - end, fault.path) == 0;
}

static void say(const char *call, const char *path)
{
    char line[PATH_MAX + 32];
    const char *name = getenv("PHALANX_IO_SAID");
    int kept = errno;
    long to = name ? syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
    if (to >= 0) {
        int length = snprintf(line, sizeof line, "%s %s\n", call, path);
        (void)syscall(SYS_write, to, line, length);
        syscall(SYS_close, to);
    }
    errno = kept;
}

/* The path is meant: what happens now? */
static bool happens(int file, const char *call, const char *path)
{
    if (fault.left == 0 || fault.skip-- > 0)
        return false;
    const char *once = getenv("PHALANX_IO_ONCE");
    if (once && syscall(SYS_unlink, once) != 0)
        return false;
    if (fault.left > 0)
        fault.left--;
    say(call, path);
    while (fault.error == HANG)
        pause();
    if (fault.error == KILL)
        kill(getpid(), SIGKILL);
    if (fault.error == SLOW)
        usleep(SLOW_MICROSECONDS);
    if (fault.error == RESET)
        shutdown(file, SHUT_RDWR);
    if (fault.error == MUTE && file >= 0 && file < SOCKETS)
        mute[file] = true;
    errno = fault.error > 0 ? fault.error : fault.error == RESET ? ECONNRESET : fault.error == MUTE ? EAGAIN : errno;
    return fault.error > 0 || fault.error == RESET || fault.error == MUTE;
}

/* What a call does to a file. */
typedef enum effect {
    CHANGES,    /* or closes it */
    LOOKS,      /* reads */
    ONLY_LOOKS, /* the same, and is not among the calls that "any" means */
} effect;

static bool is_named(const char *call, effect of)
{
    if (!strcmp(fault.call, call))
        return true;
    return (of != ONLY_LOOKS && !strcmp(fault.call, "any")) || (of != CHANGES && !strcmp(fault.call, "look"));
}

static bool fails(const char *call, const char *path, effect of)
{
    int kept = errno;
    bool named = (!*fault.call && of != ONLY_LOOKS) || is_named(call, of);
    bool failed = is_armed() && named && is_meant(path) && happens(-1, call, path);
    if (!failed)
        errno = kept;
    return failed;
}

/* The same for a call that names no file: only if it is the one that is meant. */
static bool fails_on(const char *call, int file, effect of)
{
    char link[64], path[PATH_MAX];
    int kept = errno;
    if (is_armed() && is_named(call, of)) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", file);
        ssize_t length = syscall(SYS_readlink, link, path, sizeof path - 1);
        path[length > 0 ? length : 0] = 0;
        if (is_meant(path) && happens(file, call, path))
            return true;
    }
    errno = kept;
    return false;
}

static effect effect_of_opening(int flags)
{
    return (flags & O_ACCMODE) == O_RDONLY ? LOOKS : CHANGES;
}

static bool fails_on_socket(const char *call, int file)
{
    if (file >= 0 && file < SOCKETS && mute[file]) {
        errno = EAGAIN;
        return true;
    }
    return fails_on(call, file, CHANGES);
}

int access(const char *path, int mode)
{
    return fails("access", path, LOOKS) ? -1 : (int)syscall(SYS_access, path, mode);
}

int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return fails("open", path, effect_of_opening(flags)) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return fails("openat", path, effect_of_opening(flags)) ? -1 : (int)syscall(SYS_openat, folder, path, flags, mode);
}

int rename(const char *from, const char *to)
{
    return fails("rename", from, CHANGES) || fails("rename", to, CHANGES) ? -1 : (int)syscall(SYS_rename, from, to);
}

int unlinkat(int folder, const char *path, int flags)
{
    return fails("unlinkat", path, CHANGES) ? -1 : (int)syscall(SYS_unlinkat, folder, path, flags);
}

int unlink(const char *path)
{
    return fails("unlink", path, CHANGES) ? -1 : (int)syscall(SYS_unlink, path);
}

int mkdir(const char *path, mode_t mode)
{
    return fails("mkdir", path, CHANGES) ? -1 : (int)syscall(SYS_mkdir, path, mode);
}

int link(const char *from, const char *to)
{
    return fails("link", from, CHANGES) || fails("link", to, CHANGES) ? -1 : (int)syscall(SYS_link, from, to);
}

int truncate(const char *path, off_t bytes)
{
    return fails("truncate", path, CHANGES) ? -1 : (int)syscall(SYS_truncate, path, bytes);
}

int ftruncate(int file, off_t bytes)
{
    return fails_on("ftruncate", file, CHANGES) ? -1 : (int)syscall(SYS_ftruncate, file, bytes);
}

int close(int file)
{
    if (file >= 0 && file < SOCKETS)
        mute[file] = false;
    return fails_on("close", file, CHANGES) ? -1 : (int)syscall(SYS_close, file);
}

ssize_t read(int file, void *to, size_t bytes)
{
    return fails_on("read", file, LOOKS) ? -1 : syscall(SYS_read, file, to, bytes);
}

ssize_t pread(int file, void *to, size_t bytes, off_t at)
{
    return fails_on("read", file, LOOKS) ? -1 : syscall(SYS_pread64, file, to, bytes, at);
}

ssize_t write(int file, const void *from, size_t bytes)
{
    return fails_on("write", file, CHANGES) ? -1 : syscall(SYS_write, file, from, bytes);
}

ssize_t pwrite(int file, const void *from, size_t bytes, off_t at)
{
    return fails_on("write", file, CHANGES) ? -1 : syscall(SYS_pwrite64, file, from, bytes, at);
}

int fsync(int file)
{
    return fails_on("fsync", file, CHANGES) ? -1 : (int)syscall(SYS_fsync, file);
}

int fdatasync(int file)
{
    return fails_on("fsync", file, CHANGES) ? -1 : (int)syscall(SYS_fdatasync, file);
}

/* ---- sockets ---- */

ssize_t readv(int file, const struct iovec *to, int count)
{
    return fails_on_socket("recv", file) ? -1 : syscall(SYS_readv, file, to, count);
}

ssize_t writev(int file, const struct iovec *from, int count)
{
    return fails_on_socket("send", file) ? -1 : syscall(SYS_writev, file, from, count);
}

ssize_t recv(int file, void *to, size_t bytes, int flags)
{
    return fails_on_socket("recv", file) ? -1 : syscall(SYS_recvfrom, file, to, bytes, flags, NULL, NULL);
}

ssize_t send(int file, const void *from, size_t bytes, int flags)
{
    return fails_on_socket("send", file) ? -1 : syscall(SYS_sendto, file, from, bytes, flags, NULL, 0);
}

ssize_t recvmsg(int file, struct msghdr *message, int flags)
{
    return fails_on_socket("recv", file) ? -1 : syscall(SYS_recvmsg, file, message, flags);
}

ssize_t sendmsg(int file, const struct msghdr *message, int flags)
{
    return fails_on_socket("send", file) ? -1 : syscall(SYS_sendmsg, file, message, flags);
}

/* ---- streams ---- */

/* A stream whose reads are seen, each of them a call of "read". */
typedef struct seen {
    int file;
    char path[PATH_MAX];
} seen;

static ssize_t seen_read(void *cookie, char *to, size_t bytes)
{
    const seen *s = cookie;
    return fails("read", s->path, LOOKS) ? -1 : syscall(SYS_read, s->file, to, bytes);
}

static int seen_seek(void *cookie, off64_t *at, int whence)
{
    off_t now = lseek(((const seen *)cookie)->file, *at, whence);
    *at = now;
    return now < 0 ? -1 : 0;
}

static int seen_close(void *cookie)
{
    AUTO_FREE seen *s = cookie;
    syscall(SYS_close, s->file);
    return 0;
}

static FILE *open_seen(const char *path)
{
    seen *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    snprintf(s->path, sizeof s->path, "%s", path);
    s->file = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (s->file < 0) {
        free(s);
        return NULL;
    }
    return fopencookie(s, "r", (cookie_io_functions_t){.read = seen_read, .seek = seen_seek, .close = seen_close});
}

/* The C library opens these two past the functions above. */
FILE *fopen(const char *path, const char *mode)
{
    static FILE *(*real)(const char *, const char *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "fopen");
    if (fails("fopen", path, *mode == 'r' ? LOOKS : CHANGES))
        return NULL;
    bool reads = *mode == 'r' && !strchr(mode, '+');
    return reads && is_armed() && is_named("read", LOOKS) && is_meant(path) ? open_seen(path) : real(path, mode);
}

DIR *opendir(const char *path)
{
    static DIR *(*real)(const char *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "opendir");
    return fails("opendir", path, LOOKS) ? NULL : real(path);
}

/* ---- calls that only look ---- */

struct dirent *readdir(DIR *folder)
{
    static struct dirent *(*real)(DIR *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "readdir");
    return fails_on("readdir", dirfd(folder), ONLY_LOOKS) ? NULL : real(folder);
}

int stat(const char *path, struct stat *out)
{
    return fails("stat", path, ONLY_LOOKS) ? -1 : fstatat(AT_FDCWD, path, out, 0);
}

int fstat(int file, struct stat *out)
{
    return fails_on("fstat", file, ONLY_LOOKS) ? -1 : fstatat(file, "", out, AT_EMPTY_PATH);
}

char *realpath(const char *path, char *out)
{
    static char *(*real)(const char *, char *);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "realpath");
    return fails("realpath", path, ONLY_LOOKS) ? NULL : real(path, out);
}

void *mmap(void *at, size_t bytes, int protection, int flags, int file, off_t offset)
{
    if (file >= 0 && fails_on("mmap", file, ONLY_LOOKS))
        return MAP_FAILED;
    long got = syscall(SYS_mmap, at, bytes, protection, flags, file, offset);
    return (void *)got; /* -1 is MAP_FAILED */
}

int nanosleep(const struct timespec *time, struct timespec *left)
{
    return getenv("PHALANX_IO_HASTE") ? 0 : (int)syscall(SYS_nanosleep, time, left);
}
