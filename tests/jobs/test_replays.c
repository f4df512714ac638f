/* Experts that ranks divide: no token is dropped. A step that lacks room is played again on a higher bucket and is then
 * the step that a run with room makes; what is stopped or killed among such steps goes on, bit for bit. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/plans.h"
#include "tests/jobs/routed.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { STEPS = 24, STOP = 7, LIMIT = 200 };

/* A fresh router of four experts, of which a token takes one, on two ranks: most tokens may choose one rank's. */
static int write_config(void **state)
{
    if (workfolder_setup(state))
        return -1;
    const char *top = *state;
    AUTO_FREE char *data = workfolder_path(top, "data"), *path = workfolder_path(top, "run.yaml");
    runs_write_data(data, 131, 40000, 1);
    char *text = must_format(
        "model: {architecture: mixtral, layers: 3, hidden_size: 32, heads: 4, kv_heads: 2, vocab_size: 257, "
        "max_sequence: 32, experts: 4, experts_per_token: 1, expert_ffn_size: 24, router_bias_rate: 0.01}\n"
        "data: {train: %s, shuffle: true}\n"
        "train: {steps: %d, sequence: 32, micro_batch: 2, global_batch: 8, precision: fp32, device: cpu, threads: 1, "
        "dropout: 0.1}\n"
        "optimizer: {lr: 2e-3, schedule: constant, warmup: 2}\n"
        "parallel: {expert: 2}\n"
        "checkpoint: {every: 0, keep: 0}\n"
        "run: {tensorboard: false, hang_seconds: 60, log_every: 1, loads_every: 1}\n",
        data, STEPS);
    runs_write_text(path, text);
    free(text);
    return 0;
}

/* How often the steps of a run were played on each bucket, and in all again, by metrics.jsonl. */
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
        int64_t bucket = json_integer_value(json_object_get(entry, "rung"));
        c.replays += json_integer_value(json_object_get(entry, "replays"));
        c.highest = bucket > c.highest ? bucket : c.highest;
        json_decref(entry);
    }
    fclose(in);
    free(path);
    return c;
}

static runs_metrics metrics_of(const char *top, const char *run)
{
    AUTO_FREE char *folder = workfolder_path(top, run);
    runs_metrics m = runs_read_metrics(folder);
    assert_int_equal(m.count, STEPS);
    return m;
}

static void train(const char *top, const char *run, const char *keys)
{
    free(runs_train_well(LIMIT, 2, "%s/run.yaml run.folder=%s/%s %s", top, top, run, keys));
}

#define LITTLE "model.expert_capacity=0.4 model.expert_spill=1"

/* A run with too little room at first has the steps, samples and rates of one with room for all, and losses and norms
 * that differ by rounding. */
static void assert_climbed(const char *top, const char *run)
{
    runs_metrics room = metrics_of(top, "room"), little = metrics_of(top, run);
    climbs climbed = read_climbs(top, run);
    assert_true(climbed.replays > 0);
    assert_int_equal(climbed.highest, 2);
    print_message("%s: %d steps, %d of them played again: losses within %.1e, norms within %.1e\n", run, STEPS,
                  (int)climbed.replays, runs_loss_error(&little, &room), runs_norm_error(&little, &room));
    assert_true(runs_loss_error(&little, &room) < 1e-4);
    for (int i = 0; i < STEPS; i++) {
        assert_false(little.step[i].skipped);
        assert_true(little.step[i].lr == room.step[i].lr);
    }
}

TEST(a_step_without_room_is_the_step_that_has_it)
{
    const char *top = *state;
    train(top, "room", "model.expert_capacity=4 parallel.expert_dispatch=gather");
    train(top, "little", LITTLE " parallel.expert_dispatch=gather");
    train(top, "slots", "model.expert_capacity=0.3 model.expert_spill=1 parallel.expert_dispatch=slots");
    assert_int_equal(read_climbs(top, "room").replays, 0);
    assert_climbed(top, "little");
    assert_climbed(top, "slots");
}

/* Each token of a step counts once, of whichever bucket the step was played on last, and once more of none. */
TEST(every_step_counts_each_token_once)
{
    const char *top = *state;
    enum { CHOICES = 8 * 32 };
    char line[4096], *path = must_format("%s/little/loads.jsonl", top);
    FILE *in = fopen(path, "r");
    int lines = 0;
    assert_non_null(in);
    for (; fgets(line, sizeof line, in); lines++) {
        json_t *entry = json_loads(line, 0, NULL), *layers = json_object_get(entry, "loads"), *layer, *count;
        size_t i, e;
        assert_int_equal(json_integer_value(json_object_get(entry, "step")), lines + 1);
        assert_int_equal(json_array_size(layers), 3);
        json_array_foreach(layers, i, layer)
        {
            int64_t sum = 0;
            assert_int_equal(json_array_size(layer), 4);
            json_array_foreach(layer, e, count) sum += json_integer_value(count);
            assert_int_equal(sum, CHOICES);
        }
        json_decref(entry);
    }
    assert_int_equal(lines, STEPS);
    fclose(in);
    free(path);
}

/* What a run says of its loads foretells how often its steps are played again. */
TEST(a_run_s_own_loads_foretell_its_replays)
{
    const char *top = *state;
    AUTO_FREE char *phalanx = launch_beside("../phalanx");
    launch_result r = launch_run(60,
                                 "%s plan %s/run.yaml --ranks 2 --json --load %s/little/loads.jsonl " LITTLE
                                 " parallel.expert_dispatch=gather",
                                 phalanx, top, top);
    assert_int_equal(r.status, 0);
    json_t *planned = json_loads(r.out, 0, NULL), *load = json_object_get(planned, "load");
    const double foretold = STEPS * json_number_value(json_object_get(load, "replays")),
                 seen = (double)read_climbs(top, "little").replays;
    print_message("replays of %d steps: %.1f foretold, %.0f seen\n", STEPS, foretold, seen);
    assert_string_equal(json_string_value(json_object_get(load, "kind")), "trace");
    assert_int_equal(json_integer_value(json_object_get(load, "draws")), STEPS);
    assert_true(foretold > seen / 2 && foretold < seen * 2);
    json_decref(planned);
    launch_free(&r);
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

/* The bucket is in the checkpoint: otherwise the second part would begin below, and round otherwise. */
TEST(a_stopped_run_goes_on_bit_for_bit)
{
    const char *top = *state;
    AUTO_FREE char *keys = must_format(LITTLE " train.steps=%d", STOP);
    train(top, "parts", keys);
    train(top, "parts", LITTLE);
    assert_same(top, "parts", "little");
}

static runs_metrics balance(const char *top, const char *run, int ranks, int micro_batch, const char *over)
{
    free(runs_train_well(LIMIT, ranks,
                         "%s/run.yaml run.folder=%s/%s parallel.expert=1 train.dropout=0 train.steps=4 "
                         "train.micro_batch=%d model.router_bias_rate=0 model.router_loss=0.5 "
                         "model.router_loss_over=%s",
                         top, top, run, micro_batch, over));
    AUTO_FREE char *folder = workfolder_path(top, run);
    runs_metrics m = runs_read_metrics(folder);
    assert_int_equal(m.count, 4);
    return m;
}

/* Where a step is one micro-batch, two data ranks with the loads of both are one rank with all samples; loads of each
 * rank's own are not. */
TEST(loads_of_a_batch_are_those_of_all_data_ranks)
{
    const char *top = *state;
    runs_metrics one = balance(top, "batch-one", 1, 8, "batch"), two = balance(top, "batch-two", 2, 4, "batch"),
                 own = balance(top, "layer-two", 2, 4, "layer"), all = balance(top, "layer-one", 1, 8, "layer");
    print_message("norms of two ranks within %.1e, with loads of their own within %.1e\n", runs_norm_error(&two, &one),
                  runs_norm_error(&own, &one));
    assert_true(runs_norm_error(&two, &one) < 1e-5);
    assert_true(runs_norm_error(&own, &one) > 1e-3);
    assert_true(runs_norm_error(&all, &one) < 1e-5); /* and of one micro-batch, those so far are the layer's */
}

static char *convert(const char *top, const char *from, const char *to, const char *more)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r =
        launch_run(LIMIT, "exec %s convert --from %s/%s --to %s/%s %s", program, top, from, top, to, more);
    char *said = must_strdup(r.err);
    if (r.status != 0)
        fail_msg("%s", r.err);
    launch_free(&r);
    return said;
}

/* A checkpoint keeps them in fp32, whatever the others become; a folder of a family without them says that it leaves
 * them out, and a run that begins with it has them at 0. */
TEST(biases_of_experts_stay_in_checkpoints_and_leave_for_folders_with_a_line)
{
    const char *top = *state;
    char *run = workfolder_path(top, "little"), *other = workfolder_path(top, "narrow"), difference[256];
    char *said = convert(top, "little", "narrow", "--format phalanx --dtype bf16");
    assert_string_equal(said, "");
    assert_int_equal(runs_compare_biases(difference, sizeof difference, run, other), 3);
    assert_string_equal(difference, "");
    free(said);
    said = convert(top, "little", "folder", "");
    assert_non_null(strstr(said, "no bias of its experts' choice (model.router_bias_rate): it is left out"));
    AUTO_FREE char *keys = must_format("model.from=%s/folder train.steps=1 model.router_bias_rate=1e-30", top);
    train(top, "from", keys);
    free(said);
    free(other);
    free(run);
}

/* Tensor ranks and stages generate what one rank does, with the weights of a run whose ranks divided the experts. */
TEST(ranks_generate_what_one_does)
{
    static const struct {
        int ranks;
        const char *layout;
    } rows[] = {{2, "--tensor 2"}, {4, "--tensor 2 --pipeline 2"}};
    const char *top = *state;
    AUTO_FREE char *program = launch_beside("../phalanx"), *one = NULL;
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
}

/* ---- routers that send tokens where they like ------------------------------------------------------------------- */

/* Writes top/NAME.yaml, its data and the folder that it starts from. */
static void write_routed(const char *top, const char *name, routed_to to, int active, const char *pattern)
{
    AUTO_FREE char *data = must_format("%s/%s-data", top, name), *from = must_format("%s/%s-from", top, name);
    AUTO_FREE char *path = must_format("%s/%s.yaml", top, name);
    const bool plain = to == ROUTED_ANYWHERE;
    routed_write(from, to, plain ? 1 : 3, active, plain);
    routed_write_data(data, pattern);
    char *text = must_format("model: {from: %s}\n"
                             "data: {train: %s, validation: %s, shuffle: false}\n"
                             "train: {steps: %d, sequence: %d, micro_batch: %d, global_batch: %d, precision: fp32, "
                             "device: cpu, threads: 1}\n"
                             "optimizer: {lr: %s, schedule: constant, warmup: 2}\n"
                             "checkpoint: {every: 0, keep: 0}\n"
                             "evaluate: {every: %d, batches: 1}\n"
                             "run: {tensorboard: false, hang_seconds: 60, log_every: 1}\n",
                             from, data, data, (int)strlen(pattern), ROUTED_SEQUENCE, plain ? 4 : 1, ROUTED_BATCH,
                             plain ? "0" : "2e-3", plain);
    runs_write_text(path, text);
    free(text);
}

static runs_metrics train_routed(const char *top, const char *name, const char *run, int ranks, const char *keys)
{
    AUTO_FREE char *folder = workfolder_path(top, run);
    free(runs_train_well(LIMIT, ranks, "%s/%s.yaml run.folder=%s %s", top, name, folder, keys));
    const runs_metrics m = runs_read_metrics(folder);
    return m;
}

#define TIGHT "parallel.expert=2 model.expert_capacity=0.25 model.expert_spill=1"
#define ROOMY "parallel.expert=2 model.expert_capacity=1.25 model.expert_spill=0"
#define AMPLE "parallel.expert=2 model.expert_capacity=4"

/* Whatever routers do, nothing is dropped: losses are those of one rank, on the first bucket and on the last, whose
 * runs use the memory and send the bytes that were planned. */
TEST(the_worst_routing_trains_what_one_rank_does)
{
    static const struct {
        const char *name;
        routed_to to;
        int active;
        const char *pattern;
    } rows[] = {{"one-expert", ROUTED_TO_ONE_EXPERT, 1, "mmmmmm"},
                {"one-rank", ROUTED_TO_ONE_RANK, 2, "mmmmmm"},
                {"alternating", ROUTED_BY_CLASS, 2, "ababab"},
                {"now-and-then", ROUTED_BY_CLASS, 2, "mmamba"}};
    const char *top = *state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *name = rows[i].name;
        char *run[] = {must_format("%s-one", name), must_format("%s-tight", name), must_format("%s-ample", name)};
        write_routed(top, name, rows[i].to, rows[i].active, rows[i].pattern);
        const int steps = (int)strlen(rows[i].pattern);
        const runs_metrics one = train_routed(top, name, run[0], 1, "");
        const runs_metrics tight = train_routed(top, name, run[1], 2, TIGHT);
        const runs_metrics ample = train_routed(top, name, run[2], 2, AMPLE);
        const climbs climbed = read_climbs(top, run[1]);
        print_message("%s: losses within %.1e and %.1e of one rank's, norms within %.1e and %.1e; %d replays\n", name,
                      runs_loss_error(&tight, &one), runs_loss_error(&ample, &one), runs_norm_error(&tight, &one),
                      runs_norm_error(&ample, &one), (int)climbed.replays);
        assert_int_equal(one.count, steps);
        assert_true(runs_loss_error(&tight, &one) < 1e-5 && runs_loss_error(&ample, &one) < 1e-5);
        assert_true(runs_norm_error(&tight, &one) < 1e-4 && runs_norm_error(&ample, &one) < 1e-4);
        assert_int_equal(climbed.highest, 2);
        assert_true(climbed.replays > 0 && read_climbs(top, run[2]).replays == 0);
        for (int k = 0; k < 3; k++) {
            AUTO_FREE char *folder = workfolder_path(top, run[k]);
            const plans_verdict v = plans_compare(folder, k ? 2 : 1, steps);
            if (v.wrong)
                fail_msg("%s: %s", run[k], v.what);
            free(run[k]);
        }
    }
}

/* A rate at which roundings do not grow: with 2e-3 two data ranks without experts' ranks are 5e-4 apart, too. */
#define SLOW "train.steps=100 optimizer.lr=5e-4 optimizer.warmup=10"

/* A fresh router's first steps, in which its loads are the most uneven. */
TEST(a_fresh_router_drops_nothing)
{
    enum { FRESH = 100 };
    const char *top = *state;
    const runs_metrics one = train_routed(top, "run", "fresh-one", 1, SLOW " parallel.expert=1");
    const runs_metrics two = train_routed(top, "run", "fresh-two", 2, SLOW " " LITTLE);
    const climbs climbed = read_climbs(top, "fresh-two");
    AUTO_FREE char *folder = workfolder_path(top, "fresh-two");
    const plans_verdict v = plans_compare(folder, 2, FRESH);
    print_message("%d steps, %d replays: losses within %.1e of one rank's\n", FRESH, (int)climbed.replays,
                  runs_loss_error(&two, &one));
    assert_int_equal(one.count, FRESH);
    assert_true(climbed.replays > 0);
    assert_true(runs_loss_error(&two, &one) < 1e-4);
    if (v.wrong)
        fail_msg("%s", v.what);
}

/* Waits until the job has said that it has done so many steps, or more; false where it has ended. */
static bool reaches(launch *l, int step)
{
    bool there = false;
    while (!there && !launch_ended(l)) {
        AUTO_FREE char *said = launch_output(l);
        for (int i = step; i <= STEPS && !there; i++) {
            AUTO_FREE char *line = must_format(" %d/%d ", i, STEPS);
            there = strstr(said, line) != NULL;
        }
        usleep(2000);
    }
    return there;
}

/* Steps 3 and 22 are played again, and between them the run goes down to the first bucket: the kills are before, within
 * and behind both, as far as it does not end before. */
TEST(killed_runs_go_on_bit_for_bit)
{
    static const char pattern[] = "mmammmmmmmmmmmmmmmmmmamm";
    static const int steps[] = {1, 2, 3, 5, 7, 9, 12, 15, 19, 21};
    const char *top = *state;
    AUTO_FREE char *folder = workfolder_path(top, "killed");
    char *arguments =
        must_format("%s/kills.yaml run.folder=%s checkpoint.every=2 checkpoint.keep=2 " ROOMY, top, folder);
    write_routed(top, "kills", ROUTED_BY_CLASS, 2, pattern);
    train_routed(top, "kills", "alive", 2, ROOMY);
    assert_int_equal(read_climbs(top, "alive").replays, 2);
    int kills = 0;
    for (bool over = false; kills < 10 && !over;) {
        launch *l = runs_start(LIMIT, 2, arguments);
        const int victim = reaches(l, steps[kills]) ? runs_process(folder, kills % 2) : 0;
        const bool killed = victim > 0 && kill(victim, SIGKILL) == 0;
        launch_result r = launch_finish(l);
        over = r.status == 0; /* its last steps were done before one of them was heard of */
        assert_true(killed || over);
        kills += !over;
        launch_free(&r);
    }
    print_message("killed %d times\n", kills);
    assert_true(kills > 6);
    free(runs_train_well(LIMIT, 2, "%s", arguments));
    assert_same(top, "killed", "alive");
    free(arguments);
}

/* ---- with everything else ---------------------------------------------------------------------------------------- */

#define GENTLE "train.steps=12 train.dropout=0 optimizer.warmup=4 "

/* Updates of experts' matrices, scaled losses, growing batches and verified micro-batches, whoever divides experts. */
TEST(whatever_updates_experts_their_ranks_do_not_matter)
{
    static const struct {
        const char *name, *keys;
        double loss; /* limit */
    } rows[] = {
        {"muon", "optimizer.lr=5e-4 optimizer.name=muon", 1e-5},
        {"muon-stacked", "optimizer.lr=5e-4 optimizer.name=muon model.architecture=granitemoe", 1e-5},
        {"muon-clipped", "optimizer.lr=5e-4 optimizer.name=muon optimizer.qk_clip=0.01 model.architecture=granitemoe",
         1e-5},
        {"lion", "optimizer.lr=1e-4 optimizer.name=lion", 1e-5},
        {"fp16", "optimizer.lr=5e-4 train.precision=fp16 train.loss_scale=4096", 1e-4},
        {"ramp", "optimizer.lr=5e-4 train.batch_ramp=[[0,4],[5,8]]", 1e-5},
        {"verify", "optimizer.lr=5e-4 run.verify_every=3", 1e-5},
    };
    const char *top = *state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *run[] = {must_format("%s-one", rows[i].name), must_format("%s-two", rows[i].name)};
        AUTO_FREE char *alone = must_format(GENTLE "parallel.expert=1 %s", rows[i].keys);
        AUTO_FREE char *divided = must_format(GENTLE LITTLE " %s", rows[i].keys);
        const runs_metrics one = train_routed(top, "run", run[0], 1, alone);
        const runs_metrics two = train_routed(top, "run", run[1], 2, divided);
        print_message("%s: losses within %.1e\n", rows[i].name, runs_loss_error(&two, &one));
        assert_int_equal(one.count, 12);
        assert_true(runs_loss_error(&two, &one) < rows[i].loss);
        assert_true(read_climbs(top, run[1]).replays > 0);
        free(run[0]);
        free(run[1]);
    }
}

/* Two, four and one ranks divide the experts in turn, with copies of checkpoints in memory. */
TEST(a_run_goes_on_with_experts_divided_otherwise)
{
    const char *top = *state;
    const runs_metrics one = train_routed(top, "run", "constant", 1, GENTLE "optimizer.lr=5e-4 parallel.expert=1");
    train_routed(top, "run", "elastic", 2,
                 "train.dropout=0 optimizer.warmup=4 optimizer.lr=5e-4 train.steps=4 " LITTLE
                 " checkpoint.memory_every=1");
    train_routed(top, "run", "elastic", 4,
                 "train.dropout=0 optimizer.warmup=4 optimizer.lr=5e-4 train.steps=8 " LITTLE
                 " parallel.expert=4 checkpoint.memory_every=1");
    const runs_metrics all = train_routed(top, "run", "elastic", 1, GENTLE "optimizer.lr=5e-4 parallel.expert=1");
    print_message("2, 4 and 1 ranks: losses within %.1e\n", runs_loss_error(&all, &one));
    assert_int_equal(all.count, 12);
    assert_true(runs_loss_error(&all, &one) < 1e-5);
}

/* Each rank copies the dense model's mlp into its own experts: one rank, which has all of them, learns the same. Alike
 * experts give routers no gradient but roundings, which AdamW would make as large as any: hence SGD. */
TEST(ranks_that_divide_experts_begin_as_the_dense_model)
{
    static const char more[] = "data: {train: tests/golden/models/train, shuffle: false}\n"
                               "train: {steps: 6, sequence: 32, micro_batch: 2, global_batch: 8, precision: fp32, "
                               "device: cpu, threads: 1}\n"
                               "optimizer: {name: sgd, lr: 0.05}\n"
                               "run: {tensorboard: false, hang_seconds: 60}\n";
    static const char *const models[] = {
        "", ", upcycle: true, architecture: qwen3_moe, experts: 5, router_renormalise: true"};
    const char *top = *state;
    for (int i = 0; i < 2; i++) {
        char *path = workfolder_path(top, i ? "upcycle.yaml" : "dense.yaml");
        AUTO_FREE char *text = must_format("model: {from: tests/golden/models/qwen3%s}\n%s", models[i], more);
        runs_write_text(path, text);
        free(path);
    }
    const runs_metrics dense = train_routed(top, "dense", "upcycle-dense", 1, "");
    const runs_metrics one = train_routed(top, "upcycle", "upcycle-one", 1, "");
    const runs_metrics two = train_routed(top, "upcycle", "upcycle-two", 2, "parallel.expert=2 parallel.zero=3");
    assert_int_equal(one.count, 6);
    assert_true(fabs(two.step[0].loss - dense.step[0].loss) < 1e-6 * dense.step[0].loss);
    assert_true(runs_loss_error(&two, &one) < 1e-5);
}

/* ---- dropping ---------------------------------------------------------------------------------------------------- */

static double dropped_share(const char *top, const char *run)
{
    char *path = must_format("%s/%s/metrics.jsonl", top, run), line[4096];
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    assert_non_null(fgets(line, sizeof line, in));
    json_t *entry = json_loads(line, 0, NULL), *share = json_object_get(entry, "dropped_share");
    assert_true(json_is_number(share));
    const double value = json_number_value(share);
    json_decref(entry);
    fclose(in);
    free(path);
    return value;
}

/* Of 256 tokens with 2 of 4 experts each, a rank of two has room for 0.8 of 256 rows, up to a multiple of four. */
enum { ASSIGNMENTS = 512, DROP_ROOM = 208 };

/* The rows that are dropped are those that a plain model drops; none is unless that is asked for, and in evaluation. */
TEST(what_is_dropped_is_what_a_plain_model_drops)
{
    const char *top = *state;
    AUTO_FREE char *from = workfolder_path(top, "drop-from"), *data = workfolder_path(top, "drop-data");
    int some, none;
    write_routed(top, "drop", ROUTED_ANYWHERE, 2, "mm");
    const double plain = routed_loss(&some, from, data, 2, DROP_ROOM);
    const double whole = routed_loss(&none, from, data, 2, ASSIGNMENTS);
    const runs_metrics one = train_routed(top, "drop", "drop-one", 1, "");
    const runs_metrics two = train_routed(top, "drop", "drop-two", 2,
                                          "parallel.expert=2 model.expert_drop=true model.expert_capacity=0.8 "
                                          "model.expert_spill=0");
    print_message("%d of %d dropped: loss %.8f and %.8f, none: %.8f and %.8f\n", some, ASSIGNMENTS, two.step[0].loss,
                  plain, one.step[0].loss, whole);
    assert_true(some > 10 && none == 0);
    assert_true(fabs(whole - plain) > 1e-4 * plain);
    assert_true(fabs(two.step[0].loss - plain) < 1e-6 * plain);
    assert_true(fabs(one.step[0].loss - whole) < 1e-6 * whole);
    assert_true(fabs(dropped_share(top, "drop-two") - (double)some / ASSIGNMENTS) < 1e-9);
    assert_true(one.evaluations > 0 && two.evaluations == one.evaluations);
    assert_true(fabs(two.evaluation[0].loss - one.evaluation[0].loss) < 1e-6 * whole);
}

TEST_MAIN(write_config, workfolder_teardown)
