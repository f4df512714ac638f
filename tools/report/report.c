/* phalanx report: writes one page about one or several runs, in one file that needs no network. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tools/page.h"
#include "tools/options.h"
#include "tools/report/report_run.h"
#include "tools/series.h"
#include "tools/tools.h"

EMBED(report_page, "tools/report/report_page.html");
EMBED(report_wandb, "tools/report/report_wandb.py");

/* Points of a curve: they keep a page under a megabyte, and exceed a screen's columns. */
enum { POINTS = 3600, POINTS_LEAST = 120, POINTS_MOST = 1200 };

/* Returns the names of a step's numbers, which are those in TensorBoard and MLflow. */
static json_t *names_of_metrics(void)
{
    static const struct {
        const char *key, *tag;
    } rows[] = {
#define METRIC(kind, name, when, tag, ...) {#name, tag},
#include "engine/train/report/metrics.def"
    };
    json_t *names = json_object();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].tag)
            json_object_set_new(names, rows[i].key, json_string(rows[i].tag));
    return names;
}

/* Writes absolute paths of the folders, so that the script may run anywhere. */
static status write_wandb(char *const *folders, int count, const char *path)
{
    json_t *list = json_array();
    status s = STATUS_OK;
    for (int i = 0; i < count && s == STATUS_OK; i++) {
        AUTO_FREE char *whole = realpath(folders[i], NULL), *metrics = must_format("%s/metrics.jsonl", folders[i]);
        if (!whole || access(metrics, R_OK) != 0)
            s = status_fail(STATUS_FAILED, "%s is no run's folder: %s cannot be read", folders[i], metrics);
        else
            json_array_append_new(list, json_string(whole));
    }
    json_auto_t *data = json_pack("{s:o, s:o}", "runs", list, "names", names_of_metrics());
    if (s == STATUS_OK)
        s = page_write(path, report_wandb, "@DATA@", data);
    return s;
}

/* Tells, and returns, at which step each later run's weights are no longer those of the first (run.hash_every). */
static json_t *find_partings(char *const *folders, int count)
{
    json_t *partings = json_array(), *line;
    json_auto_t *first = json_object(); /* hashes of the first run, by step */
    size_t number;
    for (int i = 0; i < count; i++) {
        AUTO_FREE char *path = must_format("%s/metrics.jsonl", folders[i]);
        json_auto_t *lines = series_lines(path, "weights_hash");
        long long same = -1, other = -1;
        json_array_foreach(lines, number, line)
        {
            long long step = json_integer_value(json_object_get(line, "step"));
            json_t *hash = json_object_get(line, "weights_hash");
            AUTO_FREE char *key = must_format("%lld", step);
            json_t *before = json_object_get(first, key);
            if (i == 0)
                json_object_set(first, key, hash);
            else if (before && other < 0)
                *(json_equal(before, hash) ? &same : &other) = step;
        }
        if (same < 0 && other < 0)
            continue;
        AUTO_FREE char *up_to = same < 0 ? must_strdup("") : must_format("have equal weights up to step %lld", same),
                       *from = other < 0
                                   ? must_strdup("")
                                   : must_format("%shave other weights at step %lld", *up_to ? ", and " : "", other);
        json_array_append_new(partings,
                              json_sprintf("%s and %s %s%s (run.hash_every).", folders[0], folders[i], up_to, from));
        log_info("%s", json_string_value(json_array_get(partings, json_array_size(partings) - 1)));
    }
    return partings;
}

static status run(char *const *folders, int count, const char *path)
{
    json_t *runs = json_array();
    int points = POINTS / count > POINTS_MOST    ? POINTS_MOST
                 : POINTS / count < POINTS_LEAST ? POINTS_LEAST
                                                 : POINTS / count;
    status s = STATUS_OK;
    for (int i = 0; i < count && s == STATUS_OK; i++) {
        json_t *one = NULL;
        s = report_run_read(&one, folders[i], points);
        if (s == STATUS_OK)
            json_array_append_new(runs, one);
    }
    json_auto_t *data = json_pack("{s:o, s:o}", "runs", runs, "partings",
                                  s == STATUS_OK ? find_partings(folders, count) : json_array());
    if (s == STATUS_OK)
        s = page_write(path, report_page, "@DATA@", data);
    return s;
}

int report_main(int argc, char **argv)
{
    const char *output = NULL, *wandb = NULL;
    const options_row rows[] = {
        OPTION_TEXT("--output", "FILE.html", "the page; one that is there is replaced", &output),
        OPTION_TEXT("--wandb", "FILE.py", "a Python script that sends the runs to Weights & Biases", &wandb),
    };
    const options_command command = {
        .name = "report",
        .operands = "RUN [RUN ...]",
        .summary =
            "Makes a page about one run's folder, or several to compare: curves (to zoom, hide and save as CSV, with\n"
            "marks of restarts, checkpoints and incidents), where a step's time goes, layout, memory and the "
            "simulated\n"
            "timeline of a step as phalanx plan has them, hosts, events, and what differs between the configurations.\n"
            "One file for any browser; it loads nothing. A run that is still going on is shown as far as it has come.",
        .least = 1,
        .most = 64,
        OPTION_ROWS(rows)};
    int operands, code = options_parse(&command, &operands, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    if (!output && !wandb) {
        log_error("report needs --output FILE.html or --wandb FILE.py");
        return STATUS_USAGE;
    }
    status s = output ? run(argv + 1, operands, output) : STATUS_OK;
    if (s == STATUS_OK && output)
        log_info("%s is ready: open it in a browser", output);
    if (s == STATUS_OK && wandb)
        s = write_wandb(argv + 1, operands, wandb);
    if (s != STATUS_OK)
        log_error("%s", status_message());
    else if (wandb)
        log_info("%s is ready: python3 %s, where the package wandb is", wandb, wandb);
    return (int)s;
}
