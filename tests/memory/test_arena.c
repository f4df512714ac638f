/* The arena, the seal, and the interposer that watches the seal. Called with "allocate" the program is its own
 * child. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory/arena.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/seal.h"
#include "tests/skip.h"
#include "tests/test.h"

TEST(an_arena_is_aligned_zeroed_and_whole)
{
    static const int64_t sizes[] = {0, 1, 4096, 2 << 20, (2 << 20) + 1, 7 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        arena *a;
        assert_int_equal(arena_open(&a, sizes[i]), STATUS_OK);
        unsigned char *base = arena_base(a);
        assert_int_equal(arena_bytes(a), sizes[i]);
        assert_int_equal((uintptr_t)base % (2 << 20), 0);
        for (int64_t b = 0; b < sizes[i]; b += 1021)
            assert_int_equal(base[b], 0);
        memset(base, 0xA5, (size_t)sizes[i]);
        arena_close(a);
    }
    arena_close(NULL);
}

TEST(too_large_an_arena_says_what_is_needed_and_what_is_there)
{
    arena *a = NULL;
    assert_true(arena_available() > 0);
    assert_int_equal(arena_open(&a, (int64_t)1 << 55), STATUS_FAILED);
    assert_null(a);
    assert_non_null(strstr(status_message(), "36028797018963968 bytes"));
    assert_non_null(strstr(status_message(), "available"));
    assert_non_null(strstr(status_message(), "micro_batch"));
    assert_null(strchr(status_message(), '\n'));
}

/* What the watched child does: each function once, inside and outside the seal, large and small. */
static void *volatile kept; /* so that no allocation is optimised away */

static void keep(void *p)
{
    kept = p;
    free(kept);
}

static int allocate(void)
{
    void *p = NULL;
    keep(malloc(70001));
    seal_close();
    keep(malloc(65535));
    keep(malloc(70002));
    keep(calloc(3, 30001));
    keep(realloc(malloc(10), 70004));
    keep(aligned_alloc(64, 70016));
    if (posix_memalign(&p, 4096, 70006) == 0)
        keep(p);
    p = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(p, 1 << 20);
    seal_open();
    keep(malloc(70008));
    return 0;
}

/* Where build/tests/allocation_spy.so lies: beside this program. */
static char *beside_me(const char *name)
{
    char path[1024] = "";
    MUST(readlink("/proc/self/exe", path, sizeof path - 1) > 0, "no /proc/self/exe");
    *(strrchr(path, '/') + 1) = 0;
    return must_format("%s%s", path, name);
}

static void run_watched(const char *spy, const char *log)
{
    pid_t child = fork();
    if (child == 0) {
        setenv("LD_PRELOAD", spy, 1);
        setenv(SEAL_ENVIRONMENT, log, 1);
        execl("/proc/self/exe", "test_arena", "allocate", (char *)NULL);
        _exit(127);
    }
    int how = -1;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_int_equal(how, 0);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const int sanitized = 1;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
static const int sanitized = 1;
#else
static const int sanitized = 0;
#endif
#else
static const int sanitized = 0;
#endif

TEST(the_spy_sees_each_large_allocation_within_the_seal)
{
    if (sanitized)
        skip_because("a sanitizer: its allocator and the spy exclude each other");
    char folder[] = "/tmp/test_arena.XXXXXX";
    assert_non_null(mkdtemp(folder));
    AUTO_FREE char *spy = beside_me("allocation_spy.so"), *log = must_format("%s/log", folder);
    assert_int_equal(access(spy, R_OK), 0);
    run_watched(spy, log);
    static const struct {
        const char *function;
        long bytes;
    } expected[] = {{"malloc", 70002},        {"calloc", 90003},         {"realloc", 70004},
                    {"aligned_alloc", 70016}, {"posix_memalign", 70006}, {"mmap", 1 << 20}};
    enum { EXPECTED = sizeof expected / sizeof *expected };
    FILE *file = fopen(log, "r");
    assert_non_null(file);
    char line[600], function[64], rest[500];
    long long time, before = 0;
    long process;
    int sealed = 0, seen = 0, outside = 0;
    while (fgets(line, sizeof line, file)) {
        assert_int_equal(sscanf(line, "%lld %ld %63s %499[^\n]", &time, &process, function, rest), 4);
        assert_true(time >= before);
        before = time;
        if (strcmp(function, "seal") == 0) {
            sealed = strcmp(rest, "close") == 0;
        } else if (sealed) {
            assert_in_range(seen, 0, EXPECTED - 1);
            assert_string_equal(function, expected[seen].function);
            assert_int_equal(strtol(rest, NULL, 10), expected[seen].bytes);
            assert_non_null(strstr(rest, "test_arena"));
            seen++;
        } else {
            outside += strtol(rest, NULL, 10) == 70001 || strtol(rest, NULL, 10) == 70008;
        }
    }
    fclose(file);
    assert_int_equal(seen, EXPECTED);
    assert_int_equal(outside, 2);
    unlink(log);
    rmdir(folder);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "allocate") == 0)
        return allocate();
    return test_run(NULL, NULL);
}
