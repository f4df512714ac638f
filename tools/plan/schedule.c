/* phalanx schedule: shows bubble, memory and timeline of a pipeline schedule, without a model. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/files/facts.h"
#include "engine/files/output.h"
#include "memory/pool.h"
#include "memory/scope.h"
#include "parallel/schedule/schedule.h"
#include "parallel/schedule/schedule_make.h"
#include "parallel/schedule/simulate.h"
#include "tools/options.h"
#include "tools/tools.h"

static const double NUMBER_MOST = 1e12;

typedef struct wishes {
    int kind; /* schedule_kind */
    int64_t stages, chunks, microbatches;
    const char *costs, *keeps, *svg;
    double memory; /* 0: not given */
    bool json, barrier;
} wishes;

/* Costs of the whole stage for one micro-batch: time in seconds, memory in units of its activations. */
typedef struct stage_terms {
    double forward, input, weight, message;
    double after_forward, after_input;
} stage_terms;

/* Reads `count` comma-separated numbers, at least 0, and small enough that their sums stay finite. */
static status read_numbers(double *out, int count, const char *name, const char *text)
{
    const char *at = text;
    for (int i = 0; i < count; i++) {
        char *end;
        out[i] = strtod(at, &end);
        if (end == at || !(out[i] >= 0 && out[i] <= NUMBER_MOST) || *end != (i + 1 < count ? ',' : '\0'))
            return status_fail(STATUS_USAGE, "%s %.80s: give %d numbers from 0 to %g with commas between", name, text,
                               count, NUMBER_MOST);
        at = end + 1;
    }
    return STATUS_OK;
}

static status read_terms(stage_terms *out, const wishes *w)
{
    double costs[4], keeps[2] = {1, 1};
    TRY(read_numbers(costs, 4, "--costs", w->costs));
    if (w->keeps)
        TRY(read_numbers(keeps, 2, "--keeps", w->keeps));
    if (!(costs[0] > 0 && costs[1] > 0))
        return status_fail(STATUS_USAGE, "--costs %.80s: a forward and an input's gradient take time", w->costs);
    *out = (stage_terms){costs[0], costs[1], costs[2], costs[3], keeps[0], keeps[1]};
    return STATUS_OK;
}

/* Inputs of the search, by global chunk and by stage. */
typedef struct tables {
    simulate_cost *costs;
    double *holds, *defers, *peaks, *limit;
} tables;

static void open_tables(tables *t, pool *p, const wishes *w, const stage_terms *of)
{
    unsigned long chunks = (unsigned long)w->chunks, stages = (unsigned long)w->stages, n = stages * chunks;
    double share = 1 / (double)w->chunks;
    *t = (tables){.costs = pool_alloc(p, n * sizeof *t->costs),
                  .holds = pool_alloc(p, n * sizeof(double)),
                  .defers = pool_alloc(p, n * sizeof(double)),
                  .peaks = pool_alloc(p, stages * sizeof(double)),
                  .limit = pool_alloc(p, stages * sizeof(double))};
    for (unsigned long g = 0; g < n; g++) {
        t->costs[g] = (simulate_cost){of->forward * share, of->input * share, of->weight * share};
        t->holds[g] = of->after_forward * share;
        t->defers[g] = of->after_input * share;
    }
}

static double most(const double *of, int64_t count)
{
    double value = 0;
    for (int64_t i = 0; i < count; i++)
        value = of[i] > value ? of[i] : value;
    return value;
}

/* Searches a schedule within --memory, or within the memory of 1F1B. */
static status find_schedule(schedule *out, tables *t, const wishes *w, const stage_terms *of)
{
    int stages = (int)w->stages, chunks = (int)w->chunks, microbatches = (int)w->microbatches;
    double limit = w->memory, least = of->after_forward;
    if (limit > 0 && limit < least * (1 - 1e-9))
        return status_fail(STATUS_USAGE, "auto: a stage holds at least %g, of one micro-batch, and --memory is %g",
                           least, limit);
    if (limit <= 0) {
        RELEASED_BY(schedule_free) schedule s = {0};
        TRY(schedule_make(&s, SCHEDULE_1F1B, stages, chunks, microbatches));
        schedule_search_peaks(t->peaks, &s, t->holds, t->defers);
        limit = most(t->peaks, stages);
    }
    for (int i = 0; i < stages; i++)
        t->limit[i] = limit;
    return schedule_search(out, &(schedule_search_terms){.stages = stages,
                                                         .chunks = chunks,
                                                         .microbatches = microbatches,
                                                         .costs = t->costs,
                                                         .hop = of->message,
                                                         .holds = t->holds,
                                                         .defers = t->defers,
                                                         .limit = {t->limit, chunks == 2 ? t->limit : NULL},
                                                         .barrier = w->barrier});
}

static status make_schedule(schedule *out, tables *t, const wishes *w, const stage_terms *of)
{
    if (w->kind == SCHEDULE_AUTO) {
        TRY(find_schedule(out, t, w, of));
    } else {
        TRY(schedule_make(out, (schedule_kind)w->kind, (int)w->stages, (int)w->chunks, (int)w->microbatches));
    }
    TRY(schedule_check(out));
    schedule_search_peaks(t->peaks, out, t->holds, t->defers);
    double peak = most(t->peaks, w->stages);
    if (w->memory > 0 && peak > w->memory * (1 + 1e-9))
        return status_fail(STATUS_USAGE, "%s holds %g micro-batches of a stage, and --memory is %g",
                           schedule_name(out->kind), peak, w->memory);
    return STATUS_OK;
}

/* Returns the fraction of `time` in which the busiest stage is idle. */
static double bubble(const simulation *sim, double time)
{
    double busy = 0;
    for (int i = 0; i < sim->schedule->stages; i++)
        busy = sim->stages[i].busy > busy ? sim->stages[i].busy : busy;
    return time > 0 ? 1 - busy / time : 0;
}

static void print_json(const schedule *s, const simulation *sim, const double *peaks)
{
    static const char *const letters[ACTION_KINDS] = {"F", "B", "I", "W"};
    fact_writer f = {.out = stdout, .digits = 9};
    facts_open(&f, "", '{');
    FACTS(&f, FACT("schedule", schedule_name(s->kind)), FACT("folded", s->folded), FACT("stages", s->stages),
          FACT("chunks", s->chunks), FACT("micro_batches", s->microbatches), FACT("\n bubble", bubble(sim, sim->span)),
          FACT("bubble_with_barrier", bubble(sim, sim->length)), FACT("span", sim->span), FACT("length", sim->length),
          FACT("peak", most(peaks, s->stages)));
    facts_open(&f, "\n timeline", '[');
    for (int stage = 0; stage < s->stages; stage++) {
        facts_open(&f, "\n  ", '{');
        FACTS(&f, FACT("stage", stage), FACT("busy", sim->stages[stage].busy), FACT("peak", peaks[stage]));
        facts_open(&f, "actions", '[');
        for (int i = 0; i < s->counts[stage]; i++) {
            const action a = s->actions[stage][i];
            facts_open(&f, "\n   ", '[');
            FACTS(&f, FACT("", letters[a.kind]), FACT("", (int)a.chunk), FACT("", (int)a.microbatch),
                  FACT("", sim->spans[stage][i].start), FACT("", sim->spans[stage][i].end));
            facts_close(&f, ']');
        }
        facts_close(&f, ']');
        facts_close(&f, '}');
    }
    facts_close(&f, ']');
    facts_close(&f, '}');
    putchar('\n');
}

static void print_text(const schedule *s, const simulation *sim, const double *peaks)
{
    timeline_print(stdout, sim, timeline_style_of(stdout));
    printf("\nbubble %.4f of the longest stage's time (%.6g), %.4f where the update waits for all stages (%.6g)\n",
           bubble(sim, sim->span), sim->span, bubble(sim, sim->length), sim->length);
    printf("peak of activations, in micro-batches of a stage: %.4g\n", most(peaks, s->stages));
}

static status run_schedule(const wishes *w)
{
    stage_terms of = {0};
    TRY(read_terms(&of, w));
    tables t;
    RELEASED_BY(pool_free) pool p = {0};
    RELEASED_BY(schedule_free) schedule s = {0};
    RELEASED_BY(simulate_free) simulation sim = {0};
    open_tables(&t, &p, w, &of);
    TRY(make_schedule(&s, &t, w, &of));
    double share = of.after_forward > 0 ? of.after_input / of.after_forward : 0;
    TRY(simulate_run(&sim, &s, t.costs, of.message, share));
    for (int i = 0; i < s.stages; i++) /* count peaks as --keeps does, also in pictures */
        sim.stages[i].peak = t.peaks[i];
    (w->json ? print_json : print_text)(&s, &sim, t.peaks);
    return w->svg ? output_print(w->svg, timeline_svg, &sim) : STATUS_OK;
}

/* Returns OPTIONS_GO_ON or the exit status. */
static int read_wishes(wishes *w, int *operands, int argc, char **argv)
{
    enum { MOST = 1024 };
    *w = (wishes){.kind = SCHEDULE_1F1B, .stages = 4, .chunks = 1, .microbatches = 8, .costs = "1,1,1,0"};
    const options_row rows[] = {
        OPTION_CHOICE("--kind", "auto: found for the costs within the memory (1f1b)", &w->kind, schedule_names),
        OPTION_INTEGER("--stages", "P", "pipeline stages (4)", &w->stages, 1, MOST),
        OPTION_INTEGER("--chunks", "V", "virtual stages; 2 for zb-v, v-half and v-min (1)", &w->chunks, 1, MOST),
        OPTION_INTEGER("--micro-batches", "M", "of a step (8)", &w->microbatches, 1, 1 << 20),
        OPTION_TEXT("--costs", "F,I,W,MESSAGE",
                    "of a micro-batch on a stage: forward, gradients of input and weights, a message (1,1,1,0)",
                    &w->costs),
        OPTION_TEXT("--keeps", "F,I", "activations held after a forward, and between I and W (1,1)", &w->keeps),
        OPTION_NUMBER("--memory", "M", "most that a stage may hold, in the same unit (auto: what 1f1b holds)",
                      &w->memory, 1e-9, 1e9),
        OPTION_FLAG("--barrier", "auto: shorten the step whose update waits for all stages", &w->barrier),
        OPTION_FLAG("--json", "the same facts for programs, and when each action begins and ends", &w->json),
        OPTION_TEXT("--svg", "FILE", "draw the timeline into an SVG file", &w->svg),
    };
    const options_command command = {
        .name = "schedule",
        .operands = "",
        .summary = "Says how much of a pipeline's time is bubble, what its stages hold at their peak, and when each\n"
                   "action runs, for given costs and without a model.",
        .least = 0,
        .most = 0,
        OPTION_ROWS(rows),
    };
    return options_parse(&command, operands, argc, argv);
}

int schedule_main(int argc, char **argv)
{
    wishes w;
    int operands, code = read_wishes(&w, &operands, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    status s = run_schedule(&w);
    return options_exit(s);
}
