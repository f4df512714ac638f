/* memory.offload on the stand-ins: what is in host memory and passes through windows is trained, saved and resumed as what
 * is in the arena, to the last bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "memory/log.h"
#include "tests/cuda/cuda_runs.h"
#include "tests/jobs/runs.h"

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
        char *x = must_format("%s/%s/checkpoints/step-%08d", folder, a, step);
        char *y = must_format("%s/%s/checkpoints/step-%08d", folder, b, step);
        assert_true(runs_compare_checkpoints(difference, sizeof difference, x, y) >= 2 * 20);
        if (*difference)
            fail_msg("%s, step %d: %s", what, step, difference);
        free(x);
        free(y);
    }
}

/* Windows of some rows, of whole matrices; with vectors, that stay in the arena. */
static const struct {
    int ranks;
    const char *model, *keys, *window;
} cases[] = {
    {1, "llama", "train.precision=bf16", "16KiB"},
    {1, "gpt2", "train.precision=fp32", "256MiB"},
    {1, "llama", "train.precision=bf16 train.cuda_graph=true", "16KiB"},
    {1, "llama", "train.precision=bf16 optimizer.state=bf16", "16KiB"},
    {1, "llama", "train.precision=bf16 optimizer.name=muon", "16KiB"},
    {2, "llama", "train.precision=bf16 parallel.zero=1", "16KiB"},
    {2, "gpt2", "train.precision=bf16 parallel.zero=3 parallel.zero_gather=micro_batch parallel.zero_reduce=micro_batch",
     "32KiB"},
    {2, "llama", "optimizer.name=muon parallel.zero=1", "16KiB"},
    {2, "llama", "train.precision=bf16 parallel.tensor=2 train.cuda_graph=true", "16KiB"},
    {2, "gpt2", "train.precision=bf16 parallel.pipeline=2", "16KiB"},
};

static void offloaded_state_is_trained_and_saved_to_the_same_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cuda_run without, with;
        char keys[400], where[2][32];
        for (int offloaded = 0; offloaded < 2; offloaded++) {
            snprintf(where[offloaded], sizeof *where, "%s-%zu", offloaded ? "offloaded" : "resident", i);
            snprintf(keys, sizeof keys, "train.device=cuda checkpoint.every=1 checkpoint.keep=0 %s memory.window=%s memory.offload=%s",
                     cases[i].keys, cases[i].window, offloaded ? "optimizer" : "none");
            cuda_runs_train_well(offloaded ? &with : &without, "phalanx_standin", cases[i].ranks, cases[i].model,
                                 where[offloaded], keys);
        }
        cuda_runs_same(&with, &without, 0, keys);
        same_checkpoints(where[0], where[1], keys);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offloaded_state_is_trained_and_saved_to_the_same_bits),
    };
    return cuda_runs_group(tests, sizeof tests / sizeof *tests, set_up, cuda_runs_teardown);
}
