/* Experts that ranks divide: no token is dropped. A step that lacks room is played again on a higher rung and is then
 * the step that a run with room makes; what is stopped or killed among such steps goes on, bit for bit. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "memory/log.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"

enum { STEPS = 24, STOP = 7, LIMIT = 200 };

/* A fresh router of four experts, of which a token takes one, on two ranks: most tokens may choose one rank's. */
static int write_config(void **state)
{
    if (workfolder_setup(state))
        return -1;
    const char *top = *state;
    char *data = workfolder_path(top, "data"), *path = workfolder_path(top, "run.yaml");
    runs_write_data(data, 131, 40000, 1);
    char *text = must_format(
        "model: {architecture: mixtral, layers: 3, hidden_size: 32, heads: 4, kv_heads: 2, vocab_size: 257, "
        "max_sequence: 32, experts: 4, experts_per_token: 1, expert_ffn_size: 24}\n"
        "data: {train: %s, shuffle: true}\n"
        "train: {steps: %d, sequence: 32, micro_batch: 2, global_batch: 8, precision: fp32, device: cpu, threads: 1, "
        "dropout: 0.1}\n"
        "optimizer: {lr: 2e-3, schedule: constant, warmup: 2}\n"
        "parallel: {expert: 2}\n"
        "checkpoint: {every: 0, keep: 0}\n"
        "run: {tensorboard: false, hang_seconds: 60, log_every: 1}\n",
        data, STEPS);
    runs_write_text(path, text);
    free(text);
    free(path);
    free(data);
    return 0;
}

/* How often the steps of a run were played on each rung, and in all again, by metrics.jsonl. */
typedef struct climbs {
    int64_t replays, highest;
} climbs;

static climbs read_climbs(const char *top, const char *run)
{
    climbs c = {0};
    char line[4096], *path = must_format("%s/%s/metrics.jsonl", top, run);
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    while (fgets(line, sizeof line, in)) {
        json_t *entry = json_loads(line, 0, NULL);
        int64_t rung = json_integer_value(json_object_get(entry, "rung"));
        c.replays += json_integer_value(json_object_get(entry, "replays"));
        c.highest = rung > c.highest ? rung : c.highest;
        json_decref(entry);
    }
    fclose(in);
    free(path);
    return c;
}

static runs_metrics metrics_of(const char *top, const char *run)
{
    char *folder = workfolder_path(top, run);
    runs_metrics m = runs_read_metrics(folder);
    free(folder);
    assert_int_equal(m.count, STEPS);
    return m;
}

static void train(const char *top, const char *run, const char *keys)
{
    free(runs_train_well(LIMIT, 2, "%s/run.yaml run.folder=%s/%s %s", top, top, run, keys));
}

#define LITTLE "model.expert_capacity=0.4 model.expert_spill=1"

/* Room for all from the beginning, and too little at first: losses and norms differ by rounding, and steps, samples and
 * rates do not. */
static void a_step_without_room_is_the_step_that_has_it(void **state)
{
    const char *top = *state;
    train(top, "room", "model.expert_capacity=4");
    train(top, "little", LITTLE);
    runs_metrics room = metrics_of(top, "room"), little = metrics_of(top, "little");
    climbs climbed = read_climbs(top, "little");
    assert_int_equal(read_climbs(top, "room").replays, 0);
    assert_true(climbed.replays > 0);
    assert_int_equal(climbed.highest, 2);
    print_message("%d steps, %d of them played again: losses within %.1e, norms within %.1e\n", STEPS,
                  (int)climbed.replays, runs_loss_error(&little, &room), runs_norm_error(&little, &room));
    assert_true(runs_loss_error(&little, &room) < 1e-4);
    for (int i = 0; i < STEPS; i++) {
        assert_false(little.step[i].skipped);
        assert_true(little.step[i].lr == room.step[i].lr);
    }
}

static void assert_same(const char *top, const char *run, const char *other)
{
    runs_metrics a = metrics_of(top, run), b = metrics_of(top, other);
    char *x = workfolder_path(top, run), *y = workfolder_path(top, other), difference[256];
    assert_true(runs_same_metrics(&a, &b));
    assert_true(runs_compare_checkpoints(difference, sizeof difference, x, y) > 0);
    if (*difference)
        fail_msg("%s and %s: checkpoints differ in %s", run, other, difference);
    free(x);
    free(y);
}

/* The rung is in the checkpoint: otherwise the second part would begin below, and round otherwise. */
static void stopped_and_killed_runs_go_on_bit_for_bit(void **state)
{
    const char *top = *state;
    char *keys = must_format(LITTLE " train.steps=%d", STOP), *folder = workfolder_path(top, "killed");
    train(top, "parts", keys);
    train(top, "parts", LITTLE);
    assert_same(top, "parts", "little");
    char *arguments =
        must_format("%s/run.yaml run.folder=%s/killed checkpoint.every=2 checkpoint.keep=2 " LITTLE, top, top);
    for (int i = 0; i < 3; i++) {
        launch *l = runs_start(LIMIT, 2, arguments);
        if (runs_wait_for_step(folder, 4 + 6 * i, 60)) {
            int victim = runs_process(folder, i % 2);
            if (victim > 0)
                kill(victim, SIGKILL);
        }
        launch_result r = launch_finish(l);
        launch_free(&r);
    }
    free(runs_train_well(LIMIT, 2, "%s", arguments));
    assert_same(top, "killed", "little");
    free(arguments);
    free(folder);
    free(keys);
}

/* Tensor ranks and stages generate what one rank does, with the weights of a run whose ranks divided the experts. */
static void ranks_generate_what_one_does(void **state)
{
    static const struct {
        int ranks;
        const char *layout;
    } rows[] = {{2, "--tensor 2"}, {4, "--tensor 2 --pipeline 2"}};
    const char *top = *state;
    char *program = launch_beside("../phalanx"), *one = NULL;
    for (int i = -1; i < 2; i++) {
        char *mpirun = i < 0 ? must_strdup("") : launch_mpirun(rows[i].ranks);
        launch_result r = launch_run(
            LIMIT,
            "exec %s %s generate --checkpoint %s/little --tokenizer bytes --prompt ab --tokens 12 --temperature 0 %s",
            mpirun, program, top, i < 0 ? "" : rows[i].layout);
        if (r.status != 0)
            fail_msg("%s", r.err);
        if (i < 0)
            one = must_strdup(r.out);
        assert_string_equal(r.out, one);
        launch_free(&r);
        free(mpirun);
    }
    free(one);
    free(program);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_without_room_is_the_step_that_has_it),
        cmocka_unit_test(stopped_and_killed_runs_go_on_bit_for_bit),
        cmocka_unit_test(ranks_generate_what_one_does),
    };
    return cmocka_run_group_tests(tests, write_config, workfolder_teardown);
}
