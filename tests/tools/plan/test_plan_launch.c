/* The last lines of a plan: the course of the whole run, the line that starts it, and that a checkpoint is as large as
 * they say. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "memory/scope.h"
#include "tests/jobs/launch.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

static json_t *plan_of(const char *path, const char *options)
{
    AUTO_FREE char *phalanx = launch_beside("../phalanx");
    launch_result r = launch_run(60, "%s plan %s --json %s", phalanx, path, options);
    if (r.status)
        fail_msg("status %d: %s", r.status, r.err);
    json_t *root = json_loads(r.out, 0, NULL);
    assert_non_null(root);
    launch_free(&r);
    return root;
}

static double number(json_t *root, const char *section, const char *key)
{
    json_t *at = section ? json_object_get(root, section) : root;
    return json_number_value(json_object_get(at, key));
}

/* Steps of a ramp are priced by their samples, hours by the ranks. */
TEST_WITH(days_and_hours_are_those_of_all_steps, workfolder_setup, workfolder_teardown)
{
    AUTO_FREE char *path = workfolder_path(*state, "a.yaml");
    runs_write_text(path, "model: {preset: llama-1b}\ndata: {train: none}\n"
                          "train: {steps: 1000, sequence: 2048, global_batch: 64, precision: bf16}\n");
    json_t *even = plan_of(path, "--ranks 8"),
           *ramp = plan_of(path, "--ranks 8 'train.batch_ramp=[[0, 32], [500, 64]]'");
    double seconds = 1000 * number(even, NULL, "step_seconds");
    assert_true(fabs(number(even, "run", "seconds") - seconds) <= 1e-9 * seconds);
    assert_true(number(even, "run", "tokens") == 1000.0 * 2048 * 64);
    assert_true(number(ramp, "run", "tokens") == 500.0 * 2048 * 96);
    assert_true(fabs(number(even, "run", "gpu_hours") - 8 * seconds / 3600) <= 1e-9 * seconds);
    assert_true(number(ramp, "run", "seconds") < 0.76 * seconds);
    json_decref(even);
    json_decref(ramp);
}

TEST_WITH(the_lines_that_start_it_are_a_shells, workfolder_setup, workfolder_teardown)
{
    char *path = workfolder_path(*state, "a b.yaml"), quoted[4096], options[64] = "";
    runs_write_text(path, "model: {preset: llama-1b}\ndata: {train: none}\ntrain: {global_batch: 128}\n");
    snprintf(quoted, sizeof quoted, "'%s'", path);
    static const struct {
        int ranks;
        const char *mpirun, *slurm;
    } cases[] = {{1, "mpirun -np 1 phalanx train '", "sbatch --nodes=1 --ntasks-per-node=1 --gpus-per-node=1 "},
                 {8, "mpirun -np 8 phalanx train '", "sbatch --nodes=1 --ntasks-per-node=8 --gpus-per-node=8 "},
                 {32, "mpirun -np 32 --hostfile hosts --map-by ppr:8:node phalanx train '",
                  "sbatch --nodes=4 --ntasks-per-node=8 --gpus-per-node=8 tools/slurm/train.sbatch '"}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(options, sizeof options, "--ranks %d 'run.folder=it'\\''s'", cases[i].ranks);
        json_t *planned = plan_of(quoted, options), *lines = json_object_get(planned, "launch");
        const char *mpirun = json_string_value(json_object_get(lines, "mpirun"));
        assert_memory_equal(mpirun, cases[i].mpirun, strlen(cases[i].mpirun));
        assert_non_null(strstr(mpirun, "a b.yaml' 'run.folder=it'\\''s'"));
        assert_non_null(strstr(json_string_value(json_object_get(lines, "slurm")), cases[i].slurm));
        json_decref(planned);
    }
    free(path);
}

/* Bytes of the tensors' files of a run's only checkpoint. */
static double saved_bytes(const char *folder)
{
    launch_result r = launch_run(20, "cat %s/checkpoints/step-*/*.safetensors | wc -c", folder);
    assert_int_equal(r.status, 0);
    double bytes = atof(r.out);
    launch_free(&r);
    return bytes;
}

/* Weights, masters and states of several optimizers and types; a shared head, experts with a bias. */
TEST_WITH(a_checkpoint_is_as_large_as_planned, workfolder_setup, workfolder_teardown)
{
    static const char *const cases[] = {
        "train.precision=fp32",
        "train.precision=bf16",
        "train.precision=bf16 optimizer.name=lion optimizer.state=bf16",
        "train.precision=bf16 optimizer.name=muon optimizer.master=bf16 model.tied_embeddings=true",
        ("train.precision=bf16 model.architecture=glm4_moe model.experts=4 model.experts_per_token=2 "
         "model.expert_ffn_size=32 model.router_bias_rate=0.01"),
    };
    AUTO_FREE char *phalanx = launch_beside("../phalanx");
    runs_write_small(*state, 4000, 1, "", "");
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        launch_result r = launch_run(60,
                                     "cd %s && OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 %s train "
                                     "run.yaml run.folder=run%u %s",
                                     (const char *)*state, phalanx, i, cases[i]);
        if (r.status)
            fail_msg("%s: %s", cases[i], r.err);
        launch_free(&r);
        char folder[4096], path[4200];
        snprintf(folder, sizeof folder, "%s/run%u", (const char *)*state, i);
        snprintf(path, sizeof path, "%s/config.yaml", folder);
        json_t *planned = plan_of(path, "");
        double expected = number(planned, NULL, "checkpoint_bytes"), seen = saved_bytes(folder);
        if (!(seen >= expected && seen <= expected + 65536)) /* headers */
            fail_msg("%s: planned %.0f bytes, saved %.0f", cases[i], expected, seen);
        json_decref(planned);
    }
}

TEST_MAIN(NULL, NULL)
