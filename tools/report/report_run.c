#include "tools/report/report_run.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/plan/plan.h"
#include "engine/config/config.h"
#include "engine/state/weights/weights.h"
#include "engine/system/atomic.h"
#include "engine/system/reading.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/status.h"
#include "tools/plan/plan_parts.h"
#include "tools/planning.h"
#include "tools/series.h"

/* Returns the JSON of `phalanx plan` for a run's configuration, with the actions of each stage in time. */

enum { MOST_SPANS = 8000 }; /* spans of all stages together: about 250 KB of text */

/* Kinds after the actions: ops of no micro-batch, and waiting for a core at unknown times. */
enum { AFTER = ACTION_KINDS, CORES, SPAN_KINDS };
static const char *const kinds[SPAN_KINDS] = {[ACTION_FORWARD] = "forward",
                                              [ACTION_BACKWARD] = "backward",
                                              [ACTION_BACKWARD_INPUT] = "backward, input",
                                              [ACTION_BACKWARD_WEIGHT] = "backward, weights",
                                              [AFTER] = "sums of gradients, update",
                                              [CORES] = "waiting for a core"};

/* Returns millionths of the step. */
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

/* Returns seconds by cause, which sum to the step. */
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

static void write_facts(FILE *out, const config *c, const plan *p, const options_said *said)
{
    fact_writer f = {.out = out};
    facts_open(&f, "", '{');
    plan_text_facts(&f, p);
    plan_launch_facts(&f, c, p, said);
    facts_close(&f, '}');
}

static json_t *object_of(const config *c, const plan *p, const char *file)
{
    const options_said said = {.file = file};
    AUTO_FREE char *text = MUST_PRINT(out, write_facts(out, c, p, &said));
    AUTO_FREE char *course =
        MUST_PRINT(out, plan_launch_print(out, c, p, &said)); /* the whole run, as plan prints it */
    json_t *object = json_loads(text, 0, NULL);
    MUST(object, "a plan that is no JSON");
    json_object_set_new(object, "course", json_string(course));
    json_object_set_new(object, "timeline", timeline_of(p));
    const int *size = p->options.grid.size;
    json_t *coordinates = json_array(); /* [name, size]; the one along which ranks are neighbours comes first */
    for (int i = 0; i < GRID_AXES; i++)
        if (grid_shown(size) >> i & 1)
            json_array_append_new(coordinates, json_pack("[s, i]", axis_coordinates[i].name, size[i]));
    json_object_set_new(object, "coordinates", coordinates);
    return object;
}

/* Plans the run in `folder`, on the ranks and the device of its latest start. The caller owns the result: the object of
 * `plan --json`, with `command`, which prints the same, and timeline: {length, shown, kinds, stages: [{bubble,
 * in_flight, seconds: [[name, seconds], ...], spans: [[kind, chunk, micro-batch, start, end], ...]}]}: `length` is the
 * step, to which `seconds` sum; start and end are in millionths of it. If a step has very many actions, it is cut at
 * `shown`. */
static status plan_run(json_t **out, const char *folder)
{
    grid g;
    compile_options o;
    reserve beside;
    RELEASED_BY(config_free) config c = {0};
    RELEASED_BY(profile_free) profile prices = {0};
    RELEASED_BY(plan_free) plan p = {0};
    const planning_run run = planning_read_run(folder);
    AUTO_FREE char *file = must_format("%s/config.yaml", folder);
    TRY(config_load(&c, file, 0, NULL));
    TRY(weights_configure(&c));
    TRY(config_make_grid(&g, &c, run.ranks, 0));
    TRY(planning_reserve(&beside, folder));
    TRY(profile_open(&prices, planning_device(&c, &run)));
    prices.reserve = &beside;
    TRY(planning_options(&o, &c, &g, &run, prices.node_ranks));
    TRY(plan_make(&p, &o, &prices, false, -1));
    TRY(plan_price_order(&p));
    *out = object_of(&c, &p, file);
    json_object_set_new(
        *out, "command",
        json_sprintf("phalanx plan %s --ranks %d --device %s", file, g.ranks, planning_device(&c, &run)));
    return STATUS_OK;
}

enum { MOST_EVENTS = 400, MOST_HOSTS = 16, MOST_RANKS = 64, HOST_POINTS = 200 };

#define CURVE_0(name)
#define CURVE_1(name)                        #name,
#define METRIC(kind, name, when, tag, curve) CURVE_##curve(name)
static const char *const step_keys[] = {"step", "time",
#include "engine/train/report/metrics.def"
                                        NULL};
static const char *const evaluation_keys[] = {"step", "time", "eval_loss", "eval_losses", NULL};
static const char *const host_keys[] = {"time",
                                        "step",
                                        "cpu_busy",
                                        "memory_bytes",
                                        "disk_read_bytes_per_second",
                                        "disk_written_bytes_per_second",
                                        "network_received_bytes_per_second",
                                        "network_sent_bytes_per_second",
                                        "gpu0_busy",
                                        "gpu0_memory_bytes",
                                        "gpu0_watts",
                                        "gpu0_celsius",
                                        NULL};

/* ---- events ---- */

static void add_event(json_t *all, const char *kind, const json_t *line, const char *words)
{
    json_t *time = json_object_get(line, "time"), *step = json_object_get(line, "step");
    json_array_append_new(
        all, json_pack("{s:s, s:O?, s:O?, s:s?}", "kind", kind, "time", time, "step", step, "words", words));
}

/* Adds incidents as "frozen: rank 3 on node7: ...". */
static void add_incidents(json_t *all, const char *folder)
{
    AUTO_FREE char *path = must_format("%s/incidents.jsonl", folder);
    json_t *lines = series_lines(path, "verdict"), *line;
    size_t i;
    json_array_foreach(lines, i, line)
    {
        const char *words = json_string_value(json_object_get(line, "words"));
        const char *verdict = json_string_value(json_object_get(line, "verdict"));
        const char *host = json_string_value(json_object_get(line, "host"));
        const json_t *rank = json_object_get(line, "rank");
        AUTO_FREE char *text = must_format("%s%s%s%s%s", verdict ? verdict : "", host ? ", " : "", host ? host : "",
                                           words ? ": " : "", words ? words : "");
        AUTO_FREE char *who =
            json_is_integer(rank) ? must_format("rank %d: %s", (int)json_integer_value(rank), text) : NULL;
        add_event(all, json_is_true(json_object_get(line, "ends")) ? "incident, ended the job" : "incident", line,
                  who ? who : text);
    }
    json_decref(lines);
}

static int by_time(const void *a, const void *b)
{
    double x = json_number_value(json_object_get(*(json_t *const *)a, "time"));
    double y = json_number_value(json_object_get(*(json_t *const *)b, "time"));
    return (x > y) - (x < y);
}

/* Sorts events by time; if there are too many, keeps the last, which tell how the run ended. */
static json_t *events_of(const char *folder, const json_t *steps)
{
    json_t *all = json_array(), *kept = json_array();
    const json_t *line;
    size_t number;
    AUTO_FREE char *path = must_format("%s/events.jsonl", folder);
    json_auto_t *lines = series_lines(path, "event");
    json_array_foreach(lines, number, line) add_event(all, json_string_value(json_object_get(line, "event")), line,
                                                      json_string_value(json_object_get(line, "words")));
    add_incidents(all, folder);
    json_array_foreach((json_t *)steps, number, line) if (json_is_true(json_object_get(line, "skipped")))
        add_event(all, "skipped step", line, "a gradient was not finite: nothing changed");
    size_t count = json_array_size(all);
    AUTO_FREE json_t **sorted = must_calloc(count + 1, sizeof *sorted);
    for (size_t i = 0; i < count; i++)
        sorted[i] = json_array_get(all, i);
    qsort(sorted, count, sizeof *sorted, by_time);
    for (size_t i = count > MOST_EVENTS ? count - MOST_EVENTS : 0; i < count; i++)
        json_array_append(kept, sorted[i]);
    json_decref(all);
    return json_pack("{s:I, s:o}", "count", (json_int_t)count, "list", kept);
}

/* ---- hosts ---- */

static int is_name(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static json_t *hosts_of(const char *folder)
{
    json_t *hosts = json_object();
    AUTO_FREE struct dirent **entries = NULL;
    AUTO_FREE char *top = must_format("%s/hosts", folder);
    int count = scandir(top, &entries, is_name, alphasort);
    for (int i = 0; i < count; i++) {
        AUTO_FREE char *path = must_format("%s/%s/resources.jsonl", top, entries[i]->d_name);
        json_auto_t *lines = i < MOST_HOSTS ? series_lines(path, "time") : NULL;
        if (json_array_size(lines) > 0)
            json_object_set_new(hosts, entries[i]->d_name, series_columns(lines, host_keys, "cpu_busy", HOST_POINTS));
        free(entries[i]);
    }
    return hosts;
}

/* ---- the run ---- */

/* Reads the summary; keeps the first ranks of many. */
static json_t *summary_of(const char *folder)
{
    AUTO_FREE char *path = must_format("%s/summary.json", folder);
    json_t *summary = json_load_file(path, 0, NULL), *ranks = json_object_get(summary, "ranks");
    size_t count = json_array_size(ranks);
    if (ranks) {
        json_object_set_new(summary, "rank_count", json_integer((json_int_t)count));
        while (json_array_size(ranks) > MOST_RANKS)
            json_array_remove(ranks, json_array_size(ranks) - 1);
    }
    return summary ? summary : json_object();
}

static json_t *text_of(const char *path)
{
    char text[65536];
    AUTO(FILE) *f = reading_stream(path);
    size_t bytes = f ? fread(text, 1, sizeof text - 1, f) : 0;
    text[bytes] = 0;
    json_t *value = json_string(text);
    return value ? value : json_string("");
}

static status put_key(void *context, const char *key, const char *value)
{
    json_object_set_new(context, key, json_string(value));
    return STATUS_OK;
}

status report_run_read(json_t **out, const char *folder, int points)
{
    AUTO_FREE char *metrics = must_format("%s/metrics.jsonl", folder), *path = must_format("%s/config.yaml", folder);
    if (!atomic_exists(metrics) || !atomic_exists(path))
        return status_fail(STATUS_FAILED, "%s is no run's folder: it has no metrics.jsonl and config.yaml", folder);
    json_auto_t *steps = series_lines(metrics, "loss"), *evaluations = series_lines(metrics, "eval_loss");
    json_t *run = json_pack("{s:s, s:o, s:o, s:I, s:o, s:o, s:o, s:o}", "folder", folder, "config", text_of(path),
                            "summary", summary_of(folder), "steps", (json_int_t)json_array_size(steps), "series",
                            series_columns(steps, step_keys, "loss", points), "validation",
                            series_columns(evaluations, evaluation_keys, "eval_loss", points), "events",
                            events_of(folder, steps), "hosts", hosts_of(folder));
    MUST(run, "out of host memory");
    json_t *planned = NULL;
    if (plan_run(&planned, folder) == STATUS_OK)
        json_object_set_new(run, "plan", planned);
    else
        json_object_set_new(run, "plan_error", json_string(status_message()));
    /* Adds every key with its value, to compare runs by. */
    RELEASED_BY(config_free) config c = {0};
    json_auto_t *keys = json_object();
    if (config_load(&c, path, 0, NULL) == STATUS_OK && config_each(&c, put_key, keys) == STATUS_OK)
        json_object_set(run, "keys", keys);
    *out = run;
    return STATUS_OK;
}
