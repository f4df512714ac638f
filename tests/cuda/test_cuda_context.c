/* Attention by cuDNN where two ranks divide samples: each rank's runs are four tokens long, on the stand-ins, whose
 * engines are told in test_cuda_attention.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/run/choices.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/cuda/cuda_runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { RANKS = 2, MICRO_BATCHES = 4, LAYERS = 2 };

typedef struct outcome {
    cuda_run run;
    int used[4];      /* executions of each engine, of one rank; the third is the best that may be taken */
    int ours, theirs; /* choices of attention, of both ranks */
} outcome;

static void count_choices(outcome *out, const char *where)
{
    AUTO_FREE char *there = workfolder_path(cuda_runs_folder(), where), *path = workfolder_path(there, CHOICES_FILE);
    choices table = {0};
    assert_int_equal(choices_read(&table, path), STATUS_OK);
    for (int i = 0; i < table.count; i++)
        if (strstr(table.item[i].key, "attention")) {
            out->ours += !strcmp(table.item[i].value, "own");
            out->theirs += !strncmp(table.item[i].value, "cuDNN engine 2", 14);
        }
    choices_free(&table);
}

static void train(outcome *out, const char *environment, const char *where, const char *keys)
{
    AUTO_FREE char *standin = launch_beside("standin");
    AUTO_FREE char *with = must_format("STANDIN_REPORT=1 LD_LIBRARY_PATH=%s %s", standin, environment);
    AUTO_FREE char *all = must_format("train.device=cuda train.precision=bf16 train.sequence=16 model.max_sequence=16 "
                                      "parallel.context=2 %s",
                                      keys);
    launch_result r = cuda_runs_train("phalanx_standin", RANKS, with, "llama", where, all);
    const char *report = strstr(r.err, "cuDNN ");
    if (r.status || r.timed_out || !report)
        fprintf(stderr, "%s, %s: status %d\n%s%s", environment, keys, r.status, r.out, r.err);
    assert_false(r.timed_out);
    assert_int_equal(r.status, 0);
    assert_non_null(report);
    *out = (outcome){.ours = 0};
    assert_int_equal(sscanf(report, "cuDNN %d %d %d %d", &out->used[0], &out->used[1], &out->used[2], &out->used[3]),
                     4);
    count_choices(out, where);
    cuda_runs_read(&out->run, where);
    assert_int_equal(out->run.steps, CUDA_RUNS_STEPS);
    launch_free(&r);
}

/* A graph for each of a rank's runs, of which timing chooses one candidate: forward and backward, of two ranks. All
 * kernels of the stand-in take equally long, so that the second rank's backward pass, whose gradients of keys are added
 * and whose last keys are cleared, is ours. */
TEST(halves_go_by_cudnn)
{
    static const char *const keys[] = {"", "data.document_mask=true", "parallel.zero=1 train.cuda_graph=true"};
    for (int i = 0; i < 3; i++) {
        outcome ours, theirs;
        AUTO_FREE char *a = must_format("ours-%d", i), *b = must_format("cudnn-%d", i);
        train(&ours, "STANDIN_CUDNN_SLOW=1", a, keys[i]);
        train(&theirs, "", b, keys[i]);
        assert_true(ours.ours == 2 * RANKS && ours.theirs == 0);
        assert_true(theirs.theirs == 2 * RANKS - 1 && theirs.ours == 1);
        assert_true(theirs.used[0] == 0 && theirs.used[1] == 0);
        assert_true(theirs.used[2] >= CUDA_RUNS_STEPS * MICRO_BATCHES * LAYERS * 2);
        cuda_runs_same(&theirs.run, &ours.run, 2e-3, keys[i]);
        assert_true(fabs(theirs.run.loss[CUDA_RUNS_STEPS - 1] - ours.run.loss[CUDA_RUNS_STEPS - 1]) > 0);
    }
}

/* Where dealt documents are is known to the batch alone, and a window has no candidate beside an offset. */
TEST(other_divided_samples_stay_ours)
{
    static const char *const keys[] = {"data.document_mask=true parallel.context_balance=documents",
                                       "model.sliding_window=5"};
    for (int i = 0; i < 2; i++) {
        outcome r;
        AUTO_FREE char *where = must_format("kept-%d", i);
        train(&r, "", where, keys[i]);
        assert_int_equal(r.ours + r.theirs, 0);
        assert_int_equal(r.used[2] + r.used[3], 0);
    }
}

int main(void)
{
    return cuda_runs_group(cuda_runs_setup, cuda_runs_teardown);
}
