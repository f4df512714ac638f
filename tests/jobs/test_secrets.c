/* Passwords of etcd and of an MLflow server, the latter's token, and an object store's keys: each is in nothing that a
 * run writes, uploads, says, shows in the list of processes or hands to a child, whether it comes from
 * outer.credentials or from the environment; where an address holds one, nothing begins. Who may write to an island's
 * keys is looked at. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <curl/curl.h>

#include "engine/islands/islands.h"
#include "engine/islands/meet/etcd.h"
#include "engine/islands/wire/keys.h"
#include "engine/tracking/mlflow_rest.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/store/s3_server.h"
#include "tests/engine/tracking/mlflow_standin.h"
#include "tests/jobs/island_jobs.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/test.h"

#define PASSWORD "S3CR3Tpw"
#define LOGIN    "phx:" PASSWORD

static size_t drop(char *data, size_t size, size_t count, void *context)
{
    (void)data;
    (void)context;
    return size * count;
}

static void post(const char *path, const char *body)
{
    CURL *c = curl_easy_init();
    AUTO_FREE char *url = must_format("%s/v3/%s", rendezvous_address(island_jobs_etcd), path);
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, drop);
    assert_int_equal(curl_easy_perform(c), CURLE_OK);
    curl_easy_cleanup(c);
}

static void ask_for_passwords(void)
{
    post("auth/role/add", "{\"name\":\"root\"}");
    post("auth/user/add", "{\"name\":\"root\",\"password\":\"rootpw\"}");
    post("auth/user/grant", "{\"user\":\"root\",\"role\":\"root\"}");
    post("auth/user/add", "{\"name\":\"phx\",\"password\":\"" PASSWORD "\"}");
    post("auth/user/grant", "{\"user\":\"phx\",\"role\":\"root\"}");
    post("auth/enable", "{}");
}

/* Files under `folder` that hold the password, as `grep` lists them. */
static void assert_nowhere_in(const char *folder)
{
    launch_result r = launch_run(60, "grep -rlF %s %s", PASSWORD, folder);
    assert_string_equal(r.out, "");
    assert_int_equal(r.status, 1); /* grep: nothing was found */
    launch_free(&r);
}

/* What anybody, and its user, can see of a process that is at work. `list`: a file of words. */
static void assert_not_shown_by(int pid, const char *list)
{
    launch_result r = launch_run(60,
                                 "cat /proc/%d/cmdline /proc/%d/task/*/children >/dev/null && "
                                 "grep -cF -f %s /proc/%d/cmdline /proc/%d/environ",
                                 pid, pid, list, pid, pid);
    assert_null(strstr(r.out, ":1"));
    assert_non_null(strstr(r.out, "environ:0"));
    launch_free(&r);
}

/* A run that logs in: all that it leaves, in a folder of its own. `before`: of the shell, in front of the program. */
static void train_and_search(const char *top, const char *name, const char *before, const char *key)
{
    AUTO_FREE char *program = launch_beside("../phalanx"), *folder = must_format("%s/%s", top, name);
    launch *l =
        launch_start(ISLAND_JOBS_LIMIT,
                     "mkdir %s && exec env %s %s train %s/run.yaml run.folder=%s/run outer.run=%s train.steps=400 "
                     "outer.min_islands=1 checkpoint.every=100 %s",
                     folder, before, program, top, folder, name, key);
    /* once it has merged, it has logged in */
    assert_true(launch_expect(l, "merge number 1, of the changes of 1 island", ISLAND_JOBS_LIMIT));
    AUTO_FREE char *list = must_format("%s/word", top);
    runs_write_text(list, PASSWORD "\n");
    assert_not_shown_by(launch_pid(l), list);
    launch_result r = launch_finish(l);
    assert_int_equal(r.status, 0);
    assert_null(strstr(r.out, PASSWORD));
    assert_null(strstr(r.err, PASSWORD));
    launch_free(&r);
    r = launch_run(ISLAND_JOBS_LIMIT,
                   "%s report %s/run --output %s/report.html && %s inspect %s/run > %s/inspect.txt && "
                   "%s convert --from %s/run/checkpoints/step-00000400 --to %s/hf",
                   program, folder, folder, program, folder, folder, program, folder, folder);
    assert_int_equal(r.status, 0);
    assert_null(strstr(r.out, PASSWORD));
    assert_null(strstr(r.err, PASSWORD));
    launch_free(&r);
    assert_nowhere_in(folder);
}

TEST(the_password_is_in_nothing_that_a_run_writes)
{
    const char *top = *state;
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    ask_for_passwords();
    AUTO_FREE char *file = must_format("%s/login", top), *key = must_format("outer.credentials=%s", file);
    runs_write_text(file, LOGIN "\n");
    assert_int_equal(chmod(file, 0644), 0);
    AUTO_FREE char *open_file = must_format("%s/run.yaml run.folder=%s/open %s", top, top, key);
    launch_result r = runs_train(ISLAND_JOBS_LIMIT, 1, open_file); /* others can read it */
    assert_int_not_equal(r.status, 0);
    assert_non_null(strstr(r.err, "chmod 600"));
    launch_free(&r);
    assert_int_equal(chmod(file, 0600), 0);
    train_and_search(top, "by-file", "", key);
    train_and_search(top, "by-environment", ISLANDS_CREDENTIALS "=" LOGIN, "");
}

/* ---- of an MLflow server ---- */

#define CODED "cGh4OlMzQ1IzVHB3" /* LOGIN, as it travels */

/* A run that logs in to a server that repeats it, and then to one that does not. */
static void track_and_search(const char *top, const char *name, const char *before, const char *header)
{
    mlflow_standin *server = mlflow_standin_open();
    AUTO_FREE char *program = launch_beside("../phalanx"), *folder = must_format("%s/%s", top, name);
    mlflow_standin_set(server, MLFLOW_STANDIN_ECHO);
    launch *l = launch_start(ISLAND_JOBS_LIMIT,
                             "mkdir %s && exec env %s %s train %s/run.yaml run.folder=%s/run train.steps=100000 "
                             "outer.every=0 run.mlflow=%s checkpoint.every=100",
                             folder, before, program, top, folder, mlflow_standin_address(server));
    assert_true(launch_expect(l, "it repeats what it was logged in with", ISLAND_JOBS_LIMIT));
    char *sent = mlflow_standin_login(server);
    assert_string_equal(sent, header);
    free(sent);
    mlflow_standin_set(server, MLFLOW_STANDIN_WELL);
    assert_true(launch_expect(l, "takes metrics again", ISLAND_JOBS_LIMIT));
    AUTO_FREE char *list = must_format("%s/word", top);
    runs_write_text(list, PASSWORD "\n");
    assert_not_shown_by(launch_pid(l), list);
    assert_int_equal(kill(launch_pid(l), SIGTERM), 0);
    launch_result r = launch_finish(l);
    assert_int_equal(r.status, 75);
    assert_null(strstr(r.out, PASSWORD));
    assert_null(strstr(r.err, PASSWORD));
    assert_null(strstr(r.err, CODED));
    launch_free(&r);
    r = launch_run(ISLAND_JOBS_LIMIT,
                   "%s report %s/run --output %s/report.html --wandb %s/wandb.py >/dev/null && grep -rl %s %s", program,
                   folder, folder, folder, CODED, folder);
    assert_int_equal(r.status, 1); /* grep: nothing was found */
    assert_string_equal(r.out, "");
    launch_free(&r);
    assert_nowhere_in(folder);
    json_t *run = mlflow_standin_run(server);
    char *text = json_dumps(run, 0); /* nor in parameters and tags */
    assert_null(strstr(text, PASSWORD));
    assert_string_equal(json_string_value(json_object_get(run, "status")), "KILLED");
    free(text);
    json_decref(run);
    mlflow_standin_close(server);
}

TEST(what_mlflow_is_logged_in_with_is_in_nothing_that_a_run_writes)
{
    track_and_search(*state, "by-password", MLFLOW_LOGIN_USER "=phx " MLFLOW_LOGIN_PASSWORD "=" PASSWORD,
                     "Basic " CODED);
    track_and_search(*state, "by-token", MLFLOW_LOGIN_TOKEN "=" PASSWORD, "Bearer " PASSWORD);
}

/* ---- of an object store ---- */

/* Whoever reads any of these words could write to the store or log in to the server. */
static const char *const words[] = {S3_SERVER_ID, S3_SERVER_SECRET, S3_SERVER_TOKEN, PASSWORD, CODED};
enum { WORDS = sizeof words / sizeof *words };

static void assert_none_in(const char *where, const char *text)
{
    for (int i = 0; i < WORDS; i++)
        if (strstr(text, words[i]))
            fail_msg("%s has %s: %s", where, words[i], text);
}

/* The list of processes, as anybody on the machine sees it. The words are in a file, so that grep's own line has none.
 */
static void assert_not_in_any_command_line(const char *list)
{
    launch_result r = launch_run(60,
                                 "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline 2>/dev/null; echo; done | "
                                 "grep -F -f %s; ps -eo args | grep -F -f %s",
                                 list, list);
    assert_string_equal(r.out, "");
    launch_free(&r);
}

static void assert_in_no_file_of(const char *folder, const char *list)
{
    launch_result r = launch_run(60, "grep -rlF -f %s %s", list, folder);
    assert_string_equal(r.out, "");
    assert_int_equal(r.status, 1); /* grep: nothing was found */
    launch_free(&r);
}

static void write_words(const char *path)
{
    char *text = must_strdup("");
    for (int i = 0; i < WORDS; i++) {
        char *more = must_format("%s%s\n", text, words[i]);
        free(text);
        text = more;
    }
    runs_write_text(path, text);
    free(text);
}

/* What people look at afterwards: the page, the run, the exports' cards, what convert makes of the mirror. */
static void look_and_search(const char *folder, const char *list)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r = launch_run(ISLAND_JOBS_LIMIT,
                                 "cd %s && %s report run --output report.html --wandb wandb.py && %s inspect run && "
                                 "ls run/exports/step-*/README.md && %s inspect s3://" S3_SERVER_BUCKET "/secret && "
                                 "%s convert --from s3://" S3_SERVER_BUCKET "/secret --to hf && cat hf/config.json",
                                 folder, program, program, program, program);
    if (r.status)
        fail_msg("%s%s", r.out, r.err);
    assert_none_in("a command", r.out);
    assert_none_in("a command", r.err);
    launch_free(&r);
    assert_in_no_file_of(folder, list);
}

/* A run with a mirror, exports and an MLflow server, while it is at work and when it has been stopped. */
TEST(what_a_store_is_asked_with_is_nowhere)
{
    const char *top = *state;
    AUTO_FREE char *program = launch_beside("../phalanx"), *folder = must_format("%s/stored", top),
                   *list = must_format("%s/words", top), *cache = must_format("%s/stored/cache", top);
    mlflow_standin *tracking = mlflow_standin_open();
    s3_server *store = s3_server_start();
    s3_server_set_secret(store, S3_SERVER_SECRET, true);
    setenv("AWS_SESSION_TOKEN", S3_SERVER_TOKEN, 1);
    setenv("XDG_CACHE_HOME", cache, 1);
    setenv(MLFLOW_LOGIN_USER, "phx", 1);
    setenv(MLFLOW_LOGIN_PASSWORD, PASSWORD, 1);
    setenv(ISLANDS_CREDENTIALS, LOGIN, 1); /* the job is no island */
    write_words(list);
    launch *l = launch_start(ISLAND_JOBS_LIMIT,
                             "mkdir %s && exec %s train %s/run.yaml run.folder=%s/run train.steps=100000 outer.every=0 "
                             "run.mlflow=%s checkpoint.every=100 checkpoint.export.every=200 "
                             "checkpoint.mirror=s3://" S3_SERVER_BUCKET "/secret run.log_every=50",
                             folder, program, top, folder, mlflow_standin_address(tracking));
    assert_true(launch_expect(l, "exported ", ISLAND_JOBS_LIMIT));
    s3_server_faults(store, "PUT:echo"); /* the store repeats what it was asked with */
    for (double until = clock_seconds() + 60; !s3_server_faults_done(store); usleep(10000))
        assert_true(clock_seconds() < until);
    assert_not_in_any_command_line(list);
    assert_not_shown_by(launch_pid(l), list);
    assert_int_equal(kill(launch_pid(l), SIGTERM), 0);
    launch_result r = launch_finish(l);
    if (r.status != 75)
        fail_msg("status %d: %s%s", r.status, r.out, r.err);
    assert_non_null(strstr(r.err, "warning: checkpoint.mirror: "));
    assert_none_in("standard output", r.out);
    assert_none_in("standard error", r.err);
    launch_free(&r);
    assert_true(s3_server_count(store) > 5);
    for (int i = 0; i < WORDS; i++)
        assert_int_equal(s3_server_search(store, words[i]), 0);
    json_t *run = mlflow_standin_run(tracking);
    AUTO_FREE char *text = json_dumps(run, 0);
    assert_true(json_object_size(json_object_get(run, "params")) > 10);
    assert_none_in("MLflow's run", text);
    look_and_search(folder, list);
    unsetenv("AWS_SESSION_TOKEN");
    unsetenv("XDG_CACHE_HOME");
    unsetenv(ISLANDS_CREDENTIALS);
    unsetenv(MLFLOW_LOGIN_USER);
    unsetenv(MLFLOW_LOGIN_PASSWORD);
    json_decref(run);
    s3_server_stop(store);
    mlflow_standin_close(tracking);
}

TEST(a_password_in_an_address_is_refused_and_not_repeated)
{
    static const char *const addresses[] = {
        "outer.rendezvous=[http://" LOGIN "@127.0.0.1:1]",
        "outer.rendezvous=https://" LOGIN "@h:1",
        "outer.rendezvous=[" LOGIN "@h:1]",
        "outer.every=http://" LOGIN "@h:1",
        "outer.rendezvous:[http://" LOGIN "@h:1]",
    };
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        AUTO_FREE char *all =
            must_format("%s/run.yaml run.folder=%s/refused '%s'", (char *)*state, (char *)*state, addresses[i]);
        launch_result r = runs_train(60, 1, all);
        assert_int_equal(r.status, STATUS_USAGE);
        assert_null(strstr(r.err, PASSWORD));
        if (i < 3)
            assert_non_null(strstr(r.err, "outer.credentials"));
        launch_free(&r);
    }
    AUTO_FREE char *folder = must_format("%s/refused", (char *)*state);
    assert_int_not_equal(access(folder, F_OK), 0); /* nothing was written */
}

static status log_in(const char *address)
{
    etcd *e = NULL;
    char user[] = "phx", word[] = PASSWORD;
    status s = etcd_open(&e, address);
    if (s == STATUS_OK)
        s = etcd_log_in(e, &(etcd_login){user, word});
    etcd_close(e);
    return s;
}

TEST(a_password_goes_to_no_other_machine_in_the_clear)
{
    assert_int_equal(log_in("http://10.9.9.1:2379"), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "https://"));
    assert_int_equal(log_in("http://127.0.0.1.example:2379"), STATUS_USAGE);
    assert_int_equal(log_in("http://localhost:1,http://localhost.example:2379"), STATUS_USAGE);
    assert_int_equal(log_in("http://" LOGIN "@127.0.0.1:2379"), STATUS_USAGE);
    assert_null(strstr(status_message(), PASSWORD));
    assert_int_equal(log_in("https://10.9.9.1:2379"), STATUS_OK);
    assert_int_equal(log_in("http://127.0.0.1:2379,http://localhost:1,http://[::1]:2"), STATUS_OK);
}

TEST(keys_that_everybody_can_add_to_are_refused)
{
    keys k;
    AUTO_FREE char *folder = must_format("%s/others", (char *)*state), *peers = must_format("%s/peers", folder);
    assert_int_equal(islands_make_keys(folder), STATUS_OK);
    assert_int_equal(keys_open(&k, folder), STATUS_OK);
    keys_close(&k);
    const char *const paths[] = {folder, peers};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(chmod(paths[i], 0777), 0);
        assert_int_equal(keys_open(&k, folder), STATUS_FAILED);
        assert_non_null(strstr(status_message(), "chmod go-w"));
        assert_int_equal(chmod(paths[i], 0755), 0);
    }
    assert_int_equal(keys_open(&k, folder), STATUS_OK);
    keys_close(&k);
}

TEST_MAIN(island_jobs_prepare, island_jobs_finish)
