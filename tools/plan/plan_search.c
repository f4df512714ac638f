#include "tools/plan/plan_parts.h"

#include <stdlib.h>
#include <string.h>

#include "engine/compile/plan/plan.h"
#include "engine/config/config.h"
#include "engine/config/scalar.h"
#include "engine/files/output.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/units.h"
#include "tools/ticker.h"

enum { SHOWN = 10, LAYOUT_TEXT = 160, WHY_TEXT = 160 };

static const char *recompute_word(const search_layout *l)
{
    return l->budgeted ? "budget" : config_word_of("memory.recompute", (int)l->recompute);
}

/* Formats a layout: its sizes along the coordinates in `shown`, an s after a size that divides tokens between blocks,
 * and its choices; `experts`: the model has some. */
static void layout_text(char out[LAYOUT_TEXT], const search_layout *l, unsigned shown, bool experts)
{
    int used = 0;
    char stages[64] = "";
    if (l->of.size[GRID_PIPELINE] > 1)
        snprintf(stages, sizeof stages, " x%d %s%s", l->of.virtual_stages, schedule_name(l->of.schedule),
                 search_divides_vocabulary(l) ? " v" : "");
    for (int i = 0; i < GRID_AXES; i++)
        if (shown >> i & 1) {
            bool divided = l->of.sequence && l->of.size[i] > 1 && axis_coordinates[i].divides == AXIS_DIVIDES_WEIGHTS;
            used += snprintf(out + used, (size_t)(LAYOUT_TEXT - used), "%4d%c", l->of.size[i], divided ? 's' : ' ');
        }
    if (experts)
        used += snprintf(out + used, (size_t)(LAYOUT_TEXT - used), " %6d", l->of.expert);
    snprintf(out + used, (size_t)(LAYOUT_TEXT - used), "%4d %5d  %-10s%s", l->of.zero, l->micro_batch,
             recompute_word(l), stages);
}

/* ---- why another loses ------------------------------------------------------------------------------------------- */

typedef struct loss {
    const char *what;
    double seconds;
} loss;

static int by_loss(const void *a, const void *b)
{
    double x = ((const loss *)a)->seconds, y = ((const loss *)b)->seconds;
    return (x < y) - (x > y);
}

/* Names the two largest excesses of a rank's time over the best layout's: "bubble +3.1%, tensor +1.0%" of its step. */
static void why_text(char out[WHY_TEXT], const search_result *r, const search_result *best)
{
    loss all[AXIS_COUNT + 2] = {{"computing", r->compute - best->compute},
                                {"bubble", r->bubble * r->seconds - best->bubble * best->seconds}};
    int count = 2, used = 0;
    for (int a = 0; a < AXIS_COUNT; a++)
        if (axis_has_messages((axis)a))
            all[count++] = (loss){axis_name((axis)a), r->exposed[a] - best->exposed[a]};
    qsort(all, (size_t)count, sizeof *all, by_loss);
    out[0] = 0;
    for (int i = 0; i < 2; i++)
        if (all[i].seconds > 0.002 * best->seconds)
            used += snprintf(out + used, (size_t)(WHY_TEXT - used), "%s%s +%.1f%%", used ? ", " : "", all[i].what,
                             100 * all[i].seconds / best->seconds);
}

static double exposed_of(const search_result *r)
{
    double sum = 0;
    for (int a = 0; a < AXIS_COUNT; a++)
        sum += r->exposed[a];
    return sum;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

/* Returns the coordinates that any of the rows names. */
static unsigned shown_coordinates(const search *s)
{
    unsigned shown = 0;
    for (int i = 0; i < s->count && i < SHOWN; i++)
        shown |= grid_shown(s->results[i].layout.of.size);
    return shown;
}

/* Returns the free bytes of a device with `whole` bytes. */
static int64_t free_of(const search_result *r, int64_t whole)
{
    return whole - r->arena - r->beside;
}

static void print_row(const search *s, const config *c, int number, int64_t whole)
{
    const search_result *r = &s->results[number - 1], *best = &s->results[0];
    char layout[LAYOUT_TEXT], why[WHY_TEXT];
    double tokens = (double)config_step_tokens(c), days = r->seconds * (double)c->train.steps / 86400;
    layout_text(layout, &r->layout, shown_coordinates(s), c->model.shape.experts > 0);
    why_text(why, r, best);
    printf("%3d %8.4g %9s %5.1f%% %9s %9s %6.1f%% %6.1f%% %8.3g | %-48s %s\n", number, r->seconds,
           COUNT_TEXT(tokens / r->seconds), 100 * r->mfu, BYTES_TEXT(r->arena + r->beside),
           BYTES_TEXT(free_of(r, whole)), 100 * r->bubble, 100 * exposed_of(r) / r->seconds, days, layout, why);
}

/* Explains the columns and their codes, and the extent of the search. */
static void print_legend(const search *s, const config *c, const profile *prices, int ranks, double seconds)
{
    printf("%d layouts on %d ranks, %d of them worth a look, %d compiled and played on %s; %.1f s\n", s->layouts, ranks,
           s->within, s->exact, prices->name, seconds);
    printf(
        "memory, free: of the device that needs most; waiting: for transfers that nothing hides; days: of train.steps "
        "= %lld\n",
        (long long)c->train.steps);
    puts("s behind a number of ranks: tokens between blocks are divided over them, too; zero: parallel.zero; micro: "
         "train.micro_batch\n"
         "recompute: memory.recompute, or the budget that memory.budget sets; xN: virtual stages; v: the vocabulary is "
         "divided over the stages");
    plan_text_doubt(stdout, prices, 0);
    putchar('\n');
}

static void print_table(const search *s, const config *c, int ranks, int64_t whole)
{
    const search_result *best = &s->results[0];
    double hours = best->seconds * (double)c->train.steps / 3600 * ranks;
    fputs("      step,s  tokens/s    MFU    memory      free  bubble waiting     days |", stdout);
    for (int i = 0; i < GRID_AXES; i++)
        if (shown_coordinates(s) >> i & 1)
            printf(" %s", axis_coordinates[i].name);
    if (c->model.shape.experts > 0)
        fputs(" expert", stdout);
    fputs(" zero micro  recompute, schedule; slower for\n", stdout);
    for (int i = 0; i < s->count && i < SHOWN; i++)
        print_row(s, c, i + 1, whole);
    printf("\nthe first takes %.4g GPU hours\n", hours);
    bool found = false;
    for (int i = 0; i < s->count && i < SHOWN; i++)
        found |= s->results[i].layout.of.schedule == SCHEDULE_AUTO;
    if (found)
        printf("auto: a schedule found with the prices of %s, by a run with parallel.schedule_for=%s\n",
               c->parallel.schedule_for, c->parallel.schedule_for);
}

static void row_facts(fact_writer *out, const search_result *r, const config *c, int64_t whole)
{
    const search_layout *l = &r->layout;
    facts_open(out, "\n  ", '{');
    FACTS(out, FACT("step_seconds", r->seconds), FACT("estimated_seconds", l->seconds),
          FACT("tokens_per_second", (double)config_step_tokens(c) / r->seconds), FACT("mfu", r->mfu),
          FACT("bubble", r->bubble), FACT("exposed_seconds", exposed_of(r)), FACT("memory_bytes", r->arena + r->beside),
          FACT("free_bytes", free_of(r, whole)));
    plan_text_coordinates(out, l->of.size, grid_shown(l->of.size));
    if (c->model.shape.experts > 0)
        FACTS(out, FACT("expert", l->of.expert), FACT("replays", r->replays));
    FACTS(out, FACT("sequence", l->of.sequence), FACT("virtual_stages", l->of.virtual_stages),
          FACT("schedule", schedule_name(l->of.schedule)), FACT("zero", l->of.zero),
          FACT("micro_batch", l->micro_batch), FACT("recompute", recompute_word(l)),
          FACT("vocabulary", config_word_of("parallel.vocabulary", (int)l->of.vocabulary)));
    facts_close(out, '}');
}

static void write_facts(const search *s, const config *c, int64_t whole)
{
    fact_writer f = {.out = stdout};
    facts_open(&f, "", '{');
    FACTS(&f, FACT("layouts", s->layouts), FACT("exact", s->exact));
    facts_open(&f, "results", '[');
    for (int i = 0; i < s->count; i++)
        row_facts(&f, &s->results[i], c, whole);
    facts_close(&f, ']');
    facts_close(&f, '}');
    putchar('\n');
}

/* ---- progress ---------------------------------------------------------------------------------------------------- */

static void show_progress(void *context, int done, int all, const search_result *best)
{
    char layout[LAYOUT_TEXT] = "none fits yet", seconds[UNITS_TEXT] = "";
    if (best) {
        layout_text(layout, &best->layout, grid_shown(best->layout.of.size), best->layout.of.expert > 1);
        snprintf(seconds, sizeof seconds, "%.4g s: ", best->seconds);
    }
    AUTO_FREE char *text = must_format("%d of at most %d played; best %s%s", done, all, seconds, layout);
    ticker_say(context, text);
}

/* ---- the best as a configuration --------------------------------------------------------------------------------- */

/* Writes the user's own file with the keys that the layout and the command line set. */
static status write_best(const char *path, const search *s, const search_terms *t, const options_said *said)
{
    static const char *const searched[] = {"parallel.", "memory.", "train.micro_batch", NULL};
    config best = search_configuration(t->config, &s->results[0].layout, search_budget(t, &s->results[0].layout)), file;
    AUTO_FREE char *text = NULL;
    if (!said->file) {
        text = config_text(&best);
    } else {
        TRY(config_load(&file, said->file, 0, NULL));
        status s1 = config_rewrite(&text, said->file, &file, &best, searched, said->overrides, said->override);
        config_free(&file);
        TRY(s1);
    }
    return output_write(path, text, (int64_t)strlen(text));
}

static status say_nothing_fits(const search *s, int64_t memory)
{
    char sizes[GRID_WORDS];
    double all = (double)(s->least.arena + s->least.beside);
    const config_layout *l = &s->least.layout.of;
    grid_words(sizes, l->size, grid_shown(l->size), ", ", NULL);
    return status_fail(
        STATUS_USAGE,
        "nothing fits: the smallest of %d layouts (%s, ZeRO %d, micro-batch %d) needs %s a rank, %s more "
        "than %s: use more ranks, or narrower states",
        s->layouts, sizes, l->zero, s->least.layout.micro_batch, BYTES_TEXT(all), BYTES_TEXT(all - (double)memory),
        BYTES_TEXT(memory));
}

status plan_search(const config *c, const profile *prices, const op_backend *backend, const plan_search_wishes *w)
{
    search s;
    double began = clock_seconds();
    search_terms t = {.config = c,
                      .ranks = w->ranks,
                      .prices = prices,
                      .memory = prices->capacity - prices->capacity / PLAN_SEARCH_FREE,
                      .backend = backend,
                      .law = w->law,
                      .progress = show_progress};
    if (w->memory && (!scalar_size(w->memory, &t.memory) || t.memory <= 0))
        return status_fail(STATUS_USAGE, "--memory %s is no size: write it like 80GiB", w->memory);
    if (t.memory <= 0)
        return status_fail(STATUS_USAGE, "%s has no memory of its own: say --memory 32GiB, for each rank",
                           prices->name);
    if (w->write)
        TRY(output_check(w->write));
    t.context = ticker_open("estimating all layouts");
    status ran = search_run(&s, &t);
    ticker_close(t.context);
    TRY(ran);
    status ok = s.count ? STATUS_OK : say_nothing_fits(&s, t.memory);
    int64_t whole = w->memory ? t.memory : prices->capacity;
    if (ok == STATUS_OK && w->json) {
        write_facts(&s, c, whole);
    } else if (ok == STATUS_OK) {
        print_legend(&s, c, prices, w->ranks, clock_seconds() - began);
        print_table(&s, c, w->ranks, whole);
        if (w->write && strcmp(w->write, "-") != 0)
            plan_launch_lines(stdout, c, w->ranks, prices->node_ranks, &(options_said){.file = w->write});
        else if (!w->write)
            puts("to run the first: the same with --write FILE, which is your configuration with its keys");
    }
    if (ok == STATUS_OK && w->write)
        ok = write_best(w->write, &s, &t, &w->said);
    search_free(&s);
    return ok;
}
