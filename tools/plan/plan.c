/* phalanx plan: predicts the needs and costs of a configuration on any number of ranks, without running it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/config/config.h"
#include "engine/compile/compile.h"
#include "engine/compile/plan/plan.h"
#include "engine/files/facts.h"
#include "engine/files/output.h"
#include "engine/islands/islands.h"
#include "engine/run/batch.h"
#include "engine/state/weights/weights.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/units.h"
#include "parallel/schedule/simulate.h"
#include "tools/planning.h"
#include "tools/ticker.h"
#include "tools/plan/plan_parts.h"
#include "tools/tools.h"

/* Useless traffic of context ranks in layers with a sliding window: every key goes to every rank, also to ranks that
 * have no query near enough to see it, and so does its gradient back. */
typedef struct plan_window {
    int rank;             /* the listed rank that sends most */
    int64_t sent, unseen; /* bytes a step along context in layers with a window; useless part of them */
} plan_window;

/* Measures the useless traffic as if each sample were one document; masked documents increase it. False if there are no
 * such layers or no rank divides samples' tokens. `unseen` is the mean over the context ranks. */
static bool window_measure(plan_window *out, const plan *p)
{
    *out = (plan_window){0};
    for (int i = 0; i < p->count; i++)
        if (p->ranks[i].windowed > out->sent)
            *out = (plan_window){.rank = p->ranks[i].rank, .sent = p->ranks[i].windowed};
    if (out->sent > 0)
        out->unseen = (int64_t)llround((double)out->sent * batch_unseen(&p->options));
    return out->unseen > 0;
}

static void window_print(FILE *out, const plan_window *w, const plan *p)
{
    fprintf(out,
            "\nwindows           of the %s of keys, values and their gradients that rank %d sends along context in a "
            "step,\n"
            "                  %s (%.0f%%) are of no use to the receiver, whose queries see %lld tokens: with fewer\n"
            "                  parallel.context, or parallel.tensor instead, less is sent\n",
            BYTES_TEXT(w->sent), w->rank, BYTES_TEXT(w->unseen), 100 * (double)w->unseen / (double)w->sent,
            (long long)p->options.shape.sliding_window);
}

typedef struct wishes {
    bool json, listing, schedule, every, search;
    const char *svg, *device, *network_file, *memory_size, *write, *data, *load;
    int64_t rank, ranks, batches; /* -1, 0, 0: not given */
    double tflops, efficiency, memory, node, network, islands;
    int64_t node_ranks;
    options_said said;
} wishes;

/* Opens the requested profile and applies the command line's overrides. A search assumes GPUs. */
static status prices_of(profile *out, const wishes *w, const config *c)
{
    TRY(profile_open(out, w->device ? w->device : w->search ? DEVICES_ASSUMED : planning_device(c, NULL)));
    if (w->network_file)
        TRY(profile_take_network(out, w->network_file));
    double share = w->efficiency > 0 ? w->efficiency / out->tile[0].share : 1;
    for (int i = 0; i < PROFILE_TILES; i++)
        out->tile[i].share *= share;
    if (w->tflops > 0)
        for (int i = 0; i < PEAK_COUNT; i++)
            out->peak[i] = w->tflops * 1e12;
    out->memory = w->memory > 0 ? w->memory * 1e9 : out->memory;
    out->node = w->node > 0 ? w->node * 1e9 : out->node;
    out->network = w->network > 0 ? w->network * 1e9 : out->network;
    out->node_ranks = w->node_ranks > 0 ? (int)w->node_ranks : out->node_ranks;
    return STATUS_OK;
}

/* Prints the traffic of this job as one of outer.slots islands to the others. */
static void print_islands(const config *c, const plan *p, double bandwidth)
{
    islands_plan o = islands_plan_of(c, p->options.grid.ranks, p->step_seconds, bandwidth);
    printf("\nislands           %d, merging every %d steps: a change is %s (%.1f x smaller than fp32); each island "
           "sends %s\n"
           "                  and receives %s, %.3g s at %.3g Gbit/s; %.1f%% of the time computes; %s of host "
           "memory a rank\n",
           c->outer.slots, c->outer.every, BYTES_TEXT(o.change), 4.0 * (double)p->parameters / (double)o.change,
           BYTES_TEXT(o.sent), BYTES_TEXT(o.received), o.seconds, bandwidth / 1e9, 100 * o.computing,
           BYTES_TEXT(o.arena));
    printf("                  and at most %s of answers that wait for other islands, a rank\n", BYTES_TEXT(o.queued));
    if (o.server_arena > 0)
        printf("                  phalanx server: %s of host memory on one rank, divided among several\n",
               BYTES_TEXT(o.server_arena));
    if (o.epsilon > 0)
        printf("                  outer.noise %g: (epsilon %.3g, delta %g) differential privacy of each island over "
               "the run\n",
               c->outer.noise, o.epsilon, ISLANDS_DELTA);
}

static void islands_facts(fact_writer *out, const config *c, const plan *p, double bandwidth)
{
    islands_plan o = islands_plan_of(c, p->options.grid.ranks, p->step_seconds, bandwidth);
    FACTS_OBJECT(out, "\n islands", FACT("every", c->outer.every), FACT("slots", c->outer.slots),
                 FACT("change_bytes", o.change), FACT("bytes_sent", o.sent), FACT("bytes_received", o.received),
                 FACT("bandwidth", bandwidth), FACT("merge_seconds", o.seconds), FACT("computing", o.computing),
                 FACT("arena_bytes", o.arena), FACT("server_arena_bytes", o.server_arena),
                 FACT("queued_bytes", o.queued), FACT("epsilon", o.epsilon));
}

/* Results of options beside the configuration; NULL without --data, without --load. */
typedef struct extras {
    const plan_data *data;
    const planning_load *load;
    const options_said *said; /* the command line */
} extras;

/* Prints the plan as text. `unsaid`: only the configuration chose a CPU's prices. */
static void print_text(const config *c, const plan *p, double bandwidth, const extras *e, bool unsaid)
{
    plan_window window;
    plan_text_report(stdout, p);
    if (unsaid)
        puts("                  these are a small CPU's figures, as train.device is cpu: --device (" DEVICES_WORDS ",\n"
             "                  or a file of phalanx bench --profile) plans for another machine");
    if (window_measure(&window, p))
        window_print(stdout, &window, p);
    if (e->data)
        plan_data_print(stdout, e->data, c);
    if (e->load)
        planning_load_print(stdout, e->load, p);
    if (c->outer.every > 0)
        print_islands(c, p, bandwidth);
    plan_launch_print(stdout, c, p, e->said);
}

static void write_facts(const config *c, const plan *p, double bandwidth, const extras *e)
{
    plan_window window;
    fact_writer f = {.out = stdout};
    facts_open(&f, "", '{');
    plan_text_facts(&f, p);
    if (c->outer.every > 0)
        islands_facts(&f, c, p, bandwidth);
    plan_launch_facts(&f, c, p, e->said);
    if (window_measure(&window, p))
        FACTS_OBJECT(&f, "\n context_windows", FACT("window", p->options.shape.sliding_window),
                     FACT("rank", window.rank), FACT("bytes_sent", window.sent), FACT("unseen_bytes", window.unseen));
    if (e->data)
        plan_data_facts(&f, e->data, c);
    if (e->load)
        planning_load_facts(&f, e->load, p);
    facts_close(&f, '}');
    putchar('\n');
}

/* Prints first whether the plan fits, which is also the status: on the named device, or on the run's own. */
static status print_plan(const config *c, const plan *p, const extras *e, const wishes *w)
{
    bool unsaid = c->train.device == CONFIG_CPU && !w->device && w->tflops <= 0;
    double bandwidth = c->outer.bandwidth > 0 ? c->outer.bandwidth : w->islands * 1e9;
    status fits = plan_text_verdict(p), s = STATUS_OK;
    AUTO_FREE char *verdict = must_strdup(fits == STATUS_OK ? "" : status_message());
    if (w->json) {
        write_facts(c, p, bandwidth, e);
    } else {
        if (fits != STATUS_OK)
            printf("%s\n\n", verdict);
        print_text(c, p, bandwidth, e, unsaid);
    }
    if (w->schedule) {
        fputc('\n', stdout);
        timeline_print(stdout, &p->spans, timeline_style_of(stdout));
    }
    if (w->svg)
        s = output_print(w->svg, timeline_svg, &p->spans);
    if (s == STATUS_OK && fits != STATUS_OK)
        s = status_fail(fits, "%s", verdict);
    return s;
}

static status show(const config *c, const compile_options *options, const wishes *w, const profile *of)
{
    reserve beside;
    profile prices = *of;
    RELEASED_BY(plan_free) plan p = {0};
    RELEASED_BY(plan_data_free) plan_data data = {0};
    RELEASED_BY(planning_load_close) planning_load load = {0};
    TRY(planning_reserve(&beside, c->run.folder));
    prices.reserve = &beside;
    if (w->listing) {
        compile_options o = *options;
        o.grid = grid_for_rank(&o.grid, w->rank < 0 ? 0 : (int)w->rank);
        RELEASED_BY(compile_free) compiled listed = {0};
        TRY(compile(&listed, &o));
        plan_text_listing(stdout, &listed);
        return STATUS_OK;
    }
    if (w->data)
        TRY(plan_data_predict(&data, c, options, w->batches ? (int)w->batches : 16));
    if (w->load)
        TRY(planning_load_open(&load, &prices, w->load, options));
    ticker *told = ticker_open("compiling and playing the ranks' programs");
    status s = plan_make(&p, options, &prices, w->every, (int)w->rank);
    if (s == STATUS_OK)
        s = plan_price_order(&p);
    ticker_close(told);
    TRY(s);
    return print_plan(c, &p, &(extras){w->data ? &data : NULL, w->load ? &load : NULL, &w->said}, w);
}

/* Searches layouts for the ranks of --ranks or of the configuration. */
static status find_layout(config *c, const wishes *w)
{
    static const char *const chosen[] = {"parallel.", "train.micro_batch=", "memory.recompute="};
    for (int i = 0; i < w->said.overrides; i++)
        for (size_t k = 0; k < sizeof chosen / sizeof *chosen; k++)
            if (strncmp(w->said.override[i], chosen[k], strlen(chosen[k])) == 0)
                log_warn("--search chooses layout, micro-batch and recomputation itself: %s is not kept",
                         w->said.override[i]);
    RELEASED_BY(profile_free) profile prices = {0};
    RELEASED_BY(load_free) load_law law = {0};
    int64_t ranks = w->ranks ? w->ranks : c->parallel.size[GRID_DATA] ? grid_ranks_of(c->parallel.size) : 0;
    if (ranks < 1)
        return status_fail(STATUS_USAGE, "--search: say --ranks N, or parallel.data in the configuration");
    if (w->device && !config_is_given(c, "parallel.schedule_for")) { /* the written file yields the same schedule */
        free(c->parallel.schedule_for);
        c->parallel.schedule_for = must_strdup(w->device);
    }
    plan_search_wishes said = {
        .json = w->json, .ranks = (int)ranks, .memory = w->memory_size, .write = w->write, .said = w->said};
    if (w->load)
        TRY(load_open(&law, w->load, &c->model.shape));
    said.law = w->load ? &law : NULL;
    TRY(prices_of(&prices, w, c));
    return plan_search(c, &prices, planning_backend(c, NULL), &said);
}

static status show_plan(config *c, const wishes *w)
{
    grid g;
    compile_options o;
    RELEASED_BY(profile_free) profile prices = {0};
    TRY(config_make_grid(&g, c, (int)w->ranks, 0));
    if (w->rank >= g.ranks)
        return status_fail(STATUS_USAGE, "--rank %lld: the layout has ranks 0 to %d", (long long)w->rank, g.ranks - 1);
    TRY(prices_of(&prices, w, c));
    TRY(planning_options(&o, c, &g, NULL, prices.node_ranks));
    return show(c, &o, w, &prices);
}

/* Refuses options that the chosen way of planning would ignore. */
static status check_wishes(const wishes *w)
{
    if (!w->search && (w->memory_size || w->write))
        return status_fail(STATUS_USAGE, "%s is an option of --search: add that", w->write ? "--write" : "--memory");
    if (w->json && (w->listing || w->schedule))
        return status_fail(STATUS_USAGE, "%s is text, and --json is for programs: one of them at a time",
                           w->listing ? "--listing" : "--schedule");
    if (!w->data && w->batches)
        return status_fail(STATUS_USAGE, "--batches is an option of --data: add that");
    if (w->load && w->listing)
        return status_fail(STATUS_USAGE, "--listing is one rank's program, which no load changes: leave out --load");
    if (w->data && w->listing)
        return status_fail(STATUS_USAGE, "--listing is one rank's program, which no data changes: leave out --data");
    const char *of_one = w->listing     ? "--listing"
                         : w->schedule  ? "--schedule"
                         : w->svg       ? "--svg"
                         : w->every     ? "--every-rank"
                         : w->rank >= 0 ? "--rank"
                         : w->data      ? "--data"
                                        : NULL;
    if (w->search && of_one)
        return status_fail(STATUS_USAGE,
                           "%s is of one layout, and --search looks at many: --write FILE, then plan FILE %s", of_one,
                           of_one);
    return STATUS_OK;
}

static status run_plan(config *c, wishes *w)
{
    TRY(check_wishes(w));
    TRY(weights_configure(c)); /* reads sizes of model.from and model.config, not weights */
    return w->search ? find_layout(c, w) : show_plan(c, w);
}

/* Returns OPTIONS_GO_ON or the exit status. */
static int read_wishes(wishes *w, int *operands, int argc, char **argv)
{
    *w = (wishes){.rank = -1, .islands = 1};
    const options_row rows[] = {
        OPTION_FLAG("--json", "the same facts for programs", &w->json),
        OPTION_INTEGER("--ranks", "N", "ranks of the job; else tensor x pipeline x parallel.data", &w->ranks, 1,
                       INT32_MAX),
        OPTION_INTEGER("--rank", "N", "exactly this rank instead of one of each kind", &w->rank, 0, INT32_MAX),
        OPTION_FLAG("--every-rank", "exactly every rank instead of one of each kind", &w->every),
        OPTION_FLAG("--listing", "the program of --rank N (0), one op a line", &w->listing),
        OPTION_FLAG("--schedule", "draw the pipeline's timeline", &w->schedule),
        OPTION_TEXT("--svg", "FILE", "draw it into an SVG file", &w->svg),
        OPTION_TEXT("--data", "PREFIX",
                    "how equal the work of context ranks is on this data, whose first batches are read", &w->data),
        OPTION_INTEGER("--batches", "N", "of --data: global batches that are read; default 16", &w->batches, 1,
                       INT32_MAX),
        OPTION_TEXT("--load", "LOAD", PLANNING_LOAD_HELP, &w->load),
        OPTION_FLAG("--search", "find the fastest layouts on --ranks N instead", &w->search),
        OPTION_TEXT("--memory", "SIZE",
                    "of --search: memory of a device (80GiB); else the profile's, of which it leaves a twentieth free",
                    &w->memory_size),
        OPTION_TEXT("--write", "FILE", "of --search: write CONFIG.yaml with the keys of the best layout", &w->write),
        OPTION_TEXT("--device", "NAME|FILE",
                    "prices: " DEVICES_WORDS ", or a file of phalanx bench --profile; else cpu where train.device is, "
                    "or " DEVICES_ASSUMED,
                    &w->device),
        OPTION_TEXT("--network", "FILE",
                    "JSON, as of a profile: node_ranks, node, network (\"25 GB/s\" of a rank), latency (\"5 us\"), "
                    "oversubscription, ...",
                    &w->network_file),
        OPTION_NUMBER("--flops", "T", "peak TFLOP/s of a device, instead of the profile's", &w->tflops, 1e-6, 1e9),
        OPTION_NUMBER("--efficiency", "E", "share of it that large products reach", &w->efficiency, 1e-3, 1),
        OPTION_NUMBER("--bandwidth", "G", "GB/s of a device's memory", &w->memory, 1e-3, 1e9),
        OPTION_NUMBER("--node-bandwidth", "G", "GB/s a rank sends within its node", &w->node, 1e-3, 1e9),
        OPTION_NUMBER("--network-bandwidth", "G", "GB/s a rank sends to other nodes", &w->network, 1e-3, 1e9),
        OPTION_INTEGER("--node-ranks", "N", "ranks of a node", &w->node_ranks, 1, 1024),
        OPTION_NUMBER("--island-bandwidth", "G", "Gbit/s between islands (outer.bandwidth, else 1)", &w->islands, 1e-6,
                      1e6),
    };
    const options_command command = {
        .name = "plan",
        .operands = "CONFIG.yaml [key=value ...]",
        .summary = "Says what a training step as CONFIG.yaml describes it needs and does: memory by class, arena, "
                   "FLOPs, traffic,\n"
                   "bubble, for any number of ranks, without running anything: no device, no peers, no data\n"
                   "but --data's.",
        .least = 1,
        .most = -1,
        OPTION_ROWS(rows),
        .more_help = config_help,
        .help_about = config_help_about,
    };
    return options_parse(&command, operands, argc, argv);
}

/* Loads the configuration; --data sets data.train, after the command line's own keys. */
static status load_config(config *out, const wishes *w)
{
    const options_said *said = &w->said;
    AUTO_FREE char **keys = must_calloc((unsigned long)said->overrides + 1, sizeof *keys);
    int count = said->overrides;
    for (int i = 0; i < count; i++)
        keys[i] = said->override[i];
    AUTO_FREE char *train = w->data ? must_format("data.train=%s", w->data) : NULL;
    if (train)
        keys[count++] = train;
    return config_load(out, said->file, count, keys);
}

int plan_main(int argc, char **argv)
{
    wishes w;
    int operands, code = read_wishes(&w, &operands, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    RELEASED_BY(config_free) config c = {0};
    w.said = options_said_of(operands, argv + 1);
    status s = load_config(&c, &w);
    return options_exit(s == STATUS_OK ? run_plan(&c, &w) : s);
}
