#include "tools/report/report_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/compile/plan/plan.h"
#include "engine/compile/plan/plan_text.h"
#include "engine/config/config.h"
#include "engine/state/weights/weights.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tools/plan_launch.h"
#include "tools/planning.h"

enum { MOST_SPANS = 8000 }; /* of all stages together: about 250 KB of text */

/* Behind the actions: what is of no micro-batch, and what nobody knows the time of. */
enum { AFTER = ACTION_KINDS, CORES, SPAN_KINDS };
static const char *const kinds[SPAN_KINDS] = {[ACTION_FORWARD] = "forward",
                                              [ACTION_BACKWARD] = "backward",
                                              [ACTION_BACKWARD_INPUT] = "backward, input",
                                              [ACTION_BACKWARD_WEIGHT] = "backward, weights",
                                              [AFTER] = "sums of gradients, update",
                                              [CORES] = "waiting for a core"};

/* In millionths of the step. */
static int place_of(double time, const timing *t)
{
    return t->seconds > 0 ? (int)lround(1e6 * time / t->seconds) : 0;
}

static void add_span(json_t *spans, const timing *t, int kind, action a, double start, double end)
{
    if (end > start)
        json_array_append_new(
            spans, json_pack("[i, i, i, i, i]", kind, a.chunk, a.microbatch, place_of(start, t), place_of(end, t)));
}

static json_t *spans_of(const plan *p, int stage, double until)
{
    const simulation *sim = &p->spans;
    const timing *t = &p->timing;
    const action none = {.microbatch = -1};
    json_t *spans = json_array();
    double last = 0;
    for (int i = 0; i < sim->schedule->counts[stage]; i++) {
        action a = sim->schedule->actions[stage][i];
        simulate_span s = sim->spans[stage][i];
        last = s.end > last ? s.end : last;
        if (s.start < until)
            add_span(spans, t, (int)a.kind, a, s.start, s.end);
    }
    if (until >= t->seconds) {
        add_span(spans, t, AFTER, none, last, t->ranks[stage].end);
        add_span(spans, t, CORES, none, t->seconds - t->cores, t->seconds);
    }
    return spans;
}

/* Seconds by what they go for, which sum to the step. */
static json_t *seconds_of(const timing_rank *r)
{
    json_t *list = json_array();
    json_array_append_new(list, json_pack("[s, f]", "computing", r->compute - r->cores));
    for (int a = 0; a < AXIS_COUNT; a++)
        if (r->exposed[a] > 0) {
            AUTO_FREE char *name = must_format("waiting, %s", axis_name((axis)a));
            json_array_append_new(list, json_pack("[s, f]", name, r->exposed[a]));
        }
    json_array_append_new(list, json_pack("[s, f]", "host copies", r->copies));
    json_array_append_new(list, json_pack("[s, f]", "bubble", r->idle));
    json_array_append_new(list, json_pack("[s, f]", "waiting for a core", r->cores));
    return list;
}

static json_t *timeline_of(const plan *p)
{
    const schedule *s = p->spans.schedule;
    const timing *t = &p->timing;
    int all = 0;
    for (int i = 0; i < s->stages; i++)
        all += s->counts[i];
    double shown = all > MOST_SPANS ? p->spans.length * MOST_SPANS / all : t->seconds;
    json_t *stages = json_array(), *names = json_array();
    for (int i = 0; i < s->stages; i++)
        json_array_append_new(stages, json_pack("{s:f, s:i, s:o, s:o}", "bubble", t->ranks[i].idle / t->seconds,
                                                "in_flight", p->spans.stages[i].in_flight, "seconds",
                                                seconds_of(&t->ranks[i]), "spans", spans_of(p, i, shown)));
    for (int i = 0; i < SPAN_KINDS; i++)
        json_array_append_new(names, json_string(kinds[i]));
    return json_pack("{s:f, s:f, s:i, s:o, s:o}", "length", t->seconds, "shown", shown, "chunks", s->chunks, "kinds",
                     names, "stages", stages);
}

/* [name, size] of each coordinate that the page shows, the one along which ranks are neighbours first. */
static json_t *coordinates_of(const grid *g)
{
    json_t *list = json_array();
    for (int i = 0; i < GRID_AXES; i++)
        if (grid_named(g->size) >> i & 1)
            json_array_append_new(list, json_pack("[s, i]", axis_coordinates[i].name, g->size[i]));
    return list;
}

/* The whole run, as `plan` prints it. */
static json_t *course_of(const config *c, const plan *p, const options_said *said)
{
    AUTO_FREE char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    MUST(out, "out of host memory");
    plan_launch_print(out, c, p, said);
    fclose(out);
    json_t *lines = json_stringn(text, bytes);
    MUST(lines, "a command line is no text: bytes that are no UTF-8");
    return lines;
}

static json_t *object_of(const config *c, const plan *p, const char *file)
{
    const options_said said = {.file = file};
    AUTO_FREE char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    MUST(out, "out of host memory");
    fact_writer f = {.out = out};
    facts_open(&f, "", '{');
    plan_text_facts(&f, p);
    plan_launch_facts(&f, c, p, &said);
    facts_close(&f, '}');
    fclose(out);
    json_t *object = json_loadb(text, bytes, 0, NULL);
    MUST(object, "a plan that is no JSON");
    json_object_set_new(object, "course", course_of(c, p, &said));
    json_object_set_new(object, "timeline", timeline_of(p));
    json_object_set_new(object, "coordinates", coordinates_of(&p->options.grid));
    return object;
}

/* As `phalanx plan` makes it, on the run's ranks and device. */
static status plan_of(json_t **out, config *c, const planning_run *run, const char *folder)
{
    grid g;
    compile_options o;
    reserve beside;
    RELEASED_BY(profile_free) profile prices = {0};
    RELEASED_BY(plan_free) plan p = {0};
    TRY(weights_configure(c));
    TRY(config_lay_out(&g, c, run->ranks, 0));
    TRY(planning_reserve(&beside, folder));
    TRY(profile_open(&prices, planning_device(c, run)));
    prices.reserve = &beside;
    TRY(planning_options(&o, c, &g, run, prices.node_ranks));
    TRY(plan_make(&p, &o, &prices, false, -1));
    TRY(plan_price_order(&p));
    AUTO_FREE char *file = must_format("%s/config.yaml", folder);
    *out = object_of(c, &p, file);
    json_object_set_new(*out, "command",
                        json_sprintf("phalanx plan %s --ranks %d --device %s", file, g.ranks, planning_device(c, run)));
    return STATUS_OK;
}

status report_plan_make(json_t **out, const char *folder)
{
    RELEASED_BY(config_free) config c = {0};
    const planning_run run = planning_run_of(folder);
    AUTO_FREE char *path = must_format("%s/config.yaml", folder);
    TRY(config_load(&c, path, 0, NULL));
    return plan_of(out, &c, &run, folder);
}
