/* phalanx report: one page about one run or several, in one file that needs no network. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/atomic.h"
#include "memory/log.h"
#include "tools/embed.h"
#include "tools/options.h"
#include "tools/report_run.h"
#include "tools/tools.h"

EMBED(report_page, "tools/report_page.html");

/* Points of a curve: few enough for a page under a megabyte, more than a screen has columns. */
enum { POINTS = 3600, POINTS_LEAST = 120, POINTS_MOST = 1200 };

/* The page with the data where it says so; times need 13 digits. A `</` in the data would end the script that holds it. */
static status write_page(const char *path, const json_t *data)
{
    static const char mark[] = "@DATA@";
    const char *place = strstr(report_page, mark);
    MUST(place, "the page has no place for the data");
    char *text = json_dumps(data, JSON_COMPACT | JSON_REAL_PRECISION(13)), *page = NULL;
    size_t bytes;
    MUST(text, "out of host memory");
    FILE *out = open_memstream(&page, &bytes);
    MUST(out, "out of host memory");
    fwrite(report_page, 1, (size_t)(place - report_page), out);
    for (const char *c = text; *c; c++)
        fputs(c[0] == '<' ? "\\u003c" : (char[2]){*c, 0}, out);
    fputs(place + sizeof mark - 1, out);
    fclose(out);
    status s = atomic_replace(path, page, (int64_t)bytes);
    free(page);
    free(text);
    return s;
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
    json_t *data = json_pack("{s:o}", "runs", runs);
    if (s == STATUS_OK)
        s = write_page(path, data);
    json_decref(data);
    return s;
}

int report_main(int argc, char **argv)
{
    const char *output = NULL;
    const options_row rows[] = {
        {"--output", OPTIONS_TEXT, "FILE.html", "the page; one that is there is replaced", &output, 0, 0, NULL},
    };
    const options_command command = {
        .name = "report",
        .operands = "RUN [RUN ...]",
        .summary =
            "Makes a page about one run's folder, or several to compare: curves, where a step's time goes, layout, "
            "memory,\n"
            "the simulated timeline of a step, hosts, and events (checkpoints, resumes, skipped steps, incidents). "
            "One\n"
            "file for any browser; it loads nothing. A run that is still going on is shown as far as it has come.",
        .least = 1,
        .most = 64,
        .row = rows,
        .rows = sizeof rows / sizeof *rows};
    int operands, code = options_parse(&command, &operands, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    if (!output) {
        log_error("report needs --output FILE.html");
        return STATUS_USAGE;
    }
    status s = run(argv + 1, operands, output);
    if (s != STATUS_OK)
        log_error("%s", status_message());
    else
        log_info("%s is ready: open it in a browser", output);
    return (int)s;
}
