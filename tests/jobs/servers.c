#include "tests/jobs/servers.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/checkpoint/checkpoint.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/island_jobs.h"
#include "tests/jobs/runs.h"

enum { SECONDS = ISLAND_JOBS_LIMIT };

/* In top/RUN-server; `words`: keys of its own. */
launch *servers_start(const char *top, const char *run, int ranks, const char *environment, const char *words)
{
    char *mpirun = ranks > 1 ? launch_mpirun(ranks) : must_strdup(""), *program = launch_beside("../phalanx");
    launch *l = launch_start(SECONDS, "exec %s %s %s server %s/run.yaml run.folder=%s/%s-server outer.run=%s %s %s",
                             mpirun, environment, program, top, top, run, run, SERVERS_TOPOLOGY, words);
    free(program);
    free(mpirun);
    return l;
}

char *servers_folder(const char *top, const char *run)
{
    return must_format("%s/%s-server", top, run);
}

/* One of its ranks is told, and all end. */
void servers_stop(const char *top, const char *run, launch *l)
{
    AUTO_FREE char *folder = servers_folder(top, run);
    int process = runs_process(folder, 0);
    assert_true(process > 0);
    kill(process, SIGTERM);
    free(island_jobs_end(l));
}

void servers_kill(const char *top, const char *run, int ranks, launch *l)
{
    AUTO_FREE char *folder = servers_folder(top, run);
    int processes[8] = {0};
    for (int i = 0; i < ranks; i++)
        assert_true((processes[i] = runs_process(folder, i)) > 0);
    for (int i = 0; i < ranks; i++)
        kill(processes[i], SIGKILL);
    launch_result r = launch_finish(l);
    launch_free(&r);
}

int64_t servers_summary(const char *top, const char *run, const char *key)
{
    AUTO_FREE char *folder = servers_folder(top, run);
    json_t *summary = runs_read_summary(folder);
    int64_t value = json_integer_value(json_object_get(summary, key));
    json_decref(summary);
    return value;
}

/* The server resumes, so that `head` may be of its former process: its record is that of the one that is there. */
launch *servers_start_and_wait(const char *top, const char *run, int ranks, const char *environment, const char *words)
{
    launch *l = servers_start(top, run, ranks, environment, words);
    assert_true(launch_expect(l, "holds the model", SECONDS));
    return l;
}

int servers_same(const char *top, const char *run, const char *other, const char *section)
{
    char *a = servers_folder(top, run), *b = servers_folder(top, other), difference[256];
    int count = runs_compare_section(difference, sizeof difference, a, b, section);
    free(b);
    free(a);
    if (*difference)
        printf("%s and %s: %s\n", run, other, difference);
    return *difference ? 0 : count;
}

/* |a - b| of a tensor, squared; added. */
static void add_distance(double *sum, checkpoint *a, checkpoint *b, const manifest_tensor *t)
{
    const int64_t columns = t->dims > 1 ? t->global[1] : 1, rows = t->global[0];
    const rectangle all = box_whole(t->name, t->dims, t->global);
    AUTO_FREE float *x = must_alloc((size_t)(rows * columns) * sizeof *x),
                    *y = must_alloc((size_t)(rows * columns) * sizeof *y);
    assert_int_equal(checkpoint_read(a, "model", &all, &(box_memory){x, DTYPE_FP32, {columns, 1}}), STATUS_OK);
    assert_int_equal(checkpoint_read(b, "model", &all, &(box_memory){y, DTYPE_FP32, {columns, 1}}), STATUS_OK);
    for (int64_t i = 0; i < rows * columns; i++)
        *sum += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
}

double servers_distance(int64_t *elements, const char *folder, const char *other)
{
    checkpoint *a = NULL, *b = NULL;
    double sum = 0;
    int64_t all = 0;
    assert_int_equal(checkpoint_open(&a, folder), STATUS_OK);
    assert_int_equal(checkpoint_open(&b, other), STATUS_OK);
    for (int i = 0; i < checkpoint_tensors(a); i++) {
        const manifest_tensor *t = checkpoint_at(a, i);
        if (strcmp(t->section, "model") != 0)
            continue;
        add_distance(&sum, a, b, t);
        all += t->global[0] * (t->dims > 1 ? t->global[1] : 1);
    }
    checkpoint_close(a);
    checkpoint_close(b);
    assert_true(all > 1000);
    if (elements)
        *elements = all;
    return sqrt(sum);
}

/* ---- islands made up
 * --------------------------------------------------------------------------------------------------- */

static const void *serve(void *context, const wire_message *m)
{
    static float slice[WIRE_SLICE / sizeof(float)];
    const servers_fake *f = context;
    if (m->kind != WIRE_CHANGE)
        return NULL;
    for (int32_t i = 0; i < m->bytes / 4; i++) {
        uint64_t x = (uint64_t)(f->number * 1000003 + m->unit * 7919 + m->first / 4 + i) * 6364136223846793005u;
        slice[i] = (float)((double)(x >> 40) / 16777216.0 - 0.5) * f->width;
    }
    if (f->nonsense)
        memset(slice, 0xFF, sizeof slice); /* NaN */
    return slice;
}

servers_fake *servers_open_fake(const char *top, const char *run, int slot, const char *folder_of_keys)
{
    servers_fake *f = must_calloc(1, sizeof *f);
    f->width = 1e-3f;
    AUTO_FREE char *folder = must_format("%s/%s", top, folder_of_keys);
    assert_int_equal(keys_open(&f->keys, folder), STATUS_OK);
    const transport_options door = {.keys = &f->keys,
                                    .address = "127.0.0.1",
                                    .fingerprint = island_jobs_fingerprint(run),
                                    .fetches = 1,
                                    .serve = serve,
                                    .context = f};
    assert_int_equal(transport_open(&f->transport, &door), STATUS_OK);
    const char *endpoint = transport_endpoint(f->transport);
    const membership_options who = {.addresses = rendezvous_address(island_jobs_etcd),
                                    .run = run,
                                    .name = folder_of_keys,
                                    .fingerprint = door.fingerprint,
                                    .key = f->keys.mine,
                                    .endpoints = &endpoint,
                                    .ranks = 1,
                                    .slots = 2,
                                    .slot = slot,
                                    .hint = -1,
                                    .patience = SECONDS,
                                    .lease = 20};
    assert_int_equal(membership_open(&f->membership, &who), STATUS_OK);
    membership_set_state(f->membership, &(membership_state){.ready = true});
    return f;
}

void servers_close_fake(servers_fake *f)
{
    membership_close(f->membership);
    transport_close(f->transport);
    keys_close(&f->keys);
    free(f);
}

/* Offers a change of so many tokens since merge `base`; the answer, or -1 if there is none in time. */
int servers_push(servers_fake *f, int64_t number, int64_t base, int64_t tokens, double seconds)
{
    double until = clock_seconds() + seconds;
    int answer = -1;
    transport_lock(f->transport);
    f->number = number;
    transport_unlock(f->transport);
    membership_set_offer(f->membership,
                         json_pack("{s:I, s:I, s:I, s:I, s:I, s:i, s:b}", "merge", (json_int_t)(base + 1), "offer",
                                   (json_int_t)number, "id", (json_int_t)(number + 12345), "tokens", (json_int_t)tokens,
                                   "updates", (json_int_t)number, "fragment", 0, "parting", 0));
    for (; answer < 0 && clock_seconds() < until; usleep(10000)) {
        AUTO_FREE char *text = membership_roster(f->membership);
        roster r;
        assert_int_equal(roster_read(&r, text, NULL), STATUS_OK);
        for (int i = 0; i < r.parts; i++)
            if (r.part[i].id == number + 12345)
                answer = (int)r.part[i].refusal;
        roster_free(&r);
    }
    membership_set_offer(f->membership, NULL);
    return answer;
}
