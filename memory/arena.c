#include "memory/arena.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "memory/log.h"
#include "memory/scope.h"

static const int64_t HUGE_PAGE = (int64_t)2 << 20;
static const double GIB = 1024.0 * 1024.0 * 1024.0;

struct arena {
    void *base;
    int64_t bytes, mapped;
};

/* Reads the number after `name` at the beginning of a line of a file, the first number in it if the name is empty; -1
 * if there is none ("max", no such line, no such file). */
static int64_t number_in(const char *path, const char *name)
{
    AUTO(FILE) *file = fopen(path, "re");
    if (!file)
        return -1;
    char line[256];
    long long found = -1;
    size_t length = strlen(name);
    while (found < 0 && fgets(line, sizeof line, file))
        if (strncmp(line, name, length) == 0 && sscanf(line + length, "%lld", &found) != 1)
            found = -1;
    return found;
}

/* This process's control group and all above it (version 2) leave their limits less unreclaimable bytes (file pages are
 * reclaimable). */
int64_t arena_available(void)
{
    char line[1024], folder[1100] = "/sys/fs/cgroup", path[1200];
    AUTO(FILE) *file = fopen("/proc/self/cgroup", "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "0::/", 4) == 0) {
            line[strcspn(line, "\n")] = 0;
            snprintf(folder, sizeof folder, "/sys/fs/cgroup%s", line + 3);
        }
    int64_t kib = number_in("/proc/meminfo", "MemAvailable:"), left = kib >= 0 ? kib * 1024 : INT64_MAX;
    for (;;) {
        snprintf(path, sizeof path, "%s/memory.max", folder);
        int64_t limit = number_in(path, "");
        snprintf(path, sizeof path, "%s/memory.stat", folder);
        int64_t used = number_in(path, "anon "), here = limit > used ? limit - (used > 0 ? used : 0) : 0;
        left = limit >= 0 && here < left ? here : left;
        char *slash = strrchr(folder, '/');
        if (strcmp(folder, "/sys/fs/cgroup") == 0 || !slash)
            return left;
        *slash = 0;
    }
}

status arena_open(arena **out, int64_t bytes)
{
    MUST(bytes >= 0, "an arena of %lld bytes", (long long)bytes);
    int64_t available = arena_available();
    if (bytes > available)
        return status_fail(
            STATUS_FAILED,
            "the arena needs %lld bytes (%.2f GiB) of host memory, but only %lld (%.2f GiB) are available: "
            "lower train.micro_batch or memory.budget, raise memory.recompute, or use more ranks",
            (long long)bytes, (double)bytes / GIB, (long long)available, (double)available / GIB);
    int64_t whole = (bytes + HUGE_PAGE - 1) & -HUGE_PAGE;
    whole = whole ? whole : HUGE_PAGE;
    char *mapped = mmap(NULL, (size_t)(whole + HUGE_PAGE), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED)
        return status_fail(STATUS_FAILED,
                           "cannot map %lld bytes (%.2f GiB) for the arena, with %lld (%.2f GiB) available: %s; check "
                           "`ulimit -v` and /proc/sys/vm/overcommit_memory",
                           (long long)bytes, (double)bytes / GIB, (long long)available, (double)available / GIB,
                           strerror(errno));
    int64_t before = -(int64_t)(uintptr_t)mapped & (HUGE_PAGE - 1);
    if (before)
        munmap(mapped, (size_t)before);
    if (before < HUGE_PAGE)
        munmap(mapped + before + whole, (size_t)(HUGE_PAGE - before));
    arena *a = must_alloc(sizeof *a);
    *a = (arena){.base = mapped + before, .bytes = bytes, .mapped = whole};
    madvise(a->base, (size_t)whole, MADV_HUGEPAGE); /* only advice: without huge pages the arena is merely slower */
    *out = a;
    return STATUS_OK;
}

void arena_close(arena *a)
{
    if (!a)
        return;
    munmap(a->base, (size_t)a->mapped);
    free(a);
}

void arena_touch(const arena *a, int threads)
{
    enum { PAGE = 4096 };
    char *base = a->base;
    int64_t pages = (a->bytes + PAGE - 1) / PAGE;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < pages; i++)
        *(volatile char *)(base + i * PAGE) = 0;
}

void *arena_base(const arena *a)
{
    return a->base;
}

int64_t arena_bytes(const arena *a)
{
    return a->bytes;
}
