#include "tests/cuda/cuda_runs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"

enum { STEPS = CUDA_RUNS_STEPS, VOCABULARY = 64, TOKENS = 2048 };

static char *folder;

static void write_config(const char *name, const char *model)
{
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    fprintf(f,
            "model: {%s, layers: 2, hidden_size: 32, heads: 4, ffn_size: 64, vocab_size: %d, max_sequence: 12}\n"
            "data: {train: %s/data}\n"
            "train: {steps: %d, sequence: 12, micro_batch: 1, global_batch: 4, precision: fp32, threads: 1}\n"
            "optimizer: {lr: 1e-2, warmup: 1}\n"
            "evaluate: {every: 0}\n"
            "run: {tensorboard: false}\n"
            "checkpoint: {every: 0}\n",
            model, VOCABULARY, folder, STEPS);
    fclose(f);
    AUTO_FREE char *path = workfolder_path(folder, name);
    runs_write_text(path, text);
    free(text);
}

int cuda_runs_setup(void **state)
{
    assert_int_equal(workfolder_setup(state), 0);
    folder = *state;
    AUTO_FREE char *data = workfolder_path(folder, "data");
    runs_write_data(data, VOCABULARY, TOKENS, 1);
    write_config("gpt2.yaml", "architecture: gpt2");
    write_config("llama.yaml", "architecture: llama, kv_heads: 2");
    write_config("experts.yaml", "architecture: mixtral, kv_heads: 2, experts: 4, experts_per_token: 2, "
                                 "expert_ffn_size: 24, router_loss: 0.1, router_bias_rate: 0.01");
    return 0;
}

int cuda_runs_teardown(void **state)
{
    return workfolder_teardown(state);
}

const char *cuda_runs_folder(void)
{
    return folder;
}

int cuda_runs_group(CMFixtureFunction setup, CMFixtureFunction teardown)
{
    AUTO_FREE char *program = launch_beside("phalanx_standin");
    bool built = access(program, X_OK) == 0;
    return test_run_unless(built ? NULL : "no nvcc: the stand-ins for CUDA are not built", setup, teardown);
}

void cuda_runs_read(cuda_run *out, const char *where)
{
    char path[512], line[1024];
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", folder, where);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    *out = (cuda_run){0};
    while (fgets(line, sizeof line, f)) {
        const char *loss = strstr(line, "\"loss\":"), *norm = strstr(line, "\"grad_norm\":");
        if (!loss || out->steps == STEPS)
            continue;
        const char *seconds = strstr(line, "\"step_seconds\":");
        const char *replays = strstr(line, "\"replays\":");
        out->replays += replays ? atoi(replays + strlen("\"replays\":")) : 0;
        out->loss[out->steps] = atof(loss + 7);
        out->seconds[out->steps] = seconds ? atof(seconds + strlen("\"step_seconds\":")) : NAN;
        out->norm[out->steps++] = norm ? atof(norm + 12) : NAN;
    }
    fclose(f);
}

launch_result cuda_runs_train(const char *program, int ranks, const char *environment, const char *model,
                              const char *where, const char *keys)
{
    AUTO_FREE char *path = launch_beside(program), *mpirun = ranks > 1 ? launch_mpirun(ranks) : NULL;
    char *waits = launch_beside("patient_waits.so"); /* the stand-in of NCCL waits in MPI's own calls, which poll */
    launch_result r = launch_run(120, "cd %s && exec env LD_PRELOAD=%s %s %s %s train %s.yaml run.folder=%s/%s %s",
                                 folder, waits, environment, mpirun ? mpirun : "", path, model, folder, where, keys);
    free(waits);
    return r;
}

void cuda_runs_train_well(cuda_run *out, const char *program, int ranks, const char *model, const char *where,
                          const char *keys)
{
    launch_result r = cuda_runs_train(program, ranks, "", model, where, keys);
    if (r.status || r.timed_out)
        fprintf(stderr, "%s: %s: status %d\n%s%s", model, keys, r.status, r.out, r.err);
    assert_false(r.timed_out);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    cuda_runs_read(out, where);
    assert_int_equal(out->steps, STEPS);
}

void cuda_runs_same(const cuda_run *got, const cuda_run *want, double tolerance, const char *what)
{
    for (int i = 0; i < STEPS; i++) {
        bool good = fabs(got->loss[i] - want->loss[i]) <= tolerance * fabs(want->loss[i]) &&
                    fabs(got->norm[i] - want->norm[i]) <= 10 * tolerance * fabs(want->norm[i]);
        if (!good)
            fprintf(stderr, "%s, step %d: loss %.9g, should be %.9g; norm %.9g, should be %.9g\n", what, i + 1,
                    got->loss[i], want->loss[i], got->norm[i], want->norm[i]);
        assert_true(good);
    }
}
