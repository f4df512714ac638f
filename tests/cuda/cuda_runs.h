/* Training on the CUDA device of the stand-ins (tests/cuda/standin), and beside it on the CPU: a small GPT-2, a small
 * Llama and a small Mixtral for three steps, as programs of their own in one folder a test program. Every run on the
 * stand-ins is also a search for races between streams and for wrong calls, which end it with CUDA_RUNS_CAUGHT.
 */
#pragma once

#include "tests/jobs/launch.h"
#include "tests/test.h"

enum { CUDA_RUNS_STEPS = 3, CUDA_RUNS_CAUGHT = 98 };

typedef struct cuda_run {
    double loss[CUDA_RUNS_STEPS], norm[CUDA_RUNS_STEPS], seconds[CUDA_RUNS_STEPS];
    int steps, replays; /* steps of experts that were played again, each time */
} cuda_run;

/* For cmocka's groups: the folder, with a data set (data), gpt2.yaml, llama.yaml and
 * experts.yaml. */
int cuda_runs_setup(void **state);
int cuda_runs_teardown(void **state);
const char *cuda_runs_folder(void);
/* test_run(), but one skipped test where there are no stand-ins, which need the headers of the CUDA toolkit. */
int cuda_runs_group(CMFixtureFunction setup, CMFixtureFunction teardown);

/* phalanx ("../phalanx" or "phalanx_standin") with the model's configuration into the run folder `where`;
 * `environment`: words such as STANDIN_GPUS=1, or "". The result is the caller's. */
launch_result cuda_runs_train(const char *program, int ranks, const char *environment, const char *model,
                              const char *where, const char *keys);
/* The same where nothing may go wrong, and what it left. */
void cuda_runs_train_well(cuda_run *out, const char *program, int ranks, const char *model, const char *where,
                          const char *keys);
void cuda_runs_read(cuda_run *out, const char *where);
/* Fails the test unless losses are within a relative tolerance, and norms within ten times that. 0: bit for bit. */
void cuda_runs_same(const cuda_run *got, const cuda_run *want, double tolerance, const char *what);
