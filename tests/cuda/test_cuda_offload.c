/* memory.offload on the stand-ins: what is in host memory and passes through windows is trained, saved and resumed as
 * what is in the arena, to the last bit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/cuda/cuda_runs.h"
#include "tests/jobs/runs.h"
#include "tests/test.h"

static const char *folder;

static int set_up(void **state)
{
    int failed = cuda_runs_setup(state);
    folder = cuda_runs_folder();
    return failed;
}

/* All tensors of the checkpoints after each step. */
static void same_checkpoints(const char *a, const char *b, const char *what)
{
    for (int step = 1; step <= CUDA_RUNS_STEPS; step++) {
        char difference[256];
        AUTO_FREE char *x = must_format("%s/%s/checkpoints/step-%08d", folder, a, step);
        AUTO_FREE char *y = must_format("%s/%s/checkpoints/step-%08d", folder, b, step);
        assert_true(runs_compare_checkpoints(difference, sizeof difference, x, y) >= 2 * 20);
        if (*difference)
            fail_msg("%s, step %d: %s", what, step, difference);
    }
}

/* Windows of some rows, of whole matrices; vectors stay in the arena. */
static const struct {
    int ranks;
    const char *model, *keys, *window;
} cases[] = {
    {1, "gpt2", "train.precision=fp32", "256MiB"},
    {1, "llama", "train.precision=bf16 train.cuda_graph=true", "16KiB"},
    {2, "llama", "train.precision=bf16 parallel.zero=1", "16KiB"},
    {2, "gpt2",
     "train.precision=bf16 parallel.zero=3 parallel.zero_gather=micro_batch parallel.zero_reduce=micro_batch", "32KiB"},
    {2, "llama", "optimizer.name=muon parallel.zero=1", "16KiB"},
    {2, "llama", "train.precision=bf16 parallel.context=2 parallel.zero=1", "16KiB"},
    {2, "llama", "train.precision=bf16 optimizer.state=bf16 parallel.tensor=2 train.cuda_graph=true", "16KiB"},
    {1, "experts", "train.precision=bf16", "16KiB"},
    {2, "experts", "train.precision=bf16 parallel.expert=2 parallel.zero=1 model.expert_capacity=0.4", "16KiB"},
};

TEST(offloaded_state_is_trained_and_saved_to_the_same_bits)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cuda_run without, with;
        char keys[400], where[2][32];
        for (int offloaded = 0; offloaded < 2; offloaded++) {
            snprintf(where[offloaded], sizeof *where, "%s-%zu", offloaded ? "offloaded" : "resident", i);
            snprintf(keys, sizeof keys,
                     "train.device=cuda checkpoint.every=1 checkpoint.keep=0 %s memory.window=%s memory.offload=%s",
                     cases[i].keys, cases[i].window, offloaded ? "optimizer" : "none");
            cuda_runs_train_well(offloaded ? &with : &without, "phalanx_standin", cases[i].ranks, cases[i].model,
                                 where[offloaded], keys);
        }
        cuda_runs_same(&with, &without, 0, keys);
        same_checkpoints(where[0], where[1], keys);
    }
}

/* A checkpoint of offloaded state goes on in the arena, and one from the arena in host memory. */
TEST(either_resumes_the_other)
{
    static const char *const kept[] = {"none", "optimizer"};
    cuda_run whole, parts;
    char keys[256];
    cuda_runs_train_well(&whole, "phalanx_standin", 1, "llama", "whole",
                         "train.device=cuda train.precision=bf16 optimizer.schedule=constant");
    for (int i = 0; i < 2; i++) {
        char where[32];
        snprintf(where, sizeof where, "parts-%d", i);
        for (int steps = 2; steps <= CUDA_RUNS_STEPS; steps++) {
            snprintf(keys, sizeof keys,
                     "train.device=cuda train.precision=bf16 optimizer.schedule=constant memory.window=16KiB "
                     "train.steps=%d memory.offload=%s",
                     steps, kept[(i + steps) % 2]);
            launch_result r = cuda_runs_train("phalanx_standin", 1, "", "llama", where, keys);
            if (r.status || (steps == CUDA_RUNS_STEPS && !strstr(r.out, "resumed from")))
                fail_msg("%s: status %d\n%s%s", keys, r.status, r.out, r.err);
            launch_free(&r);
        }
        cuda_runs_read(&parts, where);
        assert_int_equal(parts.steps, CUDA_RUNS_STEPS);
        cuda_runs_same(&parts, &whole, 0, keys);
    }
}

/* What the stand-ins say of a profiled step, and phalanx plan --json of the same configuration. */
static double said(const char *text, const char *of, const char *what)
{
    const char *line = strstr(text, of), *at = line ? strstr(line, what) : NULL;
    if (!at)
        fail_msg("no \"%s\" in %s", what, text);
    while (at > line && at[-1] != ',' && at[-1] != ':')
        at--;
    return atof(at);
}

static launch_result plan(const char *model, const char *options, const char *keys)
{
    AUTO_FREE char *path = launch_beside("../phalanx");
    launch_result r = launch_run(60, "cd %s && exec %s plan %s %s.yaml %s", folder, path, options, model, keys);
    if (r.status)
        fail_msg("%s", r.err);
    return r;
}

static double planned(const char *keys, const char *name)
{
    launch_result r = plan("llama", "--json", keys);
    AUTO_FREE char *quoted = must_format("\"%s\": ", name);
    const char *at = strstr(r.out, quoted);
    if (!at)
        fail_msg("no %s in %s", quoted, r.out);
    double value = atof(at + strlen(quoted));
    launch_free(&r);
    return value;
}

#define KEYS "train.device=cuda train.precision=bf16 memory.window=16KiB "

/* Of a Llama in bf16: 12 bytes for each parameter of a matrix leave the arena, and the windows come. */
TEST(what_is_offloaded_is_counted_where_it_is)
{
    enum { HIDDEN = 32, FFN = 64, LAYERS = 2, VOCABULARY = 64, KV = 16 };
    enum { BLOCK = 2 * HIDDEN * HIDDEN + 2 * KV * HIDDEN + 3 * FFN * HIDDEN };
    enum { MATRICES = LAYERS * BLOCK + 2 * VOCABULARY * HIDDEN };
    double pinned = planned(KEYS "memory.offload=optimizer", "pinned_bytes");
    double before = planned(KEYS "memory.offload=none", "pinned_bytes");
    assert_true(planned(KEYS "memory.offload=optimizer", "offloaded_bytes") == 12.0 * MATRICES);
    assert_true(planned(KEYS "memory.offload=none", "offloaded_bytes") == 0);
    assert_true(pinned - before >= 12.0 * MATRICES);
    assert_true(pinned - before < 12.0 * MATRICES + 4096);
    assert_true(planned(KEYS "memory.offload=optimizer", "arena_bytes") <
                planned(KEYS "memory.offload=none", "arena_bytes") - 12.0 * MATRICES + 16384 + 4096);
    launch_result r = cuda_runs_train("phalanx_standin", 1, "", "llama", "pinned",
                                      KEYS "memory.offload=optimizer profile.start=2 profile.stop=2");
    assert_int_equal(r.status, 0);
    assert_true(said(r.err, "standin: profiled: ", " bytes pinned") == pinned);
    launch_free(&r);
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++)
        n++;
    return n;
}

/* In the stand-ins' time a copy takes as long as a kernel. Fetches and stows are under way together, so that the step
 * becomes longer by one direction's copies and not by both. */
TEST(loads_and_stows_overlap)
{
    double took[2];
    for (int offloaded = 0; offloaded < 2; offloaded++) {
        char keys[256];
        snprintf(keys, sizeof keys, KEYS "checkpoint.resume=never profile.start=2 profile.stop=2 memory.offload=%s",
                 offloaded ? "optimizer" : "none");
        launch_result r = cuda_runs_train("phalanx_standin", 1, "", "llama", "overlap", keys);
        assert_int_equal(r.status, 0);
        took[offloaded] = said(r.err, "standin: profiled: ", " microseconds") / 1e3;
        launch_free(&r);
    }
    launch_result r = plan("llama", "--listing", KEYS "memory.offload=optimizer");
    int loads = count(r.out, ": load_host in "), stores = count(r.out, ": store_host in "),
        updates = count(r.out, ": adamw in ");
    launch_free(&r);
    assert_true(loads > 60 && stores == loads);
    if (!(took[1] - took[0] < loads + updates + 20))
        fail_msg("%.0f ms with, %.0f without; %d loads and as many stores, %d updates", took[1], took[0], loads,
                 updates);
}

TEST(the_cpu_refuses_to_offload)
{
    launch_result r =
        cuda_runs_train("../phalanx", 1, "", "llama", "refused", "train.device=cpu memory.offload=optimizer");
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "memory.offload optimizer is for a GPU"));
    launch_free(&r);
}

int main(void)
{
    return cuda_runs_group(set_up, cuda_runs_teardown);
}
