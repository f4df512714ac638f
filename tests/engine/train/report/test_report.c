/* What a person sees of a run, to the letter, and the files that programs read. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <jansson.h>

#include "engine/train/report/report.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

static void expect_bytes(double bytes, const char *text)
{
    char got[UNITS_TEXT];
    units_bytes(got, bytes);
    assert_string_equal(got, text);
}

static void expect_count(double count, const char *text)
{
    char got[UNITS_TEXT];
    units_count(got, count);
    assert_string_equal(got, text);
}

static void expect_duration(double seconds, const char *text)
{
    char got[UNITS_TEXT];
    units_duration(got, seconds);
    assert_string_equal(got, text);
}

TEST(units_are_human)
{
    expect_bytes(0, "0 B");
    expect_bytes(1023, "1023 B");
    expect_bytes(1024, "1.00 KiB");
    expect_bytes(10737418240.0, "10.0 GiB");
    expect_bytes(1536.0 * 1048576, "1.50 GiB");
    expect_bytes(1048575, "1.00 MiB");
    expect_bytes(200.4 * 1024, "200 KiB");
    expect_count(950, "950");
    expect_count(1234, "1.23k");
    expect_count(124439808, "124M");
    expect_count(8030261248.0, "8.03B");
    expect_count(999999, "1.00M");
    expect_count(15.6e12, "15.6T");
    expect_duration(0.04, "0.0s");
    expect_duration(4.25, "4.2s");
    expect_duration(59.4, "59s");
    expect_duration(59.6, "1:00");
    expect_duration(65, "1:05");
    expect_duration(7384, "2:03:04");
    expect_duration(3 * 86400 + 4 * 3600 + 300, "3d 04:05");
    expect_duration(NAN, "?");
    expect_duration(INFINITY, "?");
    expect_duration(-1, "?");
}

/* What a function prints. */
typedef struct capture {
    char *text;
    size_t bytes;
    FILE *out;
} capture;

static capture *capture_begin(capture *c)
{
    *c = (capture){0};
    c->out = open_memstream(&c->text, &c->bytes);
    assert_non_null(c->out);
    return c;
}

static void capture_expect(capture *c, const char *text)
{
    fclose(c->out);
    assert_string_equal(c->text, text);
    free(c->text);
}

static const report_step one_step = {.step = 12,
                                     .steps = 1000,
                                     .loss = 4.123456789,
                                     .grad_norm = 1.25,
                                     .lr = 3e-4,
                                     .tokens_per_second = 12345,
                                     .tflops = 0.4321,
                                     .mfu = 0.512,
                                     .step_seconds = 0.25,
                                     .left_seconds = 247,
                                     .time = 1795373000.1234,
                                     .tokens = INT64_C(5000000000),
                                     .epoch = 0.75,
                                     .data_seconds = 0.01,
                                     .compute_seconds = 0.2,
                                     .communication_seconds = 0.04,
                                     .checkpoint_seconds = 0.5,
                                     .loss_scale = 65536,
                                     .skipped_steps = 3,
                                     .resident_bytes = 1610612736};

static const report_result two_sets = {.step = 12,
                                       .loss = 2,
                                       .seconds = 3.14,
                                       .time = 1795373000.1234,
                                       .sets = 2,
                                       .name = (const char *const[]){"books", "code"},
                                       .losses = (const double[]){2.25, 1.25}};

TEST(a_step_is_one_line_under_its_columns)
{
    capture c;
    report_columns(capture_begin(&c)->out);
    report_line(c.out, &one_step, false);
    report_step skipped = one_step;
    skipped.loss = skipped.grad_norm = NAN;
    skipped.mfu = NAN;
    skipped.skipped = "a gradient is not finite";
    report_line(c.out, &skipped, false);
    report_evaluation(c.out, &(report_result){.step = 12, .loss = 2, .seconds = 3.14, .sets = 1}, false);
    report_evaluation(c.out, &two_sets, false);
    capture_expect(
        &c, "         step      loss      norm        lr  tokens/s   TFLOP/s    MFU     memory       ETA\n"
            "      12/1000    4.1235      1.25 3.000e-04     12.3k    0.4321  51.2%   1.50 GiB      4:07\n"
            "      12/1000       nan       nan 3.000e-04     12.3k    0.4321      -   1.50 GiB      4:07  skipped: a "
            "gradient is not finite\n"
            "           12    2.0000 on validation, perplexity 7.389, 3.1s\n"
            "           12    2.0000 on validation, perplexity 7.389, 3.1s\n"
            "                 2.2500 on books\n"
            "                 1.2500 on code\n");
}

TEST(the_header_names_model_memory_device_and_work)
{
    report_run run = {
        .model = "llama, 12 layers of 768",
        .device = "cpu, 2 threads",
        .precision = "bf16",
        .layout = "tensor 2 x pipeline 2 x data 1",
        .folder = "runs/first",
        .parameters = 162417408,
        .steps = 1000,
        .tokens_per_step = 32768,
        .tokens = 1000 * INT64_C(32768),
        .flops_per_token = 1e9,
        .peak_flops = 430e9,
        .memory = {.weights = 324834816, .gradients = 649669632, .optimizer = 1949008896, .kept = 1 << 30},
        .arena_bytes = INT64_C(4000000000),
        .lower_bound_bytes = INT64_C(3968253968)};
    capture c;
    report_header(capture_begin(&c)->out, &run);
    capture_expect(&c, "  model       llama, 12 layers of 768\n"
                       "  parameters  162417408 (162M)\n"
                       "  device      cpu, 2 threads, bf16\n"
                       "  layout      tensor 2 x pipeline 2 x data 1\n"
                       "  memory      3.73 GiB planned, 1.008 x the lower bound\n"
                       "              weights 310 MiB, gradients 620 MiB, optimizer 1.82 GiB, kept 1.00 GiB, temporary "
                       "0 B\n"
                       "  training    1000 steps of 32.8k tokens: 32.8M tokens\n"
                       "  work        32.8k GFLOP a step, 0.43 TFLOP/s peak for the MFU\n"
                       "  run folder  runs/first\n");
}

/* A metrics.jsonl of its own. */
static lines *metrics_begin(void **state, char **path)
{
    lines *l = NULL;
    *path = workfolder_path(*state, "metrics.jsonl");
    unlink(*path);
    assert_int_equal(lines_open(&l, *path, NULL), STATUS_OK);
    return l;
}

static char *metrics_end(lines *l, char *path)
{
    int64_t bytes;
    lines_close(l);
    char *text = (char *)workfolder_read(path, &bytes);
    free(path);
    return text;
}

TEST(metrics_are_one_json_object_a_line_with_exact_floats)
{
    char *path;
    lines *l = metrics_begin(state, &path);
    assert_int_equal(report_metrics(l, &one_step), STATUS_OK);
    assert_int_equal(report_metrics_evaluation(l, &(report_result){.step = 12, .loss = 3.5, .sets = 1}), STATUS_OK);
    assert_int_equal(report_metrics_evaluation(l, &two_sets), STATUS_OK);
    char *text = metrics_end(l, path), *second = strchr(text, '\n') + 1;
    assert_string_equal(second,
                        "{\"step\": 12, \"eval_loss\": 3.5, \"time\": 0.000}\n"
                        "{\"step\": 12, \"eval_loss\": 2.0, \"eval_losses\": {\"books\": 2.25, \"code\": 1.25}, "
                        "\"time\": 1795373000.123}\n");
    *second = 0;
    json_t *line = json_loads(text, 0, NULL);
    assert_non_null(line);
    static const char *const keys[] = {"step",
                                       "loss",
                                       "grad_norm",
                                       "lr",
                                       "tokens_per_second",
                                       "tflops",
                                       "mfu",
                                       "step_seconds",
                                       "tokens",
                                       "epoch",
                                       "data_seconds",
                                       "compute_seconds",
                                       "communication_seconds",
                                       "loss_scale",
                                       "time",
                                       "resident_bytes",
                                       "checkpoint_seconds",
                                       "skipped_steps"};
    assert_int_equal(json_object_size(line), sizeof keys / sizeof *keys);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        assert_non_null(json_object_get(line, keys[i]));
    assert_true(json_real_value(json_object_get(line, "loss")) == 4.12345679);
    assert_true(json_real_value(json_object_get(line, "time")) == 1795373000.123);
    assert_true(json_integer_value(json_object_get(line, "tokens")) == INT64_C(5000000000));
    assert_int_equal(json_integer_value(json_object_get(line, "skipped_steps")), 3);
    json_decref(line);
    free(text);
}

/* Nine digits tell every fp32 value from its neighbours. */
TEST(every_float_survives_the_metrics)
{
    uint32_t random = 12345;
    float losses[500];
    char *path;
    lines *l = metrics_begin(state, &path);
    for (int i = 0; i < 500; i++) {
        do {
            random = random * 1664525 + 1013904223;
            memcpy(&losses[i], &random, sizeof losses[i]);
        } while (!isfinite(losses[i]));
        assert_int_equal(report_metrics_evaluation(l, &(report_result){.step = 1, .loss = (double)losses[i]}),
                         STATUS_OK);
    }
    char *text = metrics_end(l, path), *at = text;
    for (int i = 0; i < 500; i++) {
        json_t *line = json_loads(at, JSON_DISABLE_EOF_CHECK, NULL);
        assert_true((float)json_real_value(json_object_get(line, "eval_loss")) == losses[i]);
        json_decref(line);
        at = strchr(at, '\n') + 1;
    }
    assert_int_equal(*at, 0);
    free(text);
}

TEST(metrics_without_a_number_are_null)
{
    report_step s = one_step;
    s.loss = NAN;
    s.grad_norm = INFINITY;
    s.mfu = NAN;
    s.communication_seconds = -1;
    s.skipped = "a gradient is not finite";
    char *path;
    lines *l = metrics_begin(state, &path);
    assert_int_equal(report_metrics(l, &s), STATUS_OK);
    AUTO_FREE char *text = metrics_end(l, path);
    json_t *line = json_loads(text, 0, NULL);
    assert_non_null(line);
    assert_true(json_is_null(json_object_get(line, "loss")));
    assert_true(json_is_null(json_object_get(line, "grad_norm")));
    assert_true(json_is_null(json_object_get(line, "mfu")));
    assert_null(json_object_get(line, "communication_seconds")); /* a device does not say */
    assert_true(json_is_true(json_object_get(line, "skipped")));
    json_decref(line);
}

TEST(a_full_disk_is_reported)
{
    lines *full = NULL;
    assert_int_equal(lines_open(&full, "/dev/full", NULL), STATUS_OK);
    assert_int_equal(report_metrics(full, &one_step), STATUS_FAILED);
    assert_string_equal(status_message(), "cannot write to /dev/full: No space left on device");
    assert_int_equal(lines_lost(full), 1);
    lines_close(full);
    report_summary_values v = {.parameters = 1};
    assert_int_equal(report_summary("/nonexistent/summary.json", &v), STATUS_FAILED);
    assert_string_equal(status_message(), "cannot create /nonexistent/summary.json.tmp: No such file or directory");
}

TEST(the_summary_has_the_promised_fields)
{
    AUTO_FREE char *path = workfolder_path(*state, "summary.json"),
                   *temporary = workfolder_path(*state, "summary.json.tmp");
    report_rank ranks[2] = {{.rank = 0,
                             .host = "node7",
                             .arena_bytes = INT64_C(1) << 40,
                             .arena_used_bytes = 5,
                             .peak_resident_bytes = 6,
                             .copy_bytes = 7},
                            {.rank = 1}};
    for (int i = 0; i < AXIS_COORDINATES; i++)
        ranks[1].at[i] = i + 1;
    for (int a = 0; a < AXIS_COUNT; a++) {
        ranks[1].bytes_sent[a] = 10 + a;
        ranks[1].messages_sent[a] = 20 + a;
    }
    report_summary_values v = {.parameters = 162417408,
                               .steps = 20,
                               .start_to_first_step_seconds = 1.5,
                               .checkpoints_saved = 3,
                               .checkpoints_lost = 1,
                               .checkpoint_seconds = 0.25,
                               .fell_back = "why",
                               .ranks = 2,
                               .rank = ranks};
    assert_int_equal(report_summary(path, &v), STATUS_OK);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    assert_int_equal(json_integer_value(json_object_get(root, "parameters")), 162417408);
    assert_int_equal(json_integer_value(json_object_get(root, "steps")), 20);
    assert_true(json_real_value(json_object_get(root, "start_to_first_step_seconds")) == 1.5);
    assert_int_equal(json_integer_value(json_object_get(root, "checkpoints_saved")), 3);
    assert_int_equal(json_integer_value(json_object_get(root, "checkpoints_lost")), 1);
    assert_true(json_real_value(json_object_get(root, "checkpoint_seconds")) == 0.25);
    assert_string_equal(json_string_value(json_object_get(root, "fell_back")), "why");
    json_int_t rank, tensor, context, data, pipeline, arena, used, peak, copy, memory;
    const char *host;
    json_t *sent, *messages;
    for (size_t i = 0; i < 2; i++) {
        json_t *r = json_array_get(json_object_get(root, "ranks"), i);
        assert_int_equal(json_unpack_ex(r, NULL, JSON_STRICT, "{s:I,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:o}",
                                        "rank", &rank, "host", &host, "copy_bytes", &copy, "memory_copy_bytes", &memory,
                                        "tensor", &tensor, "context", &context, "data", &data, "pipeline", &pipeline,
                                        "arena_bytes", &arena, "arena_used_bytes", &used, "peak_resident_bytes", &peak,
                                        "bytes_sent", &sent, "messages_sent", &messages),
                         0);
        assert_string_equal(host, i ? "" : "node7");
        if (i == 0)
            assert_true(arena == INT64_C(1) << 40 && used == 5 && peak == 6 && copy == 7);
    }
    assert_true(rank == 1 && tensor == 1 && context == 2 && data == 3 && pipeline == 4);
    static const char *const promised[] = {"tensor", "pipeline", "data"};
    for (int i = 0; i < 3; i++)
        assert_non_null(json_object_get(sent, promised[i]));
    for (axis a = 0; a < AXIS_COUNT; a++)
        if (axis_has_messages(a)) {
            assert_int_equal(json_integer_value(json_object_get(sent, axis_name(a))), 10 + (int)a);
            assert_int_equal(json_integer_value(json_object_get(messages, axis_name(a))), 20 + (int)a);
        }
    assert_null(json_object_get(sent, axis_name(AXIS_SAMPLES)));
    json_decref(root);
    assert_int_not_equal(access(temporary, F_OK), 0);
}

TEST(the_bar_shows_share_rate_and_time_left)
{
    char text[256];
    report_progress p = {.title = "tokenizing", .bytes = true, .total = 4194304, .begun = 100};
    report_progress_text(text, sizeof text, &p, 1048576, 102, 200);
    assert_string_equal(text, "tokenizing  25% [#######.......................] 1.00 MiB, 512 KiB/s, 6.0s left");
    report_progress_text(text, sizeof text, &p, 8e9, 102, 20);
    assert_string_equal(text, "tokenizing 100% [###");
    p.total = 0;
    p.bytes = false;
    report_progress_text(text, sizeof text, &p, 3000, 102, 200);
    assert_string_equal(text, "tokenizing 3.00k, 1.50k/s");
    p.total = -1;
    report_progress_text(text, sizeof text, &p, 3000, 102, 200);
    assert_string_equal(text, "tokenizing, 2.0s");
}

TEST(where_no_terminal_is_a_line_comes_now_and_then)
{
    FILE *file = tmpfile();
    char line[256];
    report_progress p = report_progress_begin(file, "copying", 10, false);
    report_progress_update(&p, 5);
    assert_int_equal(ftell(file), 0);
    p.last -= 1e6; /* as if the last line were long ago */
    report_progress_update(&p, 5);
    report_progress_update(&p, 6);
    report_progress_end(&p);
    rewind(file);
    assert_non_null(fgets(line, sizeof line, file));
    assert_non_null(strstr(line, "copying  50% ["));
    assert_int_equal(line[strlen(line) - 1], '\n');
    assert_null(strchr(line, '\r'));
    assert_null(fgets(line, sizeof line, file));
    fclose(file);
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
