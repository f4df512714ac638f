/* parallel.compress: gradients that data ranks exchange in compressed form, with error feedback. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/checkpoint.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/cover.h"
#include "tests/jobs/launch.h"
#include "tests/jobs/parity.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { STEPS = 100, LAST = 20 };

/* Losses of what is compressed are compared with those of the same layout's whole gradients. */
static const struct {
    const char *method;
    double limit, ratio; /* of the loss; of bytes sent, with ZeRO 0 */
} METHODS[] = {{"bf16", 0.005, 0.51},
               {"int8", 0.01, 0.27},
               {"int4", 0.05, 0.16},
               {"topk parallel.density=0.2", 0.05, 0.2},
               {"dct parallel.density=0.2", 0.05, 0.2}};

static const struct {
    const char *name, *keys;
    int ranks;
} LAYOUTS[] = {{"d2z0", "parallel.zero=0", 2},
               {"d2z1", "parallel.zero=1", 2},
               {"d4z0", "parallel.zero=0", 4},
               {"d4z1", "parallel.zero=1", 4},
               {"t2d2z1", "parallel.tensor=2 parallel.zero=1", 4}};

/* Runs with a stop, and without one. */
static const struct {
    const char *keys;
    int ranks;
} RESUMED[] = {{"parallel.zero=0 parallel.compress=topk", 2},
               {"parallel.zero=1 parallel.compress=int4", 2},
               {"parallel.zero=0 parallel.compress=dct", 4},
               {"parallel.zero=1 parallel.compress=int8", 4}};

/* Layouts that load what two ranks with ZeRO 0 saved. */
static const struct {
    int ranks, zero;
} MOVED[] = {{4, 0}, {4, 1}, {2, 1}, {2, 0}};

enum {
    NMETHODS = sizeof METHODS / sizeof *METHODS,
    NLAYOUTS = sizeof LAYOUTS / sizeof *LAYOUTS,
    NRESUMED = sizeof RESUMED / sizeof *RESUMED,
    NMOVED = sizeof MOVED / sizeof *MOVED,
    MOST_RANKS = 4
};

static bool taken[NLAYOUTS * NMETHODS]; /* in this ring */

static bool takes_layout(int layout)
{
    bool any = layout == 1; /* the run without feedback is compared with its whole gradients */
    for (int i = 0; i < NMETHODS; i++)
        any |= taken[layout * NMETHODS + i];
    return any;
}

static void take_ring(void)
{
    char *facts[NLAYOUTS * NMETHODS];
    for (int i = 0; i < NLAYOUTS * NMETHODS; i++)
        facts[i] = must_format("%s ranks=%d %s", LAYOUTS[i / NMETHODS].keys, LAYOUTS[i / NMETHODS].ranks,
                               METHODS[i % NMETHODS].method);
    cover_take(taken, (const char *const *)facts, NLAYOUTS * NMETHODS, 3);
    for (int i = 0; i < NLAYOUTS * NMETHODS; i++)
        free(facts[i]);
}

static int lines; /* of the playlist at hand */

/* A line of a playlist. */
__attribute__((format(printf, 4, 5))) static void put(FILE *list, const char *top, const char *name, const char *format,
                                                      ...)
{
    char keys[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(keys, sizeof keys, format, arguments);
    va_end(arguments);
    fprintf(list, "%s/run.yaml run.folder=%s/%s %s\n", top, top, name, keys);
    lines++;
}

static void put_losses(FILE *list, const char *top, int ranks)
{
    for (int i = 0; i < NLAYOUTS; i++) {
        if (LAYOUTS[i].ranks != ranks || !takes_layout(i))
            continue;
        put(list, top, LAYOUTS[i].name, "%s", LAYOUTS[i].keys);
        for (int k = 0; k < NMETHODS; k++) {
            AUTO_FREE char *name = must_format("%s-%d", LAYOUTS[i].name, k);
            if (taken[i * NMETHODS + k])
                put(list, top, name, "%s parallel.compress=%s", LAYOUTS[i].keys, METHODS[k].method);
        }
    }
}

static void put_resumed(FILE *list, const char *top, int ranks)
{
    for (int i = 0; i < NRESUMED; i++) {
        if (RESUMED[i].ranks != ranks)
            continue;
        AUTO_FREE char *whole = must_format("whole%d", i), *parts = must_format("parts%d", i);
        put(list, top, whole, "%s train.steps=8", RESUMED[i].keys);
        put(list, top, parts, "%s train.steps=3", RESUMED[i].keys);
        put(list, top, parts, "%s train.steps=8", RESUMED[i].keys);
    }
}

/* A step whose gradients overflow changes no feedback, so that what was loaded is saved again. */
static void put_moved(FILE *list, const char *top, int ranks)
{
    if (ranks == 2)
        put(list, top, "source", "parallel.compress=int4 parallel.zero=0 train.steps=3");
    for (int i = 0; i < NMOVED; i++) {
        AUTO_FREE char *name = must_format("moved%d", i);
        if (MOVED[i].ranks == ranks)
            put(list, top, name,
                "parallel.compress=int4 parallel.zero=%d train.steps=4 train.precision=fp16 "
                "train.loss_scale=4294967296 "
                "checkpoint.resume=%s/source",
                MOVED[i].zero, top);
    }
}

static void write_config(const char *top)
{
    AUTO_FREE char *data = workfolder_path(top, "data"), *path = workfolder_path(top, "run.yaml");
    runs_write_data(data, 128, 60000, 1);
    AUTO_FREE char *text = must_format(
        "model: {architecture: llama, layers: 2, hidden_size: 64, heads: 4, ffn_size: 96, vocab_size: 128, "
        "max_sequence: 32}\n"
        "data: {train: %s}\n"
        "train: {steps: %d, sequence: 32, micro_batch: 2, global_batch: 8, precision: fp32, device: cpu, threads: 1}\n"
        "optimizer: {lr: 3e-3, schedule: constant, warmup: 5}\n"
        "checkpoint: {every: 0, keep: 0}\n"
        "run: {tensorboard: false, hang_seconds: 60}\n",
        data, STEPS);
    runs_write_text(path, text);
}

/* One job for all runs on two ranks, then one for those on four. */
static int train_all(void **state)
{
    if (workfolder_setup(state))
        return -1;
    write_config(*state);
    take_ring();
    for (int ranks = 2; ranks <= MOST_RANKS; ranks += 2) {
        FILE *list = parity_open_list(*state, "playlist");
        lines = 0;
        put_moved(list, *state, ranks);
        put_resumed(list, *state, ranks);
        put_losses(list, *state, ranks);
        fclose(list);
        parity_play(*state, "rank_playlist", ranks, "playlist", lines);
    }
    return 0;
}

/* The mean loss of the last steps. */
static double end_loss(const char *top, const char *name)
{
    AUTO_FREE char *folder = workfolder_path(top, name);
    runs_metrics m = runs_read_metrics(folder);
    double sum = 0;
    assert_int_equal(m.count, STEPS);
    for (int i = STEPS - LAST; i < STEPS; i++)
        sum += m.step[i].loss;
    return sum / LAST;
}

static double bytes_sent(const char *top, const char *name)
{
    AUTO_FREE char *folder = workfolder_path(top, name);
    json_t *summary = runs_read_summary(folder), *rank = json_array_get(json_object_get(summary, "ranks"), 0);
    double bytes = json_number_value(json_object_get(json_object_get(rank, "bytes_sent"), "data"));
    json_decref(summary);
    return bytes;
}

TEST(losses_are_near_those_of_whole_gradients)
{
    int tried = 0;
    for (int i = 0; i < NLAYOUTS * NMETHODS; i++) {
        const char *layout = LAYOUTS[i / NMETHODS].name;
        if (!taken[i])
            continue;
        AUTO_FREE char *name = must_format("%s-%d", layout, i % NMETHODS);
        double whole = end_loss(*state, layout), loss = end_loss(*state, name);
        double sent = bytes_sent(*state, name) / bytes_sent(*state, layout);
        printf("%-7s %-26s loss %.4f, whole %.4f: %+.2f%%; bytes %.3f\n", layout, METHODS[i % NMETHODS].method, loss,
               whole, 100 * (loss / whole - 1), sent);
        assert_true(loss < whole * (1 + METHODS[i % NMETHODS].limit));
        assert_true(i >= NMETHODS || sent < METHODS[i % NMETHODS].ratio);
        tried++;
    }
    assert_true(3 * tried >= NLAYOUTS * NMETHODS);
}

/* The engine as it is, and one that never keeps what a message lacked: the second must be worse by more than what is
 * allowed. */
TEST(a_run_without_feedback_is_noticed)
{
    static const char *const mutants[] = {"none", "dropped-feedback"};
    double whole = end_loss(*state, LAYOUTS[1].name), loss[2];
    FILE *list = parity_open_list(*state, "mutants");
    for (int i = 0; i < 2; i++) {
        fprintf(list, "@%s ", mutants[i]);
        put(list, *state, mutants[i], "%s parallel.compress=topk parallel.density=0.05", LAYOUTS[1].keys);
    }
    fclose(list);
    parity_play(*state, "rank_mutants", LAYOUTS[1].ranks, "mutants", 2);
    for (int i = 0; i < 2; i++) {
        loss[i] = end_loss(*state, mutants[i]);
        printf("%-18s loss %.4f, whole %.4f: %+.2f%%\n", mutants[i], loss[i], whole, 100 * (loss[i] / whole - 1));
    }
    assert_true(loss[0] < whole * 1.03 && loss[1] > whole * 1.03);
}

static json_t *plan_of(const char *top, const char *keys)
{
    AUTO_FREE char *path = launch_beside("../phalanx");
    launch_result r = launch_run(60, "exec %s plan %s/run.yaml --json %s", path, top, keys);
    json_t *plan = r.status ? NULL : json_loads(r.out, 0, NULL);
    if (!plan)
        fail_msg("%s: status %d: %s", keys, r.status, r.err);
    launch_free(&r);
    return plan;
}

/* Fact `name`, or `section`'s, of the first rank. */
static int64_t fact_of(const json_t *plan, const char *section, const char *name)
{
    const json_t *rank = json_array_get(json_object_get(plan, "ranks"), 0);
    return json_integer_value(json_object_get(section ? json_object_get(rank, section) : rank, name));
}

TEST(plan_says_what_is_kept)
{
    for (int zero = 0; zero < 2; zero++) {
        AUTO_FREE char *keys = must_format("parallel.data=4 parallel.zero=%d", zero);
        AUTO_FREE char *more = must_format("%s parallel.compress=int4", keys);
        json_t *plain = plan_of(*state, keys), *compressed = plan_of(*state, more);
        int64_t kept = fact_of(compressed, NULL, "feedback_bytes"),
                weights = 4 * json_integer_value(json_object_get(plain, "parameters"));
        assert_int_equal(fact_of(plain, NULL, "feedback_bytes"), 0);
        assert_int_equal(kept, fact_of(compressed, "memory", "optimizer") - fact_of(plain, "memory", "optimizer"));
        assert_true(kept >= weights &&
                    (double)kept < 1.4 * (double)weights); /* without ZeRO a quarter more, of the sums */
        json_decref(plain);
        json_decref(compressed);
    }
}

/* Without a stop and with one, bit by bit: the feedback is saved. */
TEST(a_resumed_run_goes_on_with_its_feedback)
{
    for (int i = 0; i < NRESUMED; i++) {
        char *one = must_format("%s/whole%d", (const char *)*state, i), difference[256];
        AUTO_FREE char *two = must_format("%s/parts%d", (const char *)*state, i);
        runs_metrics m = runs_read_metrics(two);
        assert_int_equal(m.count, 8); /* the second part went on where the first had ended */
        assert_true(runs_compare_section(difference, sizeof difference, one, two, "model") > 10);
        assert_string_equal(difference, "");
        assert_true(runs_compare_section(difference, sizeof difference, one, two, "feedback_1") > 10);
        assert_string_equal(difference, "");
        free(one);
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
        AUTO_FREE float *x = must_calloc((unsigned long)*n, sizeof *x);
        sum = sum ? sum : must_calloc((unsigned long)*n, sizeof *sum);
        assert_int_equal(checkpoint_read(file, t->section, &all, &(box_memory){x, DTYPE_FP32, {columns, 1}}),
                         STATUS_OK);
        for (int64_t k = 0; k < *n; k++)
            sum[k] += (double)x[k];
    }
    checkpoint_close(file);
    return sum;
}

/* Other data ranks, another ZeRO. */
TEST(feedback_is_summed_and_redistributed)
{
    static const char *const tensors[] = {"model.layers.0.mlp.down_proj.weight",
                                          "model.layers.1.self_attn.q_proj.weight", "model.norm.weight"};
    AUTO_FREE char *one = workfolder_path(*state, "source");
    for (int i = 0; i < NMOVED; i++) {
        AUTO_FREE char *two = must_format("%s/moved%d", (const char *)*state, i);
        runs_metrics m = runs_read_metrics(two);
        assert_true(m.count > 0 && m.step[m.count - 1].skipped);
        for (size_t k = 0; k < sizeof tensors / sizeof *tensors; k++) {
            int64_t n = 0, again = 0;
            AUTO_FREE double *x = sum_of_feedback(&n, one, tensors[k]), *y = sum_of_feedback(&again, two, tensors[k]);
            double size = 0, error = 0;
            assert_true(x && y && n == again);
            for (int64_t e = 0; e < n; e++) {
                size = fmax(size, fabs(x[e]));
                error = fmax(error, fabs(x[e] - y[e]));
            }
            assert_true(size > 0 && error <= 1e-6 * size);
        }
    }
}

TEST_MAIN(train_all, workfolder_teardown)
