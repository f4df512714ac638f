/* A shared object for LD_PRELOAD that makes the storage misbehave for one kind of call on files whose path holds a word.
 *
 *     STORAGE_FAULT="RANK CALL WORD SKIP TIMES ACTION" LD_PRELOAD=build/tests/storage_fault.so build/phalanx train ...
 *
 * RANK: of mpirun's, or -1 for every process. CALL: open, fopen, read, write, fsync, rename, unlink, access, stat (pread, pwrite
 * and fdatasync count as read, write and fsync). The first SKIP matching calls go through, the next TIMES (-1: all) meet ACTION:
 * "hang" never returns, "slow:SECONDS" takes so long, a number is the errno of its failure. Several faults are joined by ';'.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { FAULTS = 8 };

static struct {
    char call[16], word[128], action[32];
    int skip, times;
    atomic_int seen;
} faults[FAULTS];
static int count;

__attribute__((constructor)) static void parse(void)
{
    const char *text = getenv("STORAGE_FAULT"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    char *copy = text ? strdup(text) : NULL, *rest = copy;
    for (char *part = copy; part && (part = strtok_r(rest, ";", &rest)) && count < FAULTS;) {
        int mine;
        if (sscanf(part, "%d %15s %127s %d %d %31s", &mine, faults[count].call, faults[count].word, &faults[count].skip,
                   &faults[count].times, faults[count].action) == 6 &&
            (mine < 0 || mine == (rank ? atoi(rank) : 0)))
            count++;
    }
    free(copy);
}

/* True if the call is to fail, errno set. */
static bool meets(const char *call, const char *path)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(faults[i].call, call) != 0 || !strstr(path, faults[i].word))
            continue;
        int n = atomic_fetch_add(&faults[i].seen, 1);
        if (n < faults[i].skip || (faults[i].times >= 0 && n >= faults[i].skip + faults[i].times))
            continue;
        while (strcmp(faults[i].action, "hang") == 0)
            pause();
        if (strncmp(faults[i].action, "slow:", 5) == 0) {
            usleep((useconds_t)(atof(faults[i].action + 5) * 1e6));
            continue;
        }
        errno = atoi(faults[i].action);
        return true;
    }
    return false;
}

static bool meets_file(const char *call, int file)
{
    char link[64], path[PATH_MAX];
    if (!count)
        return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    return meets(call, path);
}

/* ISO C has no conversion from what dlsym returns to a function. */
#define NEXT(name)                                                                                                     \
    (((union {                                                                                                         \
         void *object;                                                                                                 \
         __typeof__(&name) function;                                                                                   \
     }){.object = dlsym(RTLD_NEXT, #name)})                                                                            \
         .function)

int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return meets("open", path) ? -1 : NEXT(open)(path, flags, mode);
}

FILE *fopen(const char *path, const char *mode)
{
    return meets("fopen", path) ? NULL : NEXT(fopen)(path, mode);
}

ssize_t read(int file, void *to, size_t bytes)
{
    return meets_file("read", file) ? -1 : NEXT(read)(file, to, bytes);
}

ssize_t pread(int file, void *to, size_t bytes, off_t at)
{
    return meets_file("read", file) ? -1 : NEXT(pread)(file, to, bytes, at);
}

ssize_t write(int file, const void *from, size_t bytes)
{
    return meets_file("write", file) ? -1 : NEXT(write)(file, from, bytes);
}

ssize_t pwrite(int file, const void *from, size_t bytes, off_t at)
{
    return meets_file("write", file) ? -1 : NEXT(pwrite)(file, from, bytes, at);
}

int fsync(int file)
{
    return meets_file("fsync", file) ? -1 : NEXT(fsync)(file);
}

int fdatasync(int file)
{
    return meets_file("fsync", file) ? -1 : NEXT(fdatasync)(file);
}

int rename(const char *from, const char *to)
{
    return meets("rename", to) ? -1 : NEXT(rename)(from, to);
}

int unlink(const char *path)
{
    return meets("unlink", path) ? -1 : NEXT(unlink)(path);
}

int access(const char *path, int mode)
{
    return meets("access", path) ? -1 : NEXT(access)(path, mode);
}

int stat(const char *path, struct stat *out)
{
    return meets("stat", path) ? -1 : NEXT(stat)(path, out);
}
