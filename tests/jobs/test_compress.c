/* parallel.compress: gradients that data ranks exchange in compressed form, with error feedback. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/files/checkpoint.h"
#include "memory/log.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"

enum { STEPS = 100, LAST = 20 };

static int write_config(void **state)
{
    if (workfolder_setup(state))
        return -1;
    char *data = workfolder_path(*state, "data"), *path = workfolder_path(*state, "run.yaml");
    runs_write_data(data, 128, 60000, 1);
    char *text = must_format(
        "model: {architecture: llama, layers: 2, hidden_size: 64, heads: 4, ffn_size: 96, vocab_size: 128, "
        "max_sequence: 32}\n"
        "data: {train: %s}\n"
        "train: {steps: %d, sequence: 32, micro_batch: 2, global_batch: 8, precision: fp32, device: cpu, threads: 1}\n"
        "optimizer: {lr: 3e-3, schedule: constant, warmup: 5}\n"
        "checkpoint: {every: 0, keep: 0}\n"
        "run: {tensorboard: false, hang_seconds: 60}\n",
        data, STEPS);
    runs_write_text(path, text);
    free(text);
    free(path);
    free(data);
    return 0;
}

__attribute__((format(printf, 4, 5))) static char *train(const char *top, const char *name, int ranks,
                                                         const char *format, ...)
{
    char keys[512], *folder = workfolder_path(top, name);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(keys, sizeof keys, format, arguments);
    va_end(arguments);
    free(runs_train_well(120, ranks, "%s/run.yaml run.folder=%s %s", top, folder, keys));
    return folder;
}

/* The mean loss of the last steps; frees the name. */
static double end_loss(char *folder)
{
    runs_metrics m = runs_read_metrics(folder);
    double sum = 0;
    free(folder);
    assert_int_equal(m.count, STEPS);
    for (int i = STEPS - LAST; i < STEPS; i++)
        sum += m.step[i].loss;
    return sum / LAST;
}

static double bytes_sent(const char *top, const char *name)
{
    char *folder = workfolder_path(top, name);
    json_t *summary = runs_read_summary(folder), *rank = json_array_get(json_object_get(summary, "ranks"), 0);
    double bytes = json_number_value(json_object_get(json_object_get(rank, "bytes_sent"), "data"));
    json_decref(summary);
    free(folder);
    return bytes;
}

static void losses_are_near_those_of_whole_gradients(void **state)
{
    static const struct {
        const char *method;
        double limit, ratio; /* of the loss; of bytes sent, with ZeRO 0 */
    } rows[] = {{"bf16", 0.005, 0.51},
                {"int8", 0.01, 0.27},
                {"int4", 0.05, 0.16},
                {"topk parallel.density=0.2", 0.05, 0.2},
                {"dct parallel.density=0.2", 0.05, 0.2}};
    static const struct {
        const char *name, *keys;
        int ranks;
    } layouts[] = {{"d2z0", "parallel.zero=0", 2},
                   {"d4z1", "parallel.zero=1", 4},
                   {"t2d2z1", "parallel.tensor=2 parallel.zero=1", 4}};
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        double whole = end_loss(train(*state, layouts[l].name, layouts[l].ranks, "%s", layouts[l].keys));
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            char *name = must_format("%s-%zu", layouts[l].name, i);
            double loss = end_loss(
                train(*state, name, layouts[l].ranks, "%s parallel.compress=%s", layouts[l].keys, rows[i].method));
            double sent = bytes_sent(*state, name) / bytes_sent(*state, layouts[l].name);
            printf("%-7s %-26s loss %.4f, whole %.4f: %+.2f%%; bytes %.3f\n", layouts[l].name, rows[i].method, loss,
                   whole, 100 * (loss / whole - 1), sent);
            assert_true(loss < whole * (1 + rows[i].limit));
            assert_true(l > 0 || sent < rows[i].ratio);
            free(name);
        }
    }
}

/* Without a stop and with one, bit by bit: the feedback is saved. */
static void a_resumed_run_goes_on_with_its_feedback(void **state)
{
    static const char *const keys[] = {"parallel.zero=0 parallel.compress=topk",
                                       "parallel.zero=1 parallel.compress=int4"};
    for (int i = 0; i < 2; i++) {
        char *a = must_format("whole%d", i), *b = must_format("parts%d", i), difference[256];
        char *one = train(*state, a, 2, "%s train.steps=8 optimizer.schedule=constant", keys[i]);
        free(train(*state, b, 2, "%s train.steps=3", keys[i]));
        char *two = train(*state, b, 2, "%s train.steps=8", keys[i]);
        assert_true(runs_compare_section(difference, sizeof difference, one, two, "model") > 10);
        assert_string_equal(difference, "");
        assert_true(runs_compare_section(difference, sizeof difference, one, two, "feedback_1") > 10);
        assert_string_equal(difference, "");
        free(one);
        free(two);
        free(a);
        free(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_are_near_those_of_whole_gradients),
        cmocka_unit_test(a_resumed_run_goes_on_with_its_feedback),
    };
    return cmocka_run_group_tests(tests, write_config, workfolder_teardown);
}
