/* What a run writes about itself beside losses: where its time went, how far it is, each validation set, each host. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/system/mapping.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/tracking/mlflow_standin.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/test.h"

enum { STEPS = 6 };

static int prepare(void **state)
{
    if (workfolder_setup(state))
        return -1;
    static const char *const names[] = {"books", "code"};
    runs_write_small(*state, 6000, STEPS, "", "");
    for (int i = 0; i < 2; i++) {
        AUTO_FREE char *path = workfolder_path(*state, names[i]);
        runs_write_data(path, 96, 1500, 77 + (uint64_t)i);
    }
    return 0;
}

/* The lines of a run's metrics, as one array; the caller's. */
static json_t *lines_of(const char *folder)
{
    json_t *all = json_array();
    char *path = must_format("%s/metrics.jsonl", folder), text[8192];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(text, sizeof text, f)) {
        json_t *line = json_loads(text, 0, NULL);
        assert_non_null(line);
        json_array_append_new(all, line);
    }
    fclose(f);
    free(path);
    return all;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-6 * fabs(b);
}

static double number(const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);
    if (!json_is_number(value))
        fail_msg("no number %s", key);
    return json_number_value(value);
}

static void check_step(const json_t *line, double step, double *last)
{
    double parts =
        number(line, "data_seconds") + number(line, "compute_seconds") + number(line, "communication_seconds");
    assert_true(number(line, "data_seconds") > 0 && number(line, "compute_seconds") > 0);
    assert_true(number(line, "communication_seconds") > 0); /* two ranks wait for each other */
    assert_true(parts <= number(line, "step_seconds") * (1 + 1e-6));
    assert_true(number(line, "step") == step && number(line, "time") >= *last);
    assert_true(number(line, "skipped_steps") == 0 && number(line, "loss_scale") == 1);
    assert_true(number(line, "resident_bytes") > 1e6);
    *last = number(line, "time");
}

static double evaluation_of(const char *top, const char *folder, const char *set)
{
    free(runs_train_well(60, 1, "%s/run.yaml run.folder=%s data.validation=%s/%s evaluate.every=3", top, folder, top,
                         set));
    runs_metrics m = runs_read_metrics(folder);
    assert_int_equal(m.evaluations, 2);
    return m.evaluation[0].loss;
}

TEST(a_line_says_where_the_time_went_and_how_far_the_run_is)
{
    AUTO_FREE char *folder = workfolder_path(*state, "two");
    free(runs_train_well(60, 2,
                         "%s/run.yaml run.folder=%s data.validation=[%s/books,%s/code] evaluate.every=3 "
                         "parallel.data=2",
                         (char *)*state, folder, (char *)*state, (char *)*state));
    json_t *all = lines_of(folder), *line;
    size_t i;
    double last = 1.7e9, step = 0, tokens = 0, epoch = 0;
    json_array_foreach(all, i, line)
    {
        if (!json_object_get(line, "loss"))
            continue;
        check_step(line, ++step, &last);
        assert_true(number(line, "tokens") > tokens && number(line, "epoch") > epoch);
        tokens = number(line, "tokens");
        epoch = number(line, "epoch");
        if (step == 1)
            continue;
        assert_true(
            near(epoch / tokens * number(json_array_get(all, 0), "tokens"), number(json_array_get(all, 0), "epoch")));
    }
    assert_true(step == STEPS);
    json_decref(all);
}

/* Each set's loss is what a run with that set alone finds, and the whole their mean. */
TEST(every_validation_set_has_its_loss)
{
    AUTO_FREE char *folder = workfolder_path(*state, "both"), *books = workfolder_path(*state, "only-books"),
                   *code = workfolder_path(*state, "only-code");
    free(runs_train_well(60, 1,
                         "%s/run.yaml run.folder=%s evaluate.every=3 run.tensorboard=true "
                         "data.validation=[{path:\\ %s/books,weight:\\ 3},{path:\\ %s/code,weight:\\ 1}]",
                         (char *)*state, folder, (char *)*state, (char *)*state));
    json_t *all = lines_of(folder), *line = json_array_get(all, 3), *each = json_object_get(line, "eval_losses");
    assert_int_equal(json_object_size(each), 2);
    double a = evaluation_of(*state, books, "books"), b = evaluation_of(*state, code, "code");
    assert_true(number(each, "books") == a && number(each, "code") == b && a != b);
    assert_true(near(number(line, "eval_loss"), (3 * a + b) / 4));
    json_decref(all);
}

static void expect_tags(const char *folder, const char *const *tags)
{
    launch_result r = launch_run(10, "cat %s/events.out.tfevents.* > %s/all-events", folder, folder);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    AUTO_FREE char *path = must_format("%s/all-events", folder);
    mapping file;
    assert_int_equal(mapping_open(&file, path), STATUS_OK);
    for (; *tags; tags++)
        if (!memmem(file.data, (size_t)file.bytes, *tags, strlen(*tags)))
            fail_msg("%s has no %s", folder, *tags);
    mapping_close(&file);
}

TEST(tensorboard_has_them_and_the_hosts_resources)
{
    static const char *const of_run[] = {"train/tokens",          "train/epoch",      "train/skipped_steps",
                                         "seconds/data",          "seconds/compute",  "seconds/communication",
                                         "memory/resident_bytes", "validation/books", NULL};
    static const char *const of_host[] = {"host/memory_bytes", "host/cpu_busy", "host/network_sent_bytes_per_second",
                                          NULL};
    char host[256] = "", *folder = workfolder_path(*state, "both");
    expect_tags(folder, of_run);
    gethostname(host, sizeof host - 1);
    AUTO_FREE char *of = must_format("%s/hosts/%s", folder, host), *path = must_format("%s/resources.jsonl", of);
    expect_tags(of, of_host);
    json_t *line = runs_last_line(path);
    assert_true(number(line, "step") == STEPS && number(line, "memory_bytes") > 0);
    json_decref(line);
    free(folder);
}

/* ---- run.export, which is gone ---- */

TEST(what_asks_for_mlflows_file_store_is_refused_but_an_older_run_goes_on)
{
    AUTO_FREE char *program = launch_beside("../phalanx"), *folder = workfolder_path(*state, "exported");
    launch_result r = launch_run(60, "%s train %s/run.yaml run.export=[mlflow]", program, (char *)*state);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "run.export is gone"));
    assert_non_null(strstr(r.err, "give run.mlflow the address of an MLflow server"));
    launch_free(&r);
    free(runs_train_well(60, 1, "%s/run.yaml run.folder=%s checkpoint.every=2 train.steps=2", (char *)*state, folder));
    /* as a run of an earlier version has left it */
    r = launch_run(10,
                   "cd %s && sed -i 's/^run:$/run:\\n  export: [mlflow]/; s/steps: 2$/steps: 4/' config.yaml && "
                   "grep -c 'export: .mlflow' config.yaml",
                   folder);
    assert_string_equal(r.out, "1\n");
    launch_free(&r);
    r = launch_run(60, "%s train %s/config.yaml", program, folder);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.err, "config.yaml: run.export is gone"));
    launch_free(&r);
    runs_metrics m = runs_read_metrics(folder);
    assert_int_equal(m.count, 4);
}

/* ---- run.mlflow ---- */

/* How many values the server has of a metric, and the last one. */
static int count_values(double *last, const json_t *run, const char *key)
{
    const json_t *metric;
    size_t i;
    int count = 0;
    int64_t step = 0;
    json_array_foreach(json_object_get(run, "metrics"), i, metric)
    {
        if (strcmp(json_string_value(json_object_get(metric, "key")), key) != 0)
            continue;
        count++;
        if (json_integer_value(json_object_get(metric, "step")) > step) {
            step = json_integer_value(json_object_get(metric, "step"));
            *last = json_number_value(json_object_get(metric, "value"));
        }
    }
    return count;
}

static void check_tracked(mlflow_standin *server, const char *folder, int steps)
{
    runs_metrics m = runs_read_metrics(folder);
    json_t *run = mlflow_standin_run(server);
    double loss = 0, held = 0;
    assert_int_equal(json_integer_value(json_object_get(run, "count")), 1);
    assert_string_equal(json_string_value(json_object_get(run, "status")), "FINISHED");
    assert_string_equal(json_string_value(json_object_get(run, "name")), "some name");
    assert_int_equal(count_values(&loss, run, "train/loss"), steps);
    assert_int_equal(count_values(&held, run, "eval/loss"), steps / 3);
    assert_true(m.count == steps && loss == m.step[steps - 1].loss);
    assert_true(held == m.evaluation[m.evaluations - 1].loss);
    json_decref(run);
}

/* Six steps; then, by the same command with more of them, six more, of which a server that is away hears afterwards. */
TEST(an_mlflow_server_follows_a_run_over_its_starts)
{
    mlflow_standin *server = mlflow_standin_open();
    AUTO_FREE char *folder = workfolder_path(*state, "tracked");
    AUTO_FREE char *common = must_format("%s/run.yaml run.folder=%s run.mlflow=%s run.mlflow_name='some name' "
                                         "run.mlflow_experiment=tests data.validation=%s/books evaluate.every=3",
                                         (char *)*state, folder, mlflow_standin_address(server), (char *)*state);
    free(runs_train_well(120, 2, "%s parallel.data=2", common));
    check_tracked(server, folder, 6);
    mlflow_standin_set(server, MLFLOW_STANDIN_AWAY);
    char *said = runs_train_well(120, 1, "%s train.steps=12", common);
    free(said);
    mlflow_standin_set(server, MLFLOW_STANDIN_WELL);
    json_t *summary = runs_read_summary(folder), *counts = json_object_get(summary, "mlflow");
    assert_true(number(counts, "bytes_behind") > 0 && number(counts, "failures") >= 1);
    json_decref(summary);
    free(runs_train_well(120, 1, "%s train.steps=12", common));
    check_tracked(server, folder, 12);
    mlflow_standin_close(server);
}

TEST(an_address_of_no_server_is_refused)
{
    static const struct {
        const char *address, *said;
    } rows[] = {{"ftp://h", "is no address of an MLflow server"},
                {"h:5000", "is no address of an MLflow server"},
                {"http://", "is no address of an MLflow server"},
                {"http://h/#/experiments", "is no address of an MLflow server"},
                {"http://h?token=S3CR3Tpw", "MLFLOW_TRACKING_TOKEN"},
                {"http://me:S3CR3Tpw@h:5000", "MLFLOW_TRACKING_PASSWORD"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        AUTO_FREE char *all = must_format("%s/run.yaml run.folder=%s/nowhere 'run.mlflow=%s'", (char *)*state,
                                          (char *)*state, rows[i].address);
        launch_result r = runs_train(60, 1, all);
        assert_int_equal(r.status, STATUS_USAGE);
        assert_null(strstr(r.err, "S3CR3Tpw"));
        if (!strstr(r.err, rows[i].said))
            fail_msg("%s: %s", rows[i].address, r.err);
        launch_free(&r);
    }
}

TEST_MAIN(prepare, workfolder_teardown)
