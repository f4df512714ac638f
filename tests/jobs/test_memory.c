/* Promise 1, shown without asking the planner: what the process holds beyond its arena is the same small constant for
 * two models of very different size, and an interposed allocator sees no allocation of 64 KiB or more from step 2 to
 * the last. That arenas are as planned on every rank of every layout is checked beside the parity matrix
 * (tests/jobs/plans.h). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "memory/seal.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/test.h"

static const double MIB = 1 << 20;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

static int write_data(void **state)
{
    if (workfolder_setup(state))
        return -1;
    AUTO_FREE char *data = workfolder_path(*state, "data");
    runs_write_data(data, 131, 40000, 1);
    return 0;
}

static char *write_config(const char *top, const char *name, const char *model, const char *train)
{
    char *path = must_format("%s/%s.yaml", top, name);
    AUTO_FREE char *text = must_format("model: {%s, max_sequence: 64}\n"
                                       "data: {train: %s/data, validation: %s/data}\n"
                                       "train: {sequence: 64, device: cpu, threads: 1, %s}\n"
                                       "checkpoint: {resume: never, every: 4}\n"
                                       "evaluate: {every: 3, batches: 1}\n"
                                       "run: {folder: %s/%s}\n",
                                       model, top, top, train, top, name);
    runs_write_text(path, text);
    return path;
}

/* ---- resident memory --------------------------------------------------------------------------------------------- */

typedef struct footprint {
    double arena, beyond; /* MiB; beyond: the largest over the ranks */
} footprint;

static footprint measure(const char *top, int ranks, const char *name, const char *model, const char *keys)
{
    AUTO_FREE char *path = write_config(top, name, model, "steps: 3, micro_batch: 1, global_batch: 2, precision: bf16");
    free(runs_train_well(200, ranks, "%s %s", path, keys));
    AUTO_FREE char *folder = workfolder_path(top, name);
    json_t *summary = runs_read_summary(folder), *all = json_object_get(summary, "ranks");
    footprint f = {0};
    for (int i = 0; i < ranks; i++) {
        const json_t *one = json_array_get(all, (size_t)i);
        double arena = (double)json_integer_value(json_object_get(one, "arena_bytes")) / MIB;
        double copy = (double)json_integer_value(json_object_get(one, "copy_bytes")) / MIB; /* planned, too */
        double beyond = (double)json_integer_value(json_object_get(one, "peak_resident_bytes")) / MIB - arena - copy;
        f.beyond = i == 0 || beyond > f.beyond ? beyond : f.beyond;
        f.arena = arena > f.arena ? arena : f.arena;
    }
    printf("%-12s %d rank%s: arena %.1f MiB, beyond it and the copy for checkpoints %.1f MiB\n", name, ranks,
           ranks > 1 ? "s" : "", f.arena, f.beyond);
    json_decref(summary);
    return f;
}

/* Equal layers and micro-batches, so equal programs; 50 times the bytes. Of the spread allowed, 2 MiB are the arena's
 * last huge page, the rest machine code that oneDNN makes for other shapes. */
static const double SPREAD = 6;

static const char *const small =
    "architecture: llama, layers: 4, hidden_size: 64, heads: 4, ffn_size: 192, vocab_size: 512";
static const char *const large =
    "architecture: llama, layers: 4, hidden_size: 512, heads: 8, ffn_size: 1536, vocab_size: 2048";

TEST(resident_memory_beyond_the_arena_is_one_constant)
{
    if (SANITIZED)
        skip_because("a sanitizer: its shadow memory is resident, too");
    footprint s = measure(*state, 1, "small", small, ""), l = measure(*state, 1, "large", large, "");
    assert_true(l.arena > 40 * s.arena && l.arena > 200);
    assert_true(fabs(l.beyond - s.beyond) <= SPREAD);
    assert_true(s.beyond <= 48); /* libraries and the program's lists */
}

TEST(resident_memory_beyond_the_arena_is_one_constant_on_two_ranks)
{
    if (SANITIZED)
        skip_because("a sanitizer: its shadow memory is resident, too");
    const char *keys = "parallel.tensor=2";
    footprint s = measure(*state, 2, "small-two", small, keys), l = measure(*state, 2, "large-two", large, keys);
    assert_true(l.arena > 40 * s.arena && l.arena > 100);
    assert_true(fabs(l.beyond - s.beyond) <= SPREAD);
    assert_true(s.beyond <= 64);
}

/* ---- the seal ---------------------------------------------------------------------------------------------------- */

enum { MOST_PROCESSES = 16 };

typedef struct sealed {
    long process;
    bool closed;
    int closings;
} sealed;

/* Allocations within the seal, over all processes; the first few are printed. */
static int count_allocations(const char *log, int *closings, int *outside)
{
    sealed seals[MOST_PROCESSES] = {0};
    int processes = 0, inside = 0;
    FILE *f = fopen(log, "r");
    assert_non_null(f);
    char line[600], function[64], rest[500];
    long long time;
    long process;
    while (fgets(line, sizeof line, f)) {
        assert_int_equal(sscanf(line, "%lld %ld %63s %499[^\n]", &time, &process, function, rest), 4);
        int i = 0;
        while (i < processes && seals[i].process != process)
            i++;
        if (i == processes) {
            assert_in_range(processes, 0, MOST_PROCESSES - 1);
            seals[processes++].process = process;
        }
        if (!strcmp(function, "seal")) {
            seals[i].closed = !strcmp(rest, "close");
            seals[i].closings += seals[i].closed;
        } else if (!seals[i].closed) {
            ++*outside;
        } else if (inside++ < 10) {
            printf("within the seal: %s", line);
        }
    }
    fclose(f);
    for (int i = 0; i < processes; i++)
        *closings += seals[i].closings;
    return inside;
}

/* The checkpoint of step 4 is written within the seal, or, while training waits, between two. */
static void nothing_is_allocated_in_the_seal(const char *top, int ranks, const char *name, const char *keys)
{
    int seals = strstr(keys, "asynchronous=false") ? 2 : 1;
    if (SANITIZED)
        skip_because("a sanitizer: its allocator and the spy exclude each other");
    /* Activations of 128 KiB and gradients of megabytes, so that what communication would allocate is above the
     * threshold. */
    AUTO_FREE char *path = write_config(top, name, large, "steps: 6, micro_batch: 2, global_batch: 8");
    AUTO_FREE char *spy = launch_beside("allocation_spy.so"), *program = launch_beside("../phalanx");
    AUTO_FREE char *log = must_format("%s/%s.log", top, name);
    char *mpirun = ranks > 1 ? launch_mpirun(ranks) : must_strdup("");
    launch_result r = launch_run(300, "exec %s env LD_PRELOAD=%s %s=%s %s train %s %s", mpirun, spy, SEAL_ENVIRONMENT,
                                 log, program, path, keys);
    if (r.status)
        fprintf(stderr, "%s", r.err);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    int closings = 0, outside = 0, inside = count_allocations(log, &closings, &outside);
    printf("%s: %d allocations of 64 KiB or more within the seal of %d rank%s\n", name, inside, ranks,
           ranks > 1 ? "s" : "");
    assert_true(closings >= seals * ranks); /* after step 1, and again after such a checkpoint */
    AUTO_FREE char *saved = must_format("%s/%s/checkpoints/step-00000004/manifest.json", top, name);
    assert_int_equal(access(saved, F_OK), 0);
    assert_true(outside >= ranks); /* the spy sees the arena at least */
    assert_int_equal(inside, 0);
    free(mpirun);
}

TEST(one_rank_allocates_nothing_after_the_first_step)
{
    nothing_is_allocated_in_the_seal(*state, 1, "sealed-one", "train.precision=bf16");
}

TEST(two_ranks_that_wait_for_checkpoints_allocate_nothing_in_between)
{
    nothing_is_allocated_in_the_seal(*state, 2, "sealed-waiting", "checkpoint.asynchronous=false train.precision=bf16");
}

TEST(four_ranks_allocate_nothing_after_the_first_step)
{
    nothing_is_allocated_in_the_seal(
        *state, 4, "sealed-four",
        "parallel.pipeline=2 parallel.zero=3 parallel.zero_reduce=micro_batch train.precision=bf16");
}

TEST(two_ranks_of_a_tensor_group_allocate_nothing_after_the_first_step)
{
    nothing_is_allocated_in_the_seal(*state, 2, "sealed-two", "parallel.tensor=2 train.precision=fp32");
}

TEST_MAIN(write_data, workfolder_teardown)
