/* parallel.compress: gradients that data ranks exchange in compressed form, with error feedback. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/checkpoint/checkpoint.h"
#include "memory/log.h"
#include "tests/jobs/launch.h"
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
                   {"d2z1", "parallel.zero=1", 2},
                   {"d4z0", "parallel.zero=0", 4},
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

/* The engine as it is, and one that never keeps what a message lacked: the second must be worse by more than what is allowed. */
static void a_run_without_feedback_is_noticed(void **state)
{
    static const char *const mutants[] = {"none", "dropped-feedback"};
    double whole = end_loss(train(*state, "feedback-whole", 2, "parallel.zero=1")), loss[2];
    char *list = workfolder_path(*state, "mutants"), *text = must_strdup("");
    for (int i = 0; i < 2; i++) {
        char *more = must_format("%s@%s %s/run.yaml run.folder=%s/%s parallel.zero=1 parallel.compress=topk "
                                 "parallel.density=0.05\n",
                                 text, mutants[i], (char *)*state, (char *)*state, mutants[i]);
        free(text);
        text = more;
    }
    runs_write_text(list, text);
    char *mpirun = launch_mpirun(2), *program = launch_beside("rank_mutants");
    launch_result r = launch_run(240, "exec %s %s %s", mpirun, program, list);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    for (int i = 0; i < 2; i++) {
        loss[i] = end_loss(workfolder_path(*state, mutants[i]));
        printf("%-18s loss %.4f, whole %.4f: %+.2f%%\n", mutants[i], loss[i], whole, 100 * (loss[i] / whole - 1));
    }
    assert_true(loss[0] < whole * 1.03 && loss[1] > whole * 1.03);
    free(program);
    free(mpirun);
    free(text);
    free(list);
}

static json_t *plan_of(const char *top, const char *keys)
{
    char *path = launch_beside("../phalanx");
    launch_result r = launch_run(60, "exec %s plan %s/run.yaml --json %s", path, top, keys);
    json_t *plan = r.status ? NULL : json_loads(r.out, 0, NULL);
    if (!plan)
        fail_msg("%s: status %d: %s", keys, r.status, r.err);
    launch_free(&r);
    free(path);
    return plan;
}

/* Fact `name`, or `section`'s, of the first rank. */
static int64_t fact_of(const json_t *plan, const char *section, const char *name)
{
    const json_t *rank = json_array_get(json_object_get(plan, "ranks"), 0);
    return json_integer_value(json_object_get(section ? json_object_get(rank, section) : rank, name));
}

static void plan_says_what_is_kept(void **state)
{
    for (int zero = 0; zero < 2; zero++) {
        char *keys = must_format("parallel.data=4 parallel.zero=%d", zero);
        char *more = must_format("%s parallel.compress=int4", keys);
        json_t *plain = plan_of(*state, keys), *compressed = plan_of(*state, more);
        int64_t kept = fact_of(compressed, NULL, "feedback_bytes"),
                weights = 4 * json_integer_value(json_object_get(plain, "parameters"));
        assert_int_equal(fact_of(plain, NULL, "feedback_bytes"), 0);
        assert_int_equal(kept, fact_of(compressed, "memory", "optimizer") - fact_of(plain, "memory", "optimizer"));
        assert_true(kept >= weights &&
                    (double)kept < 1.4 * (double)weights); /* without ZeRO a quarter more, of the sums */
        json_decref(plain);
        json_decref(compressed);
        free(more);
        free(keys);
    }
}

/* Without a stop and with one, bit by bit: the feedback is saved. */
static void a_resumed_run_goes_on_with_its_feedback(void **state)
{
    static const struct {
        const char *keys;
        int ranks;
    } runs[] = {{"parallel.zero=0 parallel.compress=topk", 2},
                {"parallel.zero=1 parallel.compress=int4", 2},
                {"parallel.zero=0 parallel.compress=dct", 4},
                {"parallel.zero=1 parallel.compress=int8", 4}};
    for (int i = 0; i < 4; i++) {
        char *a = must_format("whole%d", i), *b = must_format("parts%d", i), difference[256];
        char *one = train(*state, a, runs[i].ranks, "%s train.steps=8 optimizer.schedule=constant", runs[i].keys);
        free(train(*state, b, runs[i].ranks, "%s train.steps=3", runs[i].keys));
        char *two = train(*state, b, runs[i].ranks, "%s train.steps=8", runs[i].keys);
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

/* All feedback of a run's latest checkpoint: of one tensor, summed over ranks, with that of the sums. */
static double *sum_of_feedback(int64_t *n, const char *folder, const char *name)
{
    checkpoint *file = NULL;
    double *sum = NULL;
    assert_int_equal(checkpoint_open(&file, folder), STATUS_OK);
    for (int i = 0; i < checkpoint_tensors(file); i++) {
        const manifest_tensor *t = checkpoint_at(file, i);
        if (strncmp(t->section, "feedback_", 9) != 0 || strcmp(t->name, name) != 0)
            continue;
        int64_t columns = t->dims > 1 ? t->global[1] : 1;
        const rectangle all = box_whole(name, t->dims, t->global);
        *n = t->global[0] * columns;
        float *x = must_calloc((unsigned long)*n, sizeof *x);
        sum = sum ? sum : must_calloc((unsigned long)*n, sizeof *sum);
        assert_int_equal(checkpoint_read(file, t->section, &all, &(box_memory){x, DTYPE_FP32, {columns, 1}}),
                         STATUS_OK);
        for (int64_t k = 0; k < *n; k++)
            sum[k] += (double)x[k];
        free(x);
    }
    checkpoint_close(file);
    return sum;
}

/* Other data ranks, another ZeRO: a step whose gradients overflow changes no feedback, so that what was loaded is saved again. */
static void feedback_is_summed_and_redistributed(void **state)
{
    static const char *const tensors[] = {"model.layers.0.mlp.down_proj.weight",
                                          "model.layers.1.self_attn.q_proj.weight", "model.norm.weight"};
    static const struct {
        int ranks, zero;
    } after[] = {{4, 0}, {4, 1}, {2, 1}, {2, 0}};
    for (size_t i = 0; i < sizeof after / sizeof *after; i++) {
        char *name = must_format("moved%zu", i), *copy = must_format("again%zu", i);
        char *one = train(*state, name, 2, "parallel.compress=int4 parallel.zero=0 train.steps=3");
        char *two = train(*state, copy, after[i].ranks,
                          "parallel.compress=int4 parallel.zero=%d train.steps=4 train.precision=fp16 "
                          "train.loss_scale=4294967296 checkpoint.resume=%s",
                          after[i].zero, one);
        runs_metrics m = runs_read_metrics(two);
        assert_true(m.count > 0 && m.step[m.count - 1].skipped);
        for (size_t k = 0; k < sizeof tensors / sizeof *tensors; k++) {
            int64_t n = 0, again = 0;
            double *x = sum_of_feedback(&n, one, tensors[k]), *y = sum_of_feedback(&again, two, tensors[k]);
            double size = 0, error = 0;
            assert_true(x && y && n == again);
            for (int64_t e = 0; e < n; e++) {
                size = fmax(size, fabs(x[e]));
                error = fmax(error, fabs(x[e] - y[e]));
            }
            assert_true(size > 0 && error <= 1e-6 * size);
            free(x);
            free(y);
        }
        free(one);
        free(two);
        free(name);
        free(copy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(feedback_is_summed_and_redistributed),
        cmocka_unit_test(plan_says_what_is_kept),
        cmocka_unit_test(a_run_without_feedback_is_noticed),
        cmocka_unit_test(losses_are_near_those_of_whole_gradients),
        cmocka_unit_test(a_resumed_run_goes_on_with_its_feedback),
    };
    return cmocka_run_group_tests(tests, write_config, workfolder_teardown);
}
