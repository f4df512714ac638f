/* Choices that may meet (pairs.h): each pair of them is either refused, in the words that the table has, or in a row
 * that trains the same model as one rank does; so is each triple of the axes that divide a model.
 *
 * `make check` compiles all rows and plays those that the commit draws (cover.h); `make check-all` plays the others. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/compile.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/cover.h"
#include "tests/jobs/pairs.h"
#include "tests/jobs/parity.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { STEPS = 3, SHARE = 9 };

static pairs_row rows[PAIRS_ROWS];
static int count;
static bool taken[PAIRS_ROWS];
static int one[2][PAIRS_ROWS]; /* the run of each row's model on one rank, and that in fp32 */
/* Relative, L2: weights after the steps, where an update is a sign those; gradients sent in 8 or 16 bits, and what then
 * follows. */
static const double WEIGHTS = 1e-4, SIGNS = 2e-2, SENT = 3e-2, FOLLOWS = 3e-3;

/* Scores of about 1, so that what changes attention is seen, though weights are small. */
static const char yaml[] = "model: {layers: 4, hidden_size: 32, heads: 4, head_size: 8, ffn_size: 50, vocab_size: 131, "
                           "max_sequence: 24, norm_epsilon: 1e-3, attention_multiplier: 40}\n"
                           "train: {steps: 3, sequence: 24, micro_batch: 2, global_batch: 8, precision: fp32, "
                           "device: cpu, threads: 1, seed: 7}\n"
                           "optimizer: {lr: 3e-3, schedule: constant, epsilon: 1e-4}\n"
                           "checkpoint: {resume: never}\n"
                           "run: {tensorboard: false, hang_seconds: 60}\n";

static const char *word_of(int index, const char *of)
{
    const int a = pairs_axis_of(of);
    return pairs_axes[a].values[rows[index].value[a]].name;
}

/* Weights are not fp32. */
static bool rounds(int index)
{
    return strncmp(word_of(index, "precision"), "fp32", 4) != 0;
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static status compile_rank(const config *c, int ranks, int rank)
{
    grid g;
    compile_options options;
    compiled plan = {0};
    TRY(config_make_grid(&g, c, ranks, rank));
    TRY(compile_options_from(&options, c, &g, &cpu_backend, 1));
    const status s = compile(&plan, &options);
    compile_free(&plan);
    return s;
}

/* Loads the row's configuration and compiles the programs of its first and its last rank, as a run begins. */
static status load(const pairs_row *row)
{
    enum { WORDS = 64 };
    AUTO_FREE char *keys = pairs_keys(row, false);
    char *word[WORDS], *rest = keys;
    int words = 0;
    while (words < WORDS && (word[words] = strtok_r(rest, " ", &rest)))
        words++;
    config c;
    status s = config_parse(&c, "a.yaml", yaml, strlen(yaml), words, word);
    if (s != STATUS_OK)
        return s;
    s = compile_rank(&c, pairs_ranks(row), 0);
    if (s == STATUS_OK && pairs_ranks(row) > 1)
        s = compile_rank(&c, pairs_ranks(row), pairs_ranks(row) - 1);
    config_free(&c);
    return s;
}

/* Every configuration of the rule that holds one value of each of its sets, from the axis `a`; returns how many were
 * not refused as it says. */
static int refuse_all(pairs_row *row, int rule, int a, int *tried)
{
    const pairs_rule *r = pairs_rule_at(rule);
    int wrong = 0;
    while (a < PAIRS_AXES && !r->sets[a])
        a++;
    if (a == PAIRS_AXES) {
        pairs_row whole = *row;
        if (!pairs_complete(&whole, rule))
            return 0; /* another rule refuses it */
        ++*tried;
        AUTO_FREE char *title = pairs_title(row, true);
        const bool refused = load(&whole) == STATUS_USAGE;
        if (!r->words) {
            printf("proof: | %s | it trains, but one rank has no such run: `tests/oracle/test_balance.c` |\n", title);
            return refused;
        }
        if (!refused || !strstr(status_message(), r->words)) {
            print_message("%s: %s, not: %s\n", title, refused ? status_message() : "not refused", r->words);
            return 1;
        }
        const char *file = strstr(status_message(), "a.yaml: ");
        printf("proof: | %s | %s |\n", title, status_message() + (file ? strlen("a.yaml: ") : 0));
        return 0;
    }
    for (int v = 0; v < pairs_values(a); v++)
        if (r->sets[a] >> v & 1) {
            row->value[a] = v;
            wrong += refuse_all(row, rule, a + 1, tried);
        }
    row->value[a] = -1;
    return wrong;
}

TEST(each_exclusion_is_a_refusal_in_these_words)
{
    int wrong = 0;
    printf("proof: | excluded | why, as `phalanx` says it |\nproof: | --- | --- |\n");
    for (int r = 0; r < pairs_rules(); r++) {
        pairs_row row = pairs_nothing();
        int tried = 0;
        wrong += refuse_all(&row, r, 0, &tried);
        if (tried == 0)
            print_message("rule %d refuses nothing: %s\n", r, pairs_rule_at(r)->words);
        wrong += tried == 0;
    }
    assert_int_equal(wrong, 0);
}

/* Rows that hold all of the values, -1 being any. */
static int rows_with(const pairs_row *values)
{
    int found = 0;
    for (int i = 0; i < count; i++) {
        bool has = true;
        for (int a = 0; a < PAIRS_AXES && has; a++)
            has = values->value[a] < 0 || values->value[a] == rows[i].value[a];
        found += has;
    }
    return found;
}

/* What excludes the pair: a rule's refusal of a configuration with the first value of each other axis. */
static bool is_refused(const pairs_row *pair)
{
    pairs_row whole = *pair;
    for (int a = 0; a < PAIRS_AXES; a++)
        whole.value[a] = whole.value[a] < 0 ? 0 : whole.value[a];
    if (load(&whole) != STATUS_USAGE)
        return false;
    for (int r = 0; r < pairs_rules(); r++)
        if (pairs_rule_at(r)->words && strstr(status_message(), pairs_rule_at(r)->words))
            return true;
    return false;
}

TEST(each_pair_is_refused_or_in_a_row)
{
    int open = 0, covered = 0, refused = 0, apart = 0;
    for (int a = 0; a < PAIRS_AXES; a++)
        for (int b = a + 1; b < PAIRS_AXES; b++)
            for (int i = 0; i < pairs_values(a) * pairs_values(b); i++) {
                pairs_row pair = pairs_nothing(), whole;
                pair.value[a] = i / pairs_values(b);
                pair.value[b] = i % pairs_values(b);
                whole = pair;
                const bool has = rows_with(&pair) > 0;
                const int rule = pairs_broken(&pair, -1);
                const bool is_apart = rule >= 0 && !pairs_rule_at(rule)->words;
                const bool is_out = !has && !is_apart && !pairs_complete(&whole, -1) && is_refused(&pair);
                covered += has;
                apart += is_apart;
                refused += is_out;
                if (!has && !is_apart && !is_out) {
                    AUTO_FREE char *title = pairs_title(&pair, true);
                    print_message("neither refused nor in a row: %s\n", title);
                    open++;
                }
            }
    printf(
        "proof: | memory.offload optimizer, each | memory.offload optimizer is for a GPU: "
        "`tests/cuda/test_cuda_offload.c` |\nproof:\nproof: Not there yet, and so in no pair: hybrid layers, groups of "
        "nodes, masks of prompts, 8 bits.\nproof:\n");
    printf(
        "proof: %d pairs of values: %d are in a row, %d refused (directly, or by what one of them needs), %d without a "
        "run on one rank.\n",
        covered + refused + apart, covered, refused, apart);
    assert_int_equal(open, 0);
    assert_true(covered > 1000 && refused > 50);
}

/* Triples of kinds of the axes that divide: beyond what rules and PAIRS_RANKS exclude, each is in a row. */
TEST(each_triple_of_dividing_axes_is_in_a_row)
{
    int triples = 0, excluded = 0, open = 0;
    for (int n = 0; n < PAIRS_AXES * PAIRS_AXES * PAIRS_AXES; n++) {
        const int of[3] = {n / (PAIRS_AXES * PAIRS_AXES), n / PAIRS_AXES % PAIRS_AXES, n % PAIRS_AXES};
        const char *kinds[3];
        for (int k = 0; k < 3; k++)
            kinds[k] = pairs_axes[of[k]].kinds;
        if (of[0] >= of[1] || of[1] >= of[2] || !kinds[0] || !kinds[1] || !kinds[2])
            continue;
        const int values[3] = {pairs_values(of[0]), pairs_values(of[1]), pairs_values(of[2])};
        for (int i = 0; i < values[0] * values[1] * values[2]; i++) {
            const int at[3] = {i / (values[1] * values[2]), i / values[2] % values[1], i % values[2]};
            pairs_row triple = pairs_nothing();
            bool first = true;
            for (int k = 0; k < 3; k++) {
                triple.value[of[k]] = at[k];
                first &= strchr(kinds[k], kinds[k][at[k]]) == kinds[k] + at[k];
            }
            if (!first)
                continue; /* another value of its kind stands for it */
            bool has = false;
            for (int r = 0; r < count && !has; r++) {
                has = true;
                for (int k = 0; k < 3; k++)
                    has &= kinds[k][rows[r].value[of[k]]] == kinds[k][at[k]];
            }
            const bool may = has || pairs_complete(&triple, -1);
            triples++;
            excluded += !may;
            open += may && !has;
        }
    }
    printf("proof:\nproof: %d triples of kinds of what divides (expert, tensor, context, data, pipeline, zero, "
           "vocabulary, "
           "sequence): %d are in a row, the rules exclude %d.\nproof:\n",
           triples, triples - excluded - open, excluded);
    assert_int_equal(open, 0);
    assert_true(triples > 300);
}

TEST(each_row_is_a_configuration_that_trains)
{
    int wrong = 0;
    for (int i = 0; i < count; i++) {
        AUTO_FREE char *title = pairs_title(&rows[i], false);
        if (load(&rows[i]) != STATUS_OK) {
            print_message("%s: %s\n", title, status_message());
            wrong++;
        }
    }
    assert_int_equal(wrong, 0);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

static char *folder_of(const char *top, const char *kind, int index)
{
    return must_format("%s/%s-%d", top, kind, index);
}

/* Keys of one rank's run of the same model; `exact`: in fp32. */
static char *keys_of_one(int index, bool exact)
{
    pairs_row row = rows[index];
    int *precision = &row.value[pairs_axis_of("precision")];
    if (exact && rounds(index))
        *precision = 0;
    return pairs_keys(&row, true);
}

/* Finds the run on one rank, or adds it. */
static int find_run(char **runs, int *found, char *keys)
{
    for (int i = 0; i < *found; i++)
        if (!strcmp(runs[i], keys)) {
            free(keys);
            return i;
        }
    runs[*found] = keys;
    return (*found)++;
}

static void put_line(FILE *list, const char *top, const char *keys, char *folder)
{
    fprintf(list, "%s/pairs.yaml data.train=%s/data %s run.folder=%s debug.gradients=%s/gradients\n", top, top, keys,
            folder, folder);
    free(folder);
}

static void play_ones(const char *top)
{
    static char *runs[2 * PAIRS_ROWS];
    int found = 0;
    for (int i = 0; i < count; i++)
        for (int exact = 0; exact < 2 && taken[i]; exact++)
            one[exact][i] = find_run(runs, &found, keys_of_one(i, exact));
    FILE *list = parity_open_list(top, "ones");
    for (int i = 0; i < found; i++) {
        put_line(list, top, runs[i], folder_of(top, "one", i));
        free(runs[i]);
    }
    fclose(list);
    parity_play(top, "rank_playlist", 1, "ones", found);
}

static int train_all(void **state)
{
    count = pairs_cover(rows);
    if (workfolder_setup(state))
        return -1;
    const char *top = *state;
    AUTO_FREE char *data = workfolder_path(top, "data"), *path = workfolder_path(top, "pairs.yaml");
    runs_write_data(data, 131, 20000, 1);
    runs_write_text(path, yaml);
    cover_take_drawn(taken, count, SHARE);
    play_ones(top);
    for (int ranks = 2; ranks <= PAIRS_RANKS; ranks++) {
        int played = 0;
        FILE *list = parity_open_list(top, "playlist");
        for (int i = 0; i < count; i++)
            if (taken[i] && pairs_ranks(&rows[i]) == ranks && ++played) {
                AUTO_FREE char *keys = pairs_keys(&rows[i], false);
                put_line(list, top, keys, folder_of(top, "row", i));
            }
        fclose(list);
        if (played > 0)
            parity_play(top, "rank_playlist", ranks, "playlist", played);
    }
    return 0;
}

/* The largest relative error of a loss of evaluation; infinite unless both have the same steps. */
static double evaluation_error(const char *folder, const char *its)
{
    const runs_metrics mine = runs_read_metrics(folder), one_rank = runs_read_metrics(its);
    double worst = mine.evaluations == one_rank.evaluations ? 0 : INFINITY;
    for (int i = 0; i < mine.evaluations && worst < INFINITY; i++)
        worst = fmax(worst, fabs(mine.evaluation[i].loss / one_rank.evaluation[i].loss - 1));
    return worst;
}

static bool has_its_loads(const char *folder, const char *its)
{
    const runs_metrics mine = runs_read_metrics(folder), one_rank = runs_read_metrics(its);
    return runs_loads_error(&mine, &one_rank) == 0;
}

static bool is_sent_well(const char *folder, const char *its)
{
    AUTO_FREE char *a = must_format("%s/gradients", folder), *b = must_format("%s/gradients", its);
    const runs_metrics mine = runs_read_metrics(folder), one_rank = runs_read_metrics(its);
    return runs_compare_gradients(a, b).relative <= SENT && runs_loss_error(&mine, &one_rank) <= FOLLOWS &&
           runs_norm_error(&mine, &one_rank) <= FOLLOWS;
}

TEST(each_row_trains_the_model_of_one_rank)
{
    const char *top = *state;
    int wrong = 0, tried = 0;
    for (int i = 0; i < count; i++) {
        if (!taken[i] || pairs_ranks(&rows[i]) == 1)
            continue;
        tried++;
        AUTO_FREE char *folder = folder_of(top, "row", i), *its = folder_of(top, "one", one[0][i]),
                       *exact = folder_of(top, "one", one[1][i]), *title = pairs_title(&rows[i], false);
        char name[128] = "";
        const parity_outcome o = rounds(i) ? parity_compare_rounded(folder, its, exact) : parity_compare(folder, its);
        const double weights = rounds(i) ? 0 : runs_weights_error(name, sizeof name, folder, its);
        const bool signs = !strcmp(word_of(i, "optimizer"), "lion"), sent = strcmp(word_of(i, "compress"), "none") != 0;
        const bool loads = rounds(i) || has_its_loads(folder, its);
        const bool good = sent ? is_sent_well(folder, its) : o.good && loads && weights <= (signs ? SIGNS : WEIGHTS);
        const bool evaluates = evaluation_error(folder, its) <= (rounds(i) || sent ? FOLLOWS : PARITY_LOSS);
        if (!good || !evaluates)
            print_message("WRONG gradient %.3f (%s) loss %.1e norm %.1e weights %.1e (%s), %d ranks: %s\n", o.gradient,
                          o.tensor, o.loss, o.norm, weights, name, pairs_ranks(&rows[i]), title);
        wrong += !good || !evaluates;
    }
    printf("proof: %d of %d rows, of 2 to 8 ranks, on tiny models: losses, those beside them and of evaluation, loads "
           "of experts, each "
           "gradient, norms and updated weights are one rank's; %d are not.\n",
           tried, count, wrong);
    assert_int_equal(wrong, 0);
    assert_true(tried > 0);
}

/* What one rank trains, in fp32. */
static char *model_of(int index)
{
    pairs_row row = rows[index];
    row.value[pairs_axis_of("beside training")] = 0;
    row.value[pairs_axis_of("precision")] = rounds(index) ? 0 : row.value[pairs_axis_of("precision")];
    return pairs_keys(&row, true);
}

/* That the comparison can fail: each row's model on one rank beside the last row's. */
TEST(a_row_is_no_other_rows_model)
{
    const char *top = *state;
    int alike = 0, tried = 0;
    for (int i = 0, last = -1; i < count; i++) {
        if (!taken[i])
            continue;
        AUTO_FREE char *mine = model_of(i), *other = last >= 0 ? model_of(last) : must_strdup(mine);
        if (strcmp(mine, other) != 0) {
            AUTO_FREE char *folder = folder_of(top, "one", one[1][i]), *its = folder_of(top, "one", one[1][last]);
            const bool good = parity_compare(folder, its).good;
            if (good)
                print_message("alike:%s and%s\n", mine, other);
            tried++;
            alike += good;
        }
        last = i;
    }
    assert_true(tried > 0);
    assert_int_equal(alike, 0);
}

TEST_MAIN(train_all, workfolder_teardown)
