/* What may not change the model that is trained: how a batch is split into micro-batches, the order of its samples and
 * of experts and heads, rows of the vocabulary that have no probability, in how many documents tokens come, and which
 * process is which rank. Losses, those beside them, loads of experts, norms, gradients and updated weights are
 * compared; where bits are promised, bits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/indexed.h"
#include "engine/system/atomic.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/golden.h"
#include "tests/jobs/invariances.h"
#include "tests/jobs/parity.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { SEQUENCE = 32, BATCH = 8, STEPS = 2, SAMPLES = BATCH * STEPS, IDS = 97, PADDING = 37 };
static const double LOSS = 2e-6, NORM = 5e-6, WEIGHTS = 1e-5;

#define EXPERTS "model.router_loss=0.1 model.router_z_loss=0.01 "
#define MOVED   EXPERTS "model.router_bias_rate=0.03 "

/* Each is run twice: with `keys` and the first of a pair, and with `keys` and the second. */
static const struct {
    const char *what, *model, *keys, *pair[2], *data[2];
    enum { ROUNDED, BITS, PARTS } how; /* PARTS: another model, which must be noticed */
    int turn;                          /* invariances_turn of the second, or NONE, PADDED */
} cases[] = {
#define NONE   -1
#define PADDED -2
#define SPLIT(model, keys, size)                                                                                       \
    {                                                                                                                  \
        "micro-batches of " size ", not 2", model, keys, {"", "train.micro_batch=" size}, {"plain", "plain"}, ROUNDED, \
            NONE                                                                                                       \
    }
    SPLIT("llama", "data.document_mask=true", "1"),
    SPLIT("mixtral", EXPERTS, "4"),
    SPLIT("deepseek-v3-mtp", MOVED, "8"),
    SPLIT("gpt-oss", EXPERTS "train.dropout=0.1", "1"),
    {"loads over micro-batches of 4, not 2",
     "mixtral",
     EXPERTS "model.router_loss_over=layer",
     {"", "train.micro_batch=4"},
     {"plain", "plain"},
     PARTS,
     NONE},
    {"samples of a batch in reverse", "llama", "", {"", ""}, {"plain", "reversed"}, ROUNDED, NONE},
    {"samples of a batch in reverse", "deepseek-v3-mtp", MOVED, {"", ""}, {"plain", "reversed"}, ROUNDED, NONE},
    {"samples of a batch in reverse", "gpt-oss", EXPERTS, {"", ""}, {"plain", "reversed"}, ROUNDED, NONE},
    {"samples of another batch", "llama", "", {"", ""}, {"plain", "other"}, PARTS, NONE},
    {"experts in reverse", "mixtral", EXPERTS, {"", ""}, {"plain", "plain"}, ROUNDED, INVARIANCES_EXPERTS},
    {"experts in reverse", "deepseek-v3-mtp", MOVED, {"", ""}, {"plain", "plain"}, ROUNDED, INVARIANCES_EXPERTS},
    {"experts in reverse", "gpt-oss", EXPERTS, {"", ""}, {"plain", "plain"}, ROUNDED, INVARIANCES_EXPERTS},
    {"experts in reverse, but not routers",
     "mixtral",
     "",
     {"", ""},
     {"plain", "plain"},
     PARTS,
     INVARIANCES_EXPERTS_BUT_ROUTERS},
    {"heads in reverse", "llama", "", {"", ""}, {"plain", "plain"}, ROUNDED, INVARIANCES_HEADS},
    {"heads in reverse", "deepseek-v3-mtp", MOVED, {"", ""}, {"plain", "plain"}, ROUNDED, INVARIANCES_HEADS},
    {"heads in reverse", "gpt-oss", EXPERTS, {"", ""}, {"plain", "plain"}, ROUNDED, INVARIANCES_HEADS},
    {"ids without a probability", "gpt2", "", {"", ""}, {"plain", "plain"}, ROUNDED, PADDED},
    {"documents, not masked", "llama", "", {"", ""}, {"plain", "split"}, BITS, NONE},
    {"a mask of one document", "mixtral", EXPERTS, {"", "data.document_mask=true"}, {"plain", "plain"}, BITS, NONE},
    {"masked documents of one sample each",
     "deepseek-v3-mtp",
     MOVED,
     {"", "data.document_mask=true"},
     {"plain", "each"},
     BITS,
     NONE},
    {"masked documents", "llama", "", {"", "data.document_mask=true"}, {"plain", "split"}, PARTS, NONE},
};

enum { CASES = sizeof cases / sizeof *cases };

/* Layouts that are played by ranks of other numbers. */
static const struct {
    const char *model, *keys;
} layouts[] = {
    {"mixtral", EXPERTS "parallel.expert=2 parallel.expert_dispatch=slots parallel.tensor=2 parallel.pipeline=2"},
    {"llama", "parallel.context=2 parallel.zero=3"},
    {"deepseek-v3-mtp", MOVED "parallel.expert=4 parallel.zero=2 parallel.tensor=2"},
};

enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* ---- data -------------------------------------------------------------------------------------------------------- */

/* Every sample begins with 0, so that it ends with 0 whatever comes after it. */
static void write_data(const char *top, const char *name, const int order[SAMPLES], int document)
{
    int32_t tokens[SAMPLES * SEQUENCE + 1];
    AUTO_FREE char *prefix = workfolder_path(top, name);
    const int count = SAMPLES * SEQUENCE + 1;
    for (int s = 0; s < SAMPLES; s++)
        for (int i = 0, last = order[s]; i < SEQUENCE; i++) {
            last = i % 3 == 1 ? (last * 7 + order[s] * 5 + i) % (IDS - 1) : (last * 3 + 1) % (IDS - 1);
            tokens[s * SEQUENCE + i] = i == 0 ? 0 : last + 1;
        }
    tokens[count - 1] = 0;
    indexed_writer *w;
    MUST(indexed_writer_open(&w, prefix, IDS) == STATUS_OK, "%s", status_message());
    for (int at = 0; at < count; at += document)
        MUST(indexed_writer_document(w, tokens + at, at + document < count ? document : count - at) == STATUS_OK, "%s",
             status_message());
    MUST(indexed_writer_close(w) == STATUS_OK, "%s", status_message());
}

static void write_all_data(const char *top)
{
    int plain[SAMPLES], reversed[SAMPLES], other[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        plain[i] = i;
        reversed[i] = i / BATCH * BATCH + BATCH - 1 - i % BATCH;
        other[i] = i == 3 ? SAMPLES : i;
    }
    write_data(top, "plain", plain, SAMPLES * SEQUENCE + 1);
    write_data(top, "reversed", reversed, SAMPLES * SEQUENCE + 1);
    write_data(top, "other", other, SAMPLES * SEQUENCE + 1);
    write_data(top, "split", plain, 11);
    write_data(top, "each", plain, SEQUENCE);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static char *folder_of(const char *top, int index, int second)
{
    return must_format("%s/case-%d-%d", top, index, second);
}

/* The folder of weights of a case's run. */
static char *weights_of(const char *top, int index, int second)
{
    char *folder = must_format("%s/%s", GOLDEN_MODELS, cases[index].model);
    if (cases[index].turn == NONE || (cases[index].turn != PADDED && !second))
        return folder;
    char *made = must_format("%s/weights-%d-%d", top, index, second);
    if (cases[index].turn == PADDED)
        invariances_pad(made, folder, second ? PADDING : 0);
    else {
        AUTO_FREE char *from = must_format("%s/model.safetensors", folder),
                       *to = must_format("%s/model.safetensors", made),
                       *copy = must_format("cp %s/config.json %s", folder, made);
        MUST(atomic_make_folders(made) == STATUS_OK && system(copy) == 0, "%s", status_message());
        invariances_reverse(to, from, folder, (invariances_turn)cases[index].turn);
    }
    free(folder);
    return made;
}

static void put_line(FILE *list, const char *top, const char *weights, const char *data, const char *keys, char *folder)
{
    fprintf(list, "%s/run.yaml model.from=%s data.train=%s/%s %s run.folder=%s debug.gradients=%s/gradients\n", top,
            weights, top, data, keys, folder, folder);
    free(folder);
}

static void play_layouts(const char *top, const char *program)
{
    FILE *list = parity_open_list(top, program);
    for (int i = 0; i < LAYOUTS; i++) {
        AUTO_FREE char *weights = must_format("%s/%s", GOLDEN_MODELS, layouts[i].model);
        put_line(list, top, weights, "plain", layouts[i].keys, must_format("%s/%s-of-%d", top, program, i));
    }
    fclose(list);
    parity_play(top, program, 4, program, LAYOUTS);
}

static int train_all(void **state)
{
    if (workfolder_setup(state))
        return -1;
    const char *top = *state;
    AUTO_FREE char *path = workfolder_path(top, "run.yaml");
    char *text = must_format(
        "data: {shuffle: false}\n"
        "train: {steps: %d, sequence: %d, micro_batch: 2, global_batch: %d, precision: fp32, device: cpu, threads: 1}\n"
        "optimizer: {lr: 1e-3, schedule: constant, epsilon: 1e-4}\n"
        "checkpoint: {every: 0, resume: never}\n"
        "evaluate: {every: 0}\n"
        "run: {tensorboard: false}\n",
        STEPS, SEQUENCE, BATCH);
    runs_write_text(path, text);
    free(text);
    write_all_data(top);
    FILE *list = parity_open_list(top, "cases");
    for (int i = 0; i < 2 * CASES; i++) {
        const int index = i / 2, second = i % 2;
        AUTO_FREE char *weights = weights_of(top, index, second),
                       *keys = must_format("%s %s", cases[index].keys, cases[index].pair[second]);
        put_line(list, top, weights, cases[index].data[second], keys, folder_of(top, index, second));
    }
    fclose(list);
    parity_play(top, "rank_playlist", 1, "cases", 2 * CASES);
    play_layouts(top, "rank_playlist");
    play_layouts(top, "rank_renamed");
    return 0;
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

/* Gives the second run's gradients the first one's order and ids. */
static bool turn_back(const char *top, int index, const char *folder)
{
    AUTO_FREE char *dump = must_format("%s/gradients/gradients.safetensors", folder),
                   *weights = must_format("%s/%s", GOLDEN_MODELS, cases[index].model),
                   *made = must_format("%s/turned-%d.safetensors", top, index);
    bool good = true;
    if (cases[index].turn == PADDED)
        good = invariances_cut(made, dump, PADDING);
    else
        invariances_reverse(made, dump, weights, (invariances_turn)cases[index].turn);
    return rename(made, dump) == 0 && good;
}

TEST(nothing_but_rounding_depends_on_order_split_and_padding)
{
    const char *top = *state;
    int wrong = 0;
    printf(
        "proof: | model | changed | losses off by | norms | gradients (1: allowed) | weights |\nproof: | --- | --- | "
        "--- | --- | --- | --- |\n");
    for (int i = 0; i < CASES; i++) {
        AUTO_FREE char *one = folder_of(top, i, 0), *two = folder_of(top, i, 1), *a = must_format("%s/gradients", two),
                       *b = must_format("%s/gradients", one);
        const bool turned = cases[i].turn != NONE, back = !turned || turn_back(top, i, two);
        char name[256] = "";
        const runs_metrics mine = runs_read_metrics(two), its = runs_read_metrics(one);
        const runs_gradients g = runs_compare_gradients(a, b);
        const double loss = runs_loss_error(&mine, &its), norm = runs_norm_error(&mine, &its),
                     weights = turned ? 0 : runs_weights_error(name, sizeof name, two, one);
        const bool same = back && runs_loads_error(&mine, &its) == 0 && loss <= LOSS && norm <= NORM && g.worst <= 1 &&
                          weights <= WEIGHTS;
        bool bits = !turned && runs_same_metrics(&mine, &its) && g.relative == 0;
        bits = bits && runs_compare_checkpoints(name, sizeof name, two, one) > 0 && !*name;
        const bool good = its.count == STEPS && g.tensors > 0 &&
                          (cases[i].how == BITS      ? bits
                           : cases[i].how == ROUNDED ? same
                                                     : !same);
        printf("proof: | %s | %s%s | %.1e | %.1e | %.3f | %.1e |\n", cases[i].model, cases[i].what,
               bits                    ? " (the same bits)"
               : cases[i].how == PARTS ? " (another model: noticed)"
                                       : "",
               loss, norm, g.worst, weights);
        if (!good)
            print_message("WRONG %s of %s: loss %.1e norm %.1e gradient %.3f (%s) weights %.1e (%s)%s\n", cases[i].what,
                          cases[i].model, loss, norm, g.worst, g.name, weights, name, bits ? " bits" : "");
        wrong += !good;
    }
    assert_int_equal(wrong, 0);
}

TEST(no_bit_depends_on_which_process_is_which_rank)
{
    const char *top = *state;
    int wrong = 0;
    for (int i = 0; i < LAYOUTS; i++) {
        AUTO_FREE char *one = must_format("%s/rank_playlist-of-%d", top, i),
                       *two = must_format("%s/rank_renamed-of-%d", top, i);
        char difference[256];
        const runs_metrics mine = runs_read_metrics(two), its = runs_read_metrics(one);
        const int equal = runs_compare_checkpoints(difference, sizeof difference, two, one);
        const bool good = equal > 0 && !*difference && its.count == STEPS && runs_same_metrics(&mine, &its);
        printf("proof: | %s | ranks in reverse, of 4: `%s`%s |  |  |  |  |\n", layouts[i].model, layouts[i].keys,
               good ? " (the same bits)" : "");
        wrong += !good;
    }
    assert_int_equal(wrong, 0);
}

TEST_MAIN(train_all, workfolder_teardown)
