/* Step times of published runs, as `phalanx plan` predicts them. 2205.05198, A100-80, fp16, 22B and 175B: the rows that the profile
 * a100-2022 was fitted on, so a bound on what it is off, and on what a change of the simulation does to it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include <jansson.h>

#include "tests/jobs/launch.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"

static const struct {
    const char *name, *model, *train, *parallel, *recompute;
    double seconds;
} rows[] = {
#define MODEL_22B  "layers: 48, hidden_size: 6144, heads: 64, ffn_size: 24576"
#define MODEL_175B "layers: 96, hidden_size: 12288, heads: 96, ffn_size: 49152"
#define ON_8       "tensor: 8, pipeline: 1"
#define ON_64      "tensor: 8, pipeline: 8, virtual_stages: 3, schedule: interleaved"
    {"22B, full recompute", MODEL_22B, "micro_batch: 4, global_batch: 4", ON_8 ", sequence: false", "full", 1.42},
    {"22B, sequence, selective", MODEL_22B, "micro_batch: 4, global_batch: 4", ON_8, "selective", 1.10},
    {"175B, full recompute", MODEL_175B, "micro_batch: 1, global_batch: 64", ON_64 ", sequence: false", "full", 18.13},
    {"175B, sequence, selective", MODEL_175B, "micro_batch: 1, global_batch: 64", ON_64, "selective", 13.75},
};

enum { ROWS = sizeof rows / sizeof *rows };

static double predict(const char *folder, int i)
{
    char *path = workfolder_path(folder, "published.yaml"), *phalanx = launch_beside("../phalanx"), text[1024];
    snprintf(text, sizeof text,
             "model: {architecture: gpt2, %s, vocab_size: 51200, max_sequence: 2048, tied_embeddings: true}\n"
             "data: {train: none}\n"
             "train: {steps: 10, dropout: 0.1, sequence: 2048, precision: fp16, device: cuda, %s}\n"
             "parallel: {%s, zero: 0, data: 1, order: none}\nmemory: {recompute: %s}\n",
             rows[i].model, rows[i].train, rows[i].parallel, rows[i].recompute);
    runs_write_text(path, text);
    launch_result r = launch_run(120, "%s plan %s --device a100-2022 --json", phalanx, path);
    if (r.status)
        fail_msg("%s: status %d: %s", rows[i].name, r.status, r.err);
    json_t *root = json_loads(r.out, 0, NULL);
    double seconds = json_number_value(json_object_get(root, "step_seconds"));
    json_decref(root);
    launch_free(&r);
    free(phalanx);
    free(path);
    return seconds;
}

static void steps_of_2205_05198_are_within_four_per_cent(void **state)
{
    double mean = 0;
    for (int i = 0; i < ROWS; i++) {
        double seconds = predict(*state, i), error = seconds / rows[i].seconds - 1;
        print_message("%-26s published %6.2f s, predicted %6.2f s, %+5.1f%%\n", rows[i].name, rows[i].seconds, seconds,
                      100 * error);
        assert_true(fabs(error) <= 0.04);
        mean += fabs(error) / ROWS;
    }
    print_message("mean error %.2f%%\n", 100 * mean);
    assert_true(mean <= 0.03);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(steps_of_2205_05198_are_within_four_per_cent, workfolder_setup,
                                        workfolder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
