/* Faults at random moments of a run and its mirror: stores that fail, lie or drip, links that are slow, bodies that are
 * cut or damaged, credentials that expire, a prefix that is wiped, a server that dies and comes back, training that is
 * killed at some request of an upload, a prune or a resume, or frozen while another machine takes its folder over,
 * folders that are lost. After each end nothing in the mirror is half published, `latest` names a whole checkpoint and
 * never an older one than before; a run without its folder goes on from it; and each run ends with the bits of one that
 * nobody disturbed. FAULTS=N SEED=S: so many, drawn by S; FIRST=k begins with run k; ONLY=TEXT: kinds with that text in
 * their names. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/checkpoint/manifest.h"
#include "engine/system/atomic.h"
#include "engine/system/crc32c.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/store/s3_server.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

static s3_server *server;

/* Runs of one process and of two, small ones and one whose files go in parts. */
static const struct {
    int ranks, steps, turns; /* turns: how many names of one step may be in a mirror */
    const char *keys;
} shapes[] = {
    {1, 40, 4, "checkpoint.every=2"},
    {2, 24, 4, "train.steps=24 checkpoint.every=2 checkpoint.asynchronous=false"},
    {1, 6, 4, "train.steps=6 checkpoint.every=1 model.hidden_size=512 model.ffn_size=1024 checkpoint.keep=2"},
    {1, 40, 4, "checkpoint.every=3 checkpoint.keep=1"},
    {1, 40, 4, "checkpoint.every=2 checkpoint.keep=1 checkpoint.keep_every=8"},
};

enum { SHAPES = sizeof shapes / sizeof *shapes, STOPPED = 75 /* the exit status of a run that was asked to */ };

typedef struct subject {
    const char *top;
    char *run, *mirror, *whole, *keys;
    int shape, number;
    uint64_t random;
    int64_t latest; /* the step that `latest` has named */
    bool killed;    /* the job, just now: its status does not count */
    bool lost;      /* the folder: the next start takes what the mirror has */
    bool hurt;      /* an object of the mirror has been damaged */
    launch *job;
    char *said; /* by the last job */
    char *loss; /* why it counts as lost */
} subject;

static int draw(subject *s, int below)
{
    s->random = s->random * 6364136223846793005u + 1442695040888963407u;
    return (int)((s->random >> 33) % (uint64_t)below);
}

static void lose(subject *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void lose(subject *s, const char *format, ...)
{
    char words[4096];
    va_list list;
    va_start(list, format);
    vsnprintf(words, sizeof words, format, list);
    va_end(list);
    if (!s->loss)
        s->loss = must_strdup(words);
}

/* ---- what must hold of the mirror -------------------------------------------------------------------------------- */

static char *object(const subject *s, const char *name, const char *file, int64_t *bytes)
{
    char *key = must_format("%s/%s%s%s", s->mirror, name, *file ? "/" : "", file);
    char *data = s3_server_get(server, key, bytes);
    free(key);
    return data;
}

/* A manifest that is there has all its files, as it says. */
static void check_checkpoint(subject *s, const char *name, const char *text, int64_t bytes)
{
    manifest *m;
    if (manifest_parse(&m, text, bytes, name) != STATUS_OK) {
        lose(s, "%s", status_message());
        return;
    }
    for (int i = 0; i < m->file_count; i++) {
        int64_t size = -1;
        AUTO_FREE char *data = object(s, name, m->files[i].name, &size);
        if (!data || size != m->files[i].bytes || crc32c(0, data, size) != m->files[i].crc32c)
            lose(s, "%s/%s of the mirror is %s", name, m->files[i].name, data ? "another one" : "not there");
    }
    manifest_free(m);
}

static void check_mirror(subject *s)
{
    int64_t bytes;
    bool there = false;
    AUTO_FREE char *latest = object(s, "latest", "", &bytes);
    if (latest)
        latest[strcspn(latest, "\n")] = 0;
    for (int step = 1; step <= shapes[s->shape].steps && !s->hurt; step++)
        for (int turn = 1; turn <= shapes[s->shape].turns; turn++) {
            char *name = turn == 1 ? must_format("step-%08d", step) : must_format("step-%08d-%d", step, turn);
            AUTO_FREE char *text = object(s, name, "manifest.json", &bytes);
            if (text)
                check_checkpoint(s, name, text, bytes);
            there |= text && latest && strcmp(name, latest) == 0;
            free(name);
        }
    long long step = -1;
    if (latest && sscanf(latest, "step-%lld", &step) == 1 && !there && !s->hurt)
        lose(s, "latest of the mirror names %s, which is not whole", latest);
    if (step < s->latest && !s->hurt)
        lose(s, "latest of the mirror has gone from step %lld to %lld", (long long)s->latest, step);
    s->latest = step;
}

/* ---- the job ----------------------------------------------------------------------------------------------------- */

static char *arguments_of(const subject *s)
{
    return must_format("%s/run.yaml run.folder=%s checkpoint.mirror=s3://" S3_SERVER_BUCKET "/%s %s", s->top, s->run,
                       s->mirror, s->keys);
}

static void start(subject *s)
{
    AUTO_FREE char *arguments = arguments_of(s);
    s->job = runs_start(120, shapes[s->shape].ranks, arguments);
}

/* What a start without its folder said must be what the mirror has. */
static void check_resumed(subject *s, const launch_result *r)
{
    const char *at = strstr(r->out, "fetched step ");
    long long step = -1;
    if (at)
        sscanf(at, "fetched step %lld", &step);
    AUTO_FREE char *begun = workfolder_path(s->run, "metrics.jsonl");
    bool has_begun = access(begun, F_OK) == 0;
    if (!has_begun && step < 0)
        return; /* it came to nothing */
    if (step < s->latest && !s->hurt)
        lose(s, "the folder was lost with step %lld in the mirror, and it went on from %lld: %s %s",
             (long long)s->latest, step, r->out, r->err);
    s->lost = false;
}

static int finish(subject *s)
{
    launch_result r = launch_finish(s->job);
    int result = r.timed_out ? -1 : r.status;
    s->job = NULL;
    if (strstr(r.out, S3_SERVER_SECRET) || strstr(r.err, S3_SERVER_SECRET))
        lose(s, "a secret was said");
    if (r.timed_out)
        lose(s, "it does not end: %s %s", r.out, r.err);
    if (!s->killed && result != 0 && result != STOPPED && !strstr(r.err, "checkpoint.mirror") &&
        !strstr(r.err, "s3://"))
        lose(s, "status %d: %s %s", result, r.out, r.err);
    if (s->lost)
        check_resumed(s, &r);
    free(s->said);
    s->said = must_format("%s%s", r.out, r.err);
    launch_free(&r);
    check_mirror(s);
    return result;
}

static bool is_over(const subject *s)
{
    return launch_ended(s->job);
}

/* Until the store has heard so many requests more, or the job has ended. */
static void wait_for_requests(subject *s, int count)
{
    int64_t until = s3_server_requests(server) + count;
    for (double end = clock_seconds() + 3; s3_server_requests(server) < until && clock_seconds() < end && !is_over(s);)
        usleep(500);
}

static void kill_job(subject *s)
{
    int ranks = shapes[s->shape].ranks;
    int pid = ranks == 1 ? launch_pid(s->job) : runs_process(s->run, draw(s, ranks));
    s->killed = pid > 0 && kill(pid, SIGKILL) == 0;
    (void)finish(s);
    s->killed = false;
}

/* At one of the first requests that remove something. */
static void kill_in_prune(subject *s)
{
    static const char *const scripts[] = {"DELETE:ok", "DELETE:ok DELETE:ok", "DELETE:ok DELETE:ok DELETE:ok"};
    s3_server_faults(server, scripts[draw(s, 3)]);
    for (double end = clock_seconds() + 3; !s3_server_faults_done(server) && clock_seconds() < end && !is_over(s);)
        usleep(100);
    kill_job(s);
    s3_server_faults(server, NULL);
}

static void lose_folder(subject *s)
{
    kill_job(s);
    for (double end = clock_seconds() + 10; runs_process(s->run, 0) && clock_seconds() < end;)
        usleep(10000);
    if (atomic_remove(s->run) != STATUS_OK)
        lose(s, "%s", status_message());
    s->lost = true;
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

static void let_fail(subject *s)
{
    static const char *const scripts[] = {
        "503 503 500 429",
        "503/1 ok ok 502 504",
        "PUT:503 PUT:reset PUT:lost PUT:503",
        "PUT:lost PUT:lost",
        "POST:lost POST:503 POST:late",
        "reset reset ok reset",
        "html garbage 408",
        "hang",
        "DELETE:lost DELETE:503 DELETE:reset",
        "HEAD:reset GET:lost GET:503",
    };
    s3_server_faults(server, scripts[draw(s, (int)(sizeof scripts / sizeof *scripts))]);
}

static void cut_bodies(subject *s)
{
    static const char *const scripts[] = {"GET:cut=10 GET:cut=100 GET:reset", "GET:cut=1000 GET:cut=1000 GET:503",
                                          "GET:damage GET:damage", "GET:damage GET:cut=50 GET:long",
                                          "GET:elsewhere GET:damage"};
    s3_server_faults(server, scripts[draw(s, (int)(sizeof scripts / sizeof *scripts))]);
}

/* Answers take a second or two, not minutes. */
static void slow_down(subject *s)
{
    bool large = shapes[s->shape].steps < 10;
    s3_server_faults(server, large        ? "slow=5000000 slow=5000000 slow=5000000"
                             : draw(s, 2) ? "slow=50000 slow=50000 slow=50000"
                                          : "GET:slow=20000 GET:slow=50000");
}

static void let_expire(subject *s)
{
    if (draw(s, 2)) {
        s3_server_faults(server, "expired expired expired");
        return;
    }
    s3_server_set_secret(server, "another-secret", false);
    usleep((unsigned)draw(s, 500) * 1000);
    s3_server_set_secret(server, S3_SERVER_SECRET, false);
}

static void go_down(subject *s)
{
    s3_server_set_down(server, true);
    usleep((unsigned)draw(s, 800) * 1000);
    s3_server_set_down(server, false);
}

static void ask_to_stop(subject *s)
{
    kill(launch_pid(s->job), SIGTERM);
    s->killed = true; /* mpirun gives its ranks a second, and a start may not listen yet */
    (void)finish(s);
    s->killed = false;
}

/* What a list says is not so: sizes that nothing has, keys of others, pages without an end, a text that is cut. */
static void let_lie(subject *s)
{
    static const char *const lists[][2] = {
        {"<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>",
         "/step-00000002/manifest.json</Key><Size>1000000000000000000</Size></Contents></ListBucketResult>"},
        {"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>",
         "</NextContinuationToken></ListBucketResult>"},
        {"<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>another/",
         "</Key><Size>1</Size></Contents>"},
        {"<ListBucketResult><Contents><Key>", "/../latest</Key><Size>-1</Size></Contents></ListBucketResult>"},
    };
    int which = draw(s, 4);
    AUTO_FREE char *list = must_format("%s%s%s", lists[which][0], s->mirror, lists[which][1]);
    s3_server_lie(server, list);
    s3_server_faults(server, draw(s, 2) ? "GET:garbage GET:long GET:elsewhere" : "PUT:late POST:garbage GET:whole");
}

static void let_drip(subject *s)
{
    s3_server_faults(server, draw(s, 2) ? "GET:slow=3" : "PUT:slow=3 GET:slow=3");
}

/* Somebody removes all that the mirror has: what is saved from now on is mirrored again, and what a run that is done
 * has, when it is started again. */
static void wipe(subject *s)
{
    bool over = s->job && is_over(s);
    if (over)
        (void)finish(s);
    s3_server_wipe(server);
    s->latest = -1;
    if (over)
        start(s);
}

static void kill_and_wipe(subject *s)
{
    kill_job(s);
    wipe(s);
}

static void send_all(const subject *s, int number)
{
    for (int rank = 0; rank < shapes[s->shape].ranks; rank++) {
        int pid = runs_process(s->run, rank);
        if (pid > 0)
            kill(pid, number);
    }
}

/* All ranks are frozen for longer than the lock's lease, as on a machine that is suspended. Another machine (another
 * host name and boot id) takes the folder over and trains to the end; then they wake. */
static void freeze_and_take_over(subject *s)
{
    if (getuid() != 0)
        return;
    AUTO_FREE char *boot = must_format("%s/boot", s->top), *arguments = arguments_of(s),
                   *metrics = must_format("%s/metrics.jsonl", s->run), *program = launch_beside("../phalanx");
    int ranks = shapes[s->shape].ranks;
    char *mpirun = ranks > 1 ? launch_mpirun(ranks) : must_strdup("");
    for (double until = clock_seconds() + 20; access(metrics, F_OK) != 0 && clock_seconds() < until && !is_over(s);)
        usleep(1000);
    runs_write_text(boot, "11111111-2222-3333-4444-555555555555\n");
    send_all(s, SIGSTOP);
    launch *other = launch_start(120,
                                 "exec unshare -m -u bash -c 'hostname another-machine && mount --bind %s "
                                 "/proc/sys/kernel/random/boot_id && exec \"$@\"' x %s %s train %s",
                                 boot, mpirun, program, arguments);
    launch_result r = launch_finish(other);
    if (r.status != 0)
        lose(s, "the machine that takes over ends with %d: %s %s", r.status, r.out, r.err);
    launch_free(&r);
    int64_t before = runs_read_metrics(s->run).count;
    send_all(s, SIGCONT);
    (void)finish(s);
    if (runs_read_metrics(s->run).count != before)
        lose(s, "a run that woke after another had taken over has written metrics");
    free(mpirun);
}

static void lose_folder_and_cut(subject *s)
{
    lose_folder(s);
    cut_bodies(s);
}

static void lose_folder_and_be_killed(subject *s)
{
    lose_folder(s);
    start(s);
    wait_for_requests(s, draw(s, 12));
    kill_job(s);
    if (!s->lost) { /* it had begun again: what it has may be lost once more */
        if (atomic_remove(s->run) != STATUS_OK)
            lose(s, "%s", status_message());
        s->lost = true;
    }
}

static void lose_folder_and_go_down(subject *s)
{
    lose_folder(s);
    s3_server_set_down(server, true);
    start(s);
    usleep((unsigned)draw(s, 1500) * 1000);
    s3_server_set_down(server, false);
}

/* A bit of the newest checkpoint's model is another one: an older one does, or the run is refused until it is
 * mended. */
static void lose_folder_and_damage(subject *s)
{
    lose_folder(s);
    int64_t bytes;
    char *latest = object(s, "latest", "", &bytes);
    if (!latest)
        return;
    latest[strcspn(latest, "\n")] = 0;
    AUTO_FREE char *key = must_format("%s/%s/model-00000.safetensors", s->mirror, latest);
    AUTO_FREE char *data = s3_server_get(server, key, &bytes);
    int at = draw(s, (int)bytes);
    data[at] ^= 1;
    s3_server_put(server, key, data, bytes);
    s->hurt = true;
    start(s);
    (void)finish(s);
    int64_t size;
    AUTO_FREE char *now = s3_server_get(server, key, &size);
    data[at] ^= 1;
    if (now && size == bytes && now[at] != data[at]) /* it is mended, if it is still there */
        s3_server_put(server, key, data, bytes);
    s->hurt = false;
    free(latest);
}

static const struct {
    const char *name;
    void (*act)(subject *s);
    int weight;
    bool ends; /* the job */
} kinds[] = {
    {"the store fails", let_fail, 4, false},
    {"bodies are cut or damaged", cut_bodies, 2, false},
    {"links are slow", slow_down, 2, false},
    {"credentials expire", let_expire, 2, false},
    {"the store dies, and comes back", go_down, 3, false},
    {"training is killed", kill_job, 8, true},
    {"training is killed in a prune", kill_in_prune, 4, true},
    {"training is asked to stop", ask_to_stop, 2, true},
    {"killed, and the folder is lost", lose_folder, 8, true},
    {"the folder is lost, and bodies are cut", lose_folder_and_cut, 3, true},
    {"the folder is lost, and killed in the resume", lose_folder_and_be_killed, 4, true},
    {"the folder is lost, and the store is down", lose_folder_and_go_down, 2, true},
    {"the folder is lost, and the newest is damaged", lose_folder_and_damage, 2, true},
    {"the store lies", let_lie, 4, false},
    {"the store drips", let_drip, 1, false},
    {"the prefix is wiped", wipe, 2, false},
    {"killed, and the prefix is wiped", kill_and_wipe, 2, true},
    {"frozen, and another machine takes over", freeze_and_take_over, 1, true},
};

enum { KINDS = sizeof kinds / sizeof *kinds };

/* How often a kind is thrown, beside the others. */
static int weight_of(int kind)
{
    const char *only = getenv("ONLY");
    return !only || strstr(kinds[kind].name, only) ? kinds[kind].weight : 0;
}

static int draw_kind(subject *s)
{
    int all = 0, k = 0;
    for (int i = 0; i < KINDS; i++)
        all += weight_of(i);
    if (all == 0)
        fail_msg("no kind of fault is named \"%s\"", getenv("ONLY"));
    for (int left = draw(s, all); left >= weight_of(k); k++)
        left -= weight_of(k);
    return k;
}

/* ---- a run ------------------------------------------------------------------------------------------------------- */

/* The same run, which nobody disturbs; made once. */
static char *whole_of(const char *top, int shape)
{
    char *name = must_format("whole-%d", shape), *run = workfolder_path(top, name);
    if (access(run, F_OK) != 0)
        free(runs_train_well(120, shapes[shape].ranks, "%s/run.yaml run.folder=%s %s", top, run, shapes[shape].keys));
    free(name);
    return run;
}

static void throw_one(subject *s, int kind)
{
    if (!s->job)
        start(s);
    wait_for_requests(s, draw(s, draw(s, 2) ? 12 : 80));
    if (is_over(s) && kinds[kind].ends) { /* another start: it has nothing left to do */
        (void)finish(s);
        start(s);
    }
    kinds[kind].act(s);
}

/* All is well again: it must end well, with all in the mirror. */
static void let_end(subject *s)
{
    int code = -1;
    s3_server_faults(server, NULL);
    for (int tries = 0; tries < 3 && code != 0 && !s->loss; tries++) {
        if (!s->job)
            start(s);
        code = finish(s);
    }
    char difference[512];
    if (code != 0)
        lose(s, "it does not end well: status %d", code);
    if (!s->loss && (runs_compare_checkpoints(difference, sizeof difference, s->run, s->whole) == 0 || *difference))
        lose(s, "other bits: %s", difference);
    if (!s->loss && s->latest != shapes[s->shape].steps)
        lose(s, "the mirror has step %lld at the end", (long long)s->latest);
    if (s3_server_open_uploads(server) > 0 && !s->loss)
        lose(s, "%d uploads have begun, and neither ended nor been given up", s3_server_open_uploads(server));
}

static void free_subject(subject *s)
{
    free(s->loss);
    free(s->said);
    free(s->run);
    free(s->mirror);
    free(s->whole);
    free(s->keys);
}

static bool disturb(int *tally, const char *top, int number, int faults, uint64_t seed)
{
    int shape = number % SHAPES;
    subject s = {.top = top,
                 .run = must_format("%s/run-%d", top, number),
                 .mirror = must_format("mirror-%d", number),
                 .whole = whole_of(top, shape),
                 .keys = must_strdup(shapes[shape].keys),
                 .shape = shape,
                 .number = number,
                 .random = seed * 1000003 + (uint64_t)number,
                 .latest = -1};
    for (int i = 0; i < faults && !s.loss; i++) {
        int kind = draw_kind(&s);
        tally[kind]++;
        if (getenv("FAULTS"))
            printf("fault run %d: %s\n", number, kinds[kind].name);
        throw_one(&s, kind);
    }
    let_end(&s);
    bool well = !s.loss;
    if (s.loss)
        printf("LOST: run %d (%s): %s\n%s\n", number, s.keys, s.loss, s.said ? s.said : "");
    if (s.job)
        (void)finish(&s);
    (void)atomic_remove(s.run);
    free_subject(&s);
    return well;
}

TEST(faults_at_random_moments_lose_nothing)
{
    const char *wanted = getenv("FAULTS"), *seed = getenv("SEED"), *first = getenv("FIRST");
    int faults = wanted && atoi(wanted) > 0 ? atoi(wanted) : 10, from = first ? atoi(first) : 0, number = from,
        losses = 0;
    int tally[KINDS] = {0};
    for (int thrown = 0, now; thrown < faults; thrown += now, number++) {
        now = faults - thrown < 3 + number % 3 ? faults - thrown : 3 + number % 3;
        losses += !disturb(tally, *state, number, now, seed ? (uint64_t)atoll(seed) : 1);
    }
    printf("%d runs, %d lost\n", number - from, losses);
    for (int k = 0; k < KINDS; k++)
        printf("%-48s %4d\n", kinds[k].name, tally[k]);
    assert_int_equal(losses, 0);
}

static int begin(void **state)
{
    if (workfolder_setup(state))
        return -1;
    server = s3_server_start();
    runs_write_small(*state, 9000, 40, "micro_batch: 2, global_batch: 12",
                     "optimizer: {lr: 3e-3, schedule: constant}\n");
    return 0;
}

static int end(void **state)
{
    s3_server_stop(server);
    return workfolder_teardown(state);
}

TEST_MAIN(begin, end)
