/* phalanx timeline: draws pictures of a step, as predicted and as measured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/config/config.h"
#include "engine/files/output.h"
#include "engine/run/trace.h"
#include "engine/state/weights/weights.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tools/page.h"
#include "tools/options.h"
#include "tools/planning.h"
#include "tools/plan/timeline_picture.h"
#include "tools/tools.h"

EMBED(timeline_page, "tools/plan/timeline_page.html");

enum { MOST_SPANS = 40000, MOST_PICTURES = 2 }; /* spans of a picture on the page: some megabytes */

typedef struct wishes {
    const char *output, *device, *network, *load;
    int64_t ranks, step; /* 0, -1: not given */
} wishes;

static status write_page(const wishes *w, const char *title, const picture *all, int count, picture_names *names,
                         const plan *p)
{
    json_t *list = json_array(), *kinds = json_array(), *axes = json_array();
    for (int k = 0; k < PICTURE_KINDS; k++)
        json_array_append_new(kinds, json_string(picture_kind_words((picture_kind)k)));
    for (int a = 0; a < PICTURE_ALONG; a++)
        json_array_append_new(axes, json_string(picture_along(a)));
    for (int i = 0; i < count; i++)
        json_array_append_new(list, picture_json(&all[i], names, MOST_SPANS));
    const grid *g = &p->options.grid;
    char sizes[GRID_WORDS];
    grid_words(sizes, g->size, grid_shown(g->size) & ~(1u << GRID_DATA), ", ", NULL);
    AUTO_FREE char *words =
        must_format("%d ranks: %s, data %d; %s, %d micro-batches of %d x %lld tokens", g->ranks, sizes,
                    g->size[GRID_DATA], schedule_name(p->options.layout.schedule), p->options.microbatches,
                    p->options.micro_batch, (long long)p->options.sequence);
    json_auto_t *data =
        json_pack("{s:s, s:s, s:o, s:o, s:[s, s, s, s, s, s], s:O, s:I, s:o}", "title", title, "words", words, "kinds",
                  kinds, "axes", axes, "classes", "inputs", "weights", "gradients", "optimizer", "kept", "temporary",
                  "names", names->list, "budget", (json_int_t)p->options.budget, "pictures", list);
    return page_write(w->output, timeline_page, "@DATA@", data);
}

static status write_events(const wishes *w, const picture *all, int count, const picture_names *names)
{
    json_t *events = json_array();
    for (int i = 0, first = 0; i < count; first += all[i].count, i++)
        picture_events(events, &all[i], names, first);
    json_auto_t *data = json_pack("{s:o, s:s}", "traceEvents", events, "displayTimeUnit", "ms");
    AUTO_FREE char *text = json_dumps(data, JSON_COMPACT | JSON_REAL_PRECISION(13));
    return output_write(w->output, text, (int64_t)strlen(text));
}

/* Prints the step's time and its parts, which sum to it, a line each: bubble, waits for transfers by axis, and the
 * other kinds. */
static void print_shares(const picture *p)
{
    printf("%-20s %.1f ms, bubble %.1f%%", p->name, p->length / 1e3, 100 * p->kinds[PICTURE_BUBBLE]);
    bool any = false;
    for (int a = 0; a < PICTURE_ALONG; a++) {
        if (p->exposed[a] < 0.0005)
            continue;
        printf("%s %s %.1f%%", any ? "," : ", waiting", picture_along(a), 100 * p->exposed[a]);
        any = true;
    }
    double computing = 0;
    for (int k = 0; k < PICTURE_WAIT; k++)
        computing += p->kinds[k];
    printf(", computing %.1f%%", 100 * computing);
    for (int k = PICTURE_CORES; k < PICTURE_KINDS; k++)
        if (p->kinds[k] >= 0.0005)
            printf(", %s %.1f%%", picture_kind_words((picture_kind)k), 100 * p->kinds[k]);
    putchar('\n');
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static status draw(const wishes *w, const char *title, const char *run, const plan *p)
{
    picture all[MOST_PICTURES] = {0};
    picture_names names = {json_object(), json_array()};
    bool traced = false;
    status s = timeline_predict(&all[0], &names, p);
    if (s == STATUS_OK && run)
        s = timeline_measure(&all[1], &traced, &names, run, w->step, &p->options);
    if (s == STATUS_OK && run && !traced)
        log_info("%s has no trace: only what is predicted is shown; run.trace=[10, 12] would time those steps", run);
    for (int i = 0; s == STATUS_OK && i < 1 + traced; i++)
        print_shares(&all[i]);
    if (s == STATUS_OK && w->output)
        s = ends_with(w->output, ".json")  ? write_events(w, all, 1 + traced, &names)
            : ends_with(w->output, ".svg") ? output_print(w->output, timeline_memory_svg, &all[traced])
                                           : write_page(w, title, all, 1 + traced, &names, p);
    for (int i = 0; i < MOST_PICTURES; i++)
        picture_free(&all[i]);
    json_decref(names.place);
    json_decref(names.list);
    return s;
}

/* Returns the run's rank count from its trace files, else from its events; 0 if both are missing. */
static int ranks_of_run(const char *run, const planning_run *of)
{
    int ranks = 0;
    for (bool there = true; there; ranks += there) {
        AUTO_FREE char *path = must_format("%s/" TRACE_FOLDER "/" TRACE_FILE, run, ranks);
        there = access(path, F_OK) == 0;
    }
    return ranks > 0 ? ranks : of->ranks;
}

static status plan_and_draw(config *c, const wishes *w, const char *title, const char *run)
{
    grid g;
    compile_options o;
    RELEASED_BY(profile_free) profile prices = {0};
    RELEASED_BY(plan_free) plan p = {0};
    RELEASED_BY(planning_load_close) planning_load load = {0};
    planning_run of = run ? planning_read_run(run) : (planning_run){0};
    int ranks = (int)w->ranks ? (int)w->ranks : run ? ranks_of_run(run, &of) : 0;
    TRY(weights_configure(c));
    TRY(config_make_grid(&g, c, ranks, 0));
    TRY(profile_open(&prices, w->device ? w->device : planning_device(c, &of)));
    if (w->network)
        TRY(profile_take_network(&prices, w->network));
    TRY(planning_options(&o, c, &g, &of, prices.node_ranks));
    if (w->load)
        TRY(planning_load_open(&load, &prices, w->load, &o));
    TRY(plan_make(&p, &o, &prices, false, -1));
    TRY(draw(w, title, run, &p));
    if (w->load)
        planning_load_print(stdout, &load, &p);
    return STATUS_OK;
}

static status run_command(const wishes *w, int operands, char **argv)
{
    config c;
    if (w->output && !ends_with(w->output, ".html") && !ends_with(w->output, ".json") && !ends_with(w->output, ".svg"))
        return status_fail(
            STATUS_USAGE,
            "--output %s: its name ends with .html for a page, .json for other viewers, or .svg for its memory alone",
            w->output);
    struct stat about;
    const char *run = stat(argv[1], &about) == 0 && S_ISDIR(about.st_mode) ? argv[1] : NULL;
    AUTO_FREE char *path = run ? must_format("%s/config.yaml", run) : must_strdup(argv[1]);
    AUTO_FREE char *title = must_format("A step of %s", argv[1]);
    status s = config_load(&c, path, operands - 1, argv + 2);
    if (s == STATUS_OK) {
        s = plan_and_draw(&c, w, title, run);
        config_free(&c);
    }
    return s;
}

int timeline_main(int argc, char **argv)
{
    wishes w = {.step = -1};
    const options_row rows[] = {
        OPTION_TEXT("--output", "FILE",
                    "FILE.html: a page; FILE.json: for Perfetto or chrome://tracing; FILE.svg: its memory", &w.output),
        OPTION_INTEGER("--step", "N", "which of the steps that were traced; else the last", &w.step, 1, 1e15),
        OPTION_INTEGER("--ranks", "N", "ranks of the job; else the run's, or tensor x pipeline x parallel.data",
                       &w.ranks, 1, INT32_MAX),
        OPTION_TEXT("--device", "NAME|FILE",
                    "prices of the prediction, as for phalanx plan; else the run's, or train.device's", &w.device),
        OPTION_TEXT("--load", "LOAD", PLANNING_LOAD_HELP, &w.load),
        OPTION_TEXT(
            "--network", "FILE",
            "JSON, as of a profile: node_ranks, node, network (bytes/s of a rank), latency, oversubscription, ...",
            &w.network),
    };
    const options_command command = {
        .name = "timeline",
        .operands = "CONFIG.yaml|RUN [key=value ...]",
        .summary =
            "Draws a step: what each stage computes, waits for and sends, and its memory, over time. Of a\n"
            "configuration as it is predicted; of a run's folder also as it was measured, if run.trace named\n"
            "the step. Prints its time, its bubble and what it waits for; --output draws it: a page for any browser,\n"
            "which loads nothing, or a trace for other viewers.",
        .least = 1,
        .most = -1,
        OPTION_ROWS(rows)};
    int operands, code = options_parse(&command, &operands, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    status s = run_command(&w, operands, argv);
    if (s != STATUS_OK)
        log_error("%s", status_message());
    else if (w.output)
        log_info("%s is ready: open it in %s", w.output,
                 ends_with(w.output, ".json") ? "ui.perfetto.dev or chrome://tracing" : "a browser");
    return (int)s;
}
