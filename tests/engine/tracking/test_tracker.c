/* What a run tells an MLflow server: every step once, over restarts and while the server is away. Nothing that the
 * server says or leaves unsaid holds the run up, is believed, or shows a secret. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/tracking/tracker.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/tracking/mlflow_standin.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

#define START    "00112233445566778899aabbccddeeff"
#define PASSWORD "S3CR3Tpw"
static const double LIMIT = 60;
static const mlflow_login nobody;

typedef struct place {
    char *folder, *path;
    mlflow_standin *server;
} place;

static int setup(void **state)
{
    place *p = must_calloc(1, sizeof *p);
    void *folder;
    if (workfolder_setup(&folder))
        return -1;
    p->folder = folder;
    p->path = must_format("%s/metrics.jsonl", p->folder);
    p->server = mlflow_standin_open();
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    AUTO_FREE place *p = *state;
    void *folder = p->folder;
    mlflow_standin_close(p->server);
    free(p->path);
    return workfolder_teardown(&folder);
}

static tracker *begin_as(place *p, int64_t step, const mlflow_login *login, const char *rate)
{
    static const tracker_name names[] = {{"loss", "train/loss"}, {"mfu", NULL}, {"lr", "train/lr"}};
    static const tracker_name tags[] = {{"phalanx.host", "here"}};
    const tracker_options o = {.folder = p->folder,
                               .id = START,
                               .address = mlflow_standin_address(p->server),
                               .experiment = "some experiment",
                               .name = "a run",
                               .login = login,
                               .names = names,
                               .name_count = 3,
                               .tags = tags,
                               .tag_count = 1,
                               .began = 1};
    tracker *t;
    assert_int_equal(tracker_open(&t, &o), STATUS_OK);
    assert_int_equal(tracker_parameter(t, "optimizer.lr", rate), STATUS_OK);
    assert_int_equal(tracker_hold(t, step), STATUS_OK);
    return t;
}

static tracker *begin(place *p)
{
    tracker *t = begin_as(p, 0, &nobody, "0.1");
    assert_int_equal(tracker_go_on(t), STATUS_OK);
    return t;
}

static void write_steps(const place *p, int first, int last, double loss)
{
    FILE *f = fopen(p->path, "a");
    assert_non_null(f);
    for (int i = first; i <= last; i++)
        fprintf(f, "{\"step\": %d, \"loss\": %g, \"mfu\": null, \"lr\": 0.5, \"time\": %d.25}\n", i, loss + i,
                1000 + i);
    fclose(f);
}

/* Keeps the first lines of metrics.jsonl, as a run does that goes back. */
static void keep_steps(const place *p, int count)
{
    char *all = (char *)workfolder_read(p->path, &(int64_t){0}), *end = all;
    for (int i = 0; i < count; i++)
        end = strchr(end, '\n') + 1;
    assert_int_equal(atomic_replace(p->path, all, end - all), STATUS_OK);
    free(all);
}

/* How many values of a metric the server has at a step. */
static int count_of(place *p, const char *key, int step)
{
    json_t *run = mlflow_standin_run(p->server), *metric;
    size_t i;
    int count = 0;
    json_array_foreach(json_object_get(run, "metrics"), i, metric) count +=
        !strcmp(json_string_value(json_object_get(metric, "key")), key) &&
        json_integer_value(json_object_get(metric, "step")) == step;
    json_decref(run);
    return count;
}

static void wait_for(place *p, const char *key, int step)
{
    for (double end = clock_seconds() + LIMIT; count_of(p, key, step) == 0; clock_nap(0.01))
        if (clock_seconds() > end)
            fail_msg("%s of step %d does not come", key, step);
}

/* The server has the metric at each step up to that one once, and at none after. */
static void assert_once(const json_t *run, const char *key, int steps)
{
    AUTO_FREE int *times = must_calloc((unsigned long)steps + 2, sizeof *times);
    json_t *metric;
    size_t i;
    json_array_foreach(json_object_get(run, "metrics"), i, metric)
    {
        json_int_t step = json_integer_value(json_object_get(metric, "step"));
        if (!strcmp(json_string_value(json_object_get(metric, "key")), key))
            times[step < 0 || step > steps ? steps + 1 : step]++;
    }
    for (int step = 1; step <= steps; step++)
        assert_int_equal(times[step], 1);
    assert_int_equal(times[steps + 1], 0);
}

static void assert_each_once(place *p, int steps)
{
    json_t *run = mlflow_standin_run(p->server); /* one copy: to copy it for each step would take a minute */
    assert_once(run, "train/loss", steps);
    assert_once(run, "train/lr", steps);
    json_decref(run);
}

static void assert_ended(place *p, const char *how)
{
    json_t *run = mlflow_standin_run(p->server);
    assert_string_equal(json_string_value(json_object_get(run, "status")), how);
    assert_int_equal(json_integer_value(json_object_get(run, "count")), 1);
    json_decref(run);
}

static void finish(tracker *t)
{
    tracker_end(t, MLFLOW_REST_FINISHED, 2, LIMIT);
    assert_int_equal(tracker_counted(t).behind, 0);
    tracker_close(t);
}

TEST_WITH(steps_come_while_the_run_trains, setup, teardown)
{
    place *p = *state;
    write_steps(p, 1, 3, 0);
    tracker *t = begin(p);
    wait_for(p, "train/loss", 3);
    write_steps(p, 4, 2000, 0);
    FILE *f = fopen(p->path, "a");
    fprintf(f, "{\"step\": 2000, \"eval_loss\": 2.5, \"time\": 9, \"eval_losses\": {\"bo oks\": 1.5, \"code\": 3.5}}\n"
               "{\"step\": 2000, \"spike\": {\"loss\": 9}}\nno JSON\n{\"step\": 2000, \"islands_disagreement\": 0.5, "
               "\"time\": 9}\n{\"step\": 2001, \"loss\": 1");
    fclose(f);
    wait_for(p, "islands/disagreement", 2000);
    assert_each_once(p, 2000);
    assert_int_equal(count_of(p, "eval/loss", 2000) + count_of(p, "eval/bo_oks", 2000) + count_of(p, "eval/code", 2000),
                     3);
    json_t *run = mlflow_standin_run(p->server);
    const json_t *tags = json_object_get(run, "tags");
    assert_string_equal(json_string_value(json_object_get(run, "status")), "RUNNING");
    assert_string_equal(json_string_value(json_object_get(run, "name")), "a run");
    assert_string_equal(json_string_value(json_object_get(json_object_get(run, "params"), "optimizer.lr")), "0.1");
    assert_string_equal(json_string_value(json_object_get(tags, "phalanx.host")), "here");
    assert_string_equal(json_string_value(json_object_get(tags, "phalanx.id")), START);
    json_decref(run);
    tracker_end(t, MLFLOW_REST_KILLED, 2, LIMIT);
    assert_true(tracker_counted(t).behind > 0); /* the line that is not whole */
    tracker_close(t);
    assert_ended(p, "KILLED");
}

TEST_WITH(a_server_that_comes_back_gets_what_it_has_missed, setup, teardown)
{
    place *p = *state;
    static const mlflow_standin_mode modes[] = {MLFLOW_STANDIN_AWAY, MLFLOW_STANDIN_BUSY};
    int done = 5;
    write_steps(p, 1, done, 0);
    tracker *t = begin(p);
    for (int k = 0; k < 2; k++) {
        wait_for(p, "train/loss", done);
        mlflow_standin_set(p->server, modes[k]);
        write_steps(p, done + 1, done + 40, 0);
        done += 40;
        int before = mlflow_standin_requests(p->server);
        for (double end = clock_seconds() + LIMIT; mlflow_standin_requests(p->server) == before; clock_nap(0.01))
            assert_true(clock_seconds() < end);
        assert_int_equal(count_of(p, "train/loss", done), 0);
        mlflow_standin_set(p->server, MLFLOW_STANDIN_WELL);
    }
    wait_for(p, "train/loss", done);
    assert_true(tracker_counted(t).failures >= 2);
    finish(t);
    assert_each_once(p, done);
    assert_ended(p, "FINISHED");
}

/* A start that is killed, and one that goes on two steps earlier; then one with another rate. */
TEST_WITH(steps_that_are_done_again_are_sent_again_if_they_differ, setup, teardown)
{
    place *p = *state;
    write_steps(p, 1, 6, 0);
    tracker *t = begin(p);
    wait_for(p, "train/lr", 6);
    tracker_close(t);
    t = begin_as(p, 4, &nobody, "0.1");
    keep_steps(p, 4);
    assert_int_equal(tracker_go_on(t), STATUS_OK);
    write_steps(p, 5, 8, 0);
    wait_for(p, "train/lr", 8);
    assert_each_once(p, 8);
    assert_int_equal(tracker_hold(t, 6), STATUS_OK); /* within a start, as after a spike */
    keep_steps(p, 6);
    assert_int_equal(tracker_go_on(t), STATUS_OK);
    write_steps(p, 7, 7, 100);
    write_steps(p, 8, 8, 0);
    write_steps(p, 9, 9, 0);
    wait_for(p, "train/lr", 9);
    assert_int_equal(count_of(p, "train/loss", 7), 2);
    assert_int_equal(count_of(p, "train/loss", 8), 1);
    tracker_close(t);
    t = begin_as(p, 9, &nobody, "0.2");
    assert_int_equal(tracker_go_on(t), STATUS_OK);
    finish(t);
    assert_ended(p, "FINISHED");
    json_t *run = mlflow_standin_run(p->server);
    assert_string_equal(json_string_value(json_object_get(json_object_get(run, "params"), "optimizer.lr")), "0.1");
    assert_string_equal(json_string_value(json_object_get(json_object_get(run, "tags"), "optimizer.lr")), "0.2");
    json_decref(run);
    assert_int_equal(count_of(p, "train/loss", 9), 1);
}

TEST_WITH(what_a_server_refuses_is_counted_and_passed_over, setup, teardown)
{
    place *p = *state;
    mlflow_standin_set(p->server, MLFLOW_STANDIN_FULL);
    write_steps(p, 1, 30, 0);
    tracker *t = begin(p);
    for (double end = clock_seconds() + LIMIT; tracker_counted(t).refused < 30; clock_nap(0.01))
        assert_true(clock_seconds() < end);
    mlflow_standin_set(p->server, MLFLOW_STANDIN_WELL);
    write_steps(p, 31, 32, 0);
    finish(t);
    assert_int_equal(count_of(p, "train/loss", 30), 0);
    assert_int_equal(count_of(p, "train/loss", 32), 1);
}

TEST_WITH(hostile_answers_do_nothing, setup, teardown)
{
    place *p = *state;
    write_steps(p, 1, 30, 0);
    for (int mode = MLFLOW_STANDIN_BUSY; mode < MLFLOW_STANDIN_MODES; mode++) {
        if (mode == MLFLOW_STANDIN_FULL)
            continue;
        mlflow_standin_set(p->server, (mlflow_standin_mode)mode);
        tracker *t = begin(p);
        for (double end = clock_seconds() + LIMIT; tracker_counted(t).failures == 0; clock_nap(0.01))
            assert_true(clock_seconds() < end);
        assert_int_equal(tracker_counted(t).sent, 0);
        tracker_close(t);
    }
    json_t *run = mlflow_standin_run(p->server);
    assert_int_equal(json_integer_value(json_object_get(run, "count")), 0);
    json_decref(run);
    mlflow_standin_set(p->server, MLFLOW_STANDIN_WELL);
    finish(begin(p));
    assert_each_once(p, 30);
}

/* Neither a server that says nothing nor one that is away holds a run up, not even at its end. */
TEST_WITH(nothing_waits_for_a_server, setup, teardown)
{
    place *p = *state;
    mlflow_standin_set(p->server, MLFLOW_STANDIN_SILENT);
    write_steps(p, 1, 10, 0);
    tracker *t = begin(p);
    for (double end = clock_seconds() + LIMIT; mlflow_standin_requests(p->server) == 0; clock_nap(0.01))
        assert_true(clock_seconds() < end);
    double began = clock_seconds();
    assert_int_equal(tracker_hold(t, 10), STATUS_OK);
    assert_int_equal(tracker_go_on(t), STATUS_OK);
    assert_true(tracker_counted(t).sent == 0);
    assert_true(clock_seconds() - began < 5);
    tracker_end(t, MLFLOW_REST_FINISHED, 2, 0.5);
    tracker_close(t); /* gives up what is under way, within a second or two of an idle machine; requests last 60 */
    assert_true(clock_seconds() - began < 30);
}

static mlflow_login log_in_as(const char *user, const char *password, const char *token)
{
    mlflow_login l;
    setenv(MLFLOW_LOGIN_USER, user, 1);
    setenv(MLFLOW_LOGIN_PASSWORD, password, 1);
    setenv(MLFLOW_LOGIN_TOKEN, token, 1);
    assert_int_equal(mlflow_login_take(&l), STATUS_OK);
    assert_null(getenv(MLFLOW_LOGIN_PASSWORD));
    assert_null(getenv(MLFLOW_LOGIN_TOKEN));
    return l;
}

TEST_WITH(a_login_is_sent_and_never_said, setup, teardown)
{
    place *p = *state;
    const char *const tokens[] = {"", PASSWORD}, *const sent[] = {"Basic cGh4OlMzQ1IzVHB3", "Bearer " PASSWORD};
    for (int k = 0; k < 2; k++) {
        mlflow_login l = log_in_as(k ? "" : "phx", k ? "" : PASSWORD, tokens[k]);
        atomic_bool stop = false;
        mlflow_rest *m;
        char id[MLFLOW_REST_ID];
        assert_int_equal(mlflow_rest_open(&m, mlflow_standin_address(p->server), &l, &stop), STATUS_OK);
        mlflow_standin_set(p->server, MLFLOW_STANDIN_ECHO);
        assert_int_equal(mlflow_rest_experiment(id, m, "x"), STATUS_FAILED);
        assert_null(strstr(status_message(), PASSWORD));
        assert_null(strstr(status_message(), "cGh4OlMzQ1IzVHB3"));
        assert_non_null(strstr(status_message(), "403"));
        assert_non_null(strstr(status_message(), MLFLOW_LOGIN_PASSWORD));
        char *header = mlflow_standin_login(p->server);
        assert_string_equal(header, sent[k]);
        free(header);
        mlflow_rest_close(m);
        assert_int_equal(mlflow_login_check(&l, "http://10.9.9.1:5000"), STATUS_USAGE);
        assert_null(strstr(status_message(), PASSWORD));
        assert_int_equal(mlflow_login_check(&l, "http://127.0.0.1.example:5000"), STATUS_USAGE);
        assert_int_equal(mlflow_login_check(&l, "https://10.9.9.1:5000"), STATUS_OK);
        assert_int_equal(mlflow_login_check(&l, "http://localhost:5000"), STATUS_OK);
        mlflow_login_wipe(&l);
    }
    mlflow_login l;
    setenv(MLFLOW_LOGIN_TOKEN, "a\r\nHost: elsewhere " PASSWORD, 1);
    assert_int_equal(mlflow_login_take(&l), STATUS_USAGE);
    assert_null(strstr(status_message(), PASSWORD));
    setenv(MLFLOW_LOGIN_USER, "phx", 1);
    assert_int_equal(mlflow_login_take(&l), STATUS_USAGE); /* without a password */
    unsetenv(MLFLOW_LOGIN_USER);
}

TEST_WITH(a_damaged_id_is_refused, setup, teardown)
{
    place *p = *state;
    AUTO_FREE char *path = must_format("%s/" TRACKER_FILE, p->folder);
    static const char *const texts[] = {"", "{}", "{\"id\": \"x' OR '1'='1\"}", "{\"id\": 7}", "[]"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        workfolder_write(path, texts[i], (int64_t)strlen(texts[i]));
        const tracker_options o = {.folder = p->folder,
                                   .id = START,
                                   .address = "http://127.0.0.1:9",
                                   .experiment = "x",
                                   .name = "x",
                                   .login = &nobody};
        tracker *t;
        assert_int_equal(tracker_open(&t, &o), STATUS_FAILED);
        workfolder_message_has("remove it");
    }
}

TEST_MAIN(NULL, NULL)
