#include "tools/report/report_run.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/config.h"
#include "engine/system/atomic.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tools/report/report_plan.h"
#include "tools/series.h"

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

static void add_events(json_t *all, const char *folder)
{
    AUTO_FREE char *path = must_format("%s/events.jsonl", folder);
    json_t *lines = series_lines(path, "event"), *line;
    size_t i;
    json_array_foreach(lines, i, line) add_event(all, json_string_value(json_object_get(line, "event")), line,
                                                 json_string_value(json_object_get(line, "words")));
    json_decref(lines);
}

/* "frozen: rank 3 on node7: ..." */
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

/* In order of time; of too many the last, which say how it ended. */
static json_t *events_of(const char *folder, const json_t *steps)
{
    json_t *all = json_array(), *kept = json_array();
    const json_t *line;
    size_t number;
    add_events(all, folder);
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

/* Of many ranks the first ones. */
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
    FILE *f = fopen(path, "r");
    size_t bytes = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f)
        fclose(f);
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
    char *metrics = must_format("%s/metrics.jsonl", folder), *path = must_format("%s/config.yaml", folder);
    bool there = atomic_exists(metrics) && atomic_exists(path);
    if (there) {
        json_t *steps = series_lines(metrics, "loss"), *evaluations = series_lines(metrics, "eval_loss");
        json_t *run = json_pack("{s:s, s:o, s:o, s:I, s:o, s:o, s:o, s:o}", "folder", folder, "config", text_of(path),
                                "summary", summary_of(folder), "steps", (json_int_t)json_array_size(steps), "series",
                                series_columns(steps, step_keys, "loss", points), "validation",
                                series_columns(evaluations, evaluation_keys, "eval_loss", points), "events",
                                events_of(folder, steps), "hosts", hosts_of(folder));
        MUST(run, "out of host memory");
        json_t *plan = NULL;
        if (report_plan_make(&plan, folder) == STATUS_OK)
            json_object_set_new(run, "plan", plan);
        else
            json_object_set_new(run, "plan_error", json_string(status_message()));
        /* Every key with its value, to compare runs by. */
        config c;
        json_auto_t *keys = json_object();
        if (config_load(&c, path, 0, NULL) == STATUS_OK) {
            if (config_each(&c, put_key, keys) == STATUS_OK)
                json_object_set(run, "keys", keys);
            config_free(&c);
        }
        json_decref(steps);
        json_decref(evaluations);
        *out = run;
    }
    free(metrics);
    free(path);
    return there ? STATUS_OK
                 : status_fail(STATUS_FAILED, "%s is no run's folder: it has no metrics.jsonl and config.yaml", folder);
}
