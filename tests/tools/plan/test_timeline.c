/* phalanx timeline: the trace of a run is whole and true to the program, the page and the events are those of plan and
 * trace. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/tools/pages.h"
#include "tests/test.h"

enum { RANKS = 4, STEPS = 5, FIRST = 2, LAST = 3 };

/* On two stages of two ranks; steps FIRST to LAST are traced. */
static int prepare(void **state)
{
    if (workfolder_setup(state) != 0)
        return -1;
    const char *top = *state;
    runs_write_small(top, 6000, STEPS, "", "");
    AUTO_FREE char *run = workfolder_path(top, "run"), *traces = workfolder_path(run, "trace"),
                   *link = workfolder_path(traces, "rank-00000.json"), *precious = workfolder_path(top, "precious");
    workfolder_write(precious, "precious", 8);
    assert_int_equal(mkdir(run, 0777) | mkdir(traces, 0777) | symlink(precious, link), 0);
    free(runs_train_well(120, RANKS,
                         "%s/run.yaml run.folder=%s/run parallel.pipeline=2 parallel.tensor=2 model.layers=4 "
                         "run.trace=[%d,%d]",
                         top, top, FIRST, LAST));
    return 0;
}

static char *trace_path(const char *top, int rank)
{
    return must_format("%s/run/trace/rank-%05d.json", top, rank);
}

static json_t *events_of(const char *path)
{
    json_error_t error;
    json_t *events = json_load_file(path, 0, &error);
    if (!events)
        fail_msg("%s: %s", path, error.text);
    return events;
}

static json_t *said_by_plan(const char *top)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r = launch_run(30, "%s plan %s/run/config.yaml --json --every-rank --ranks %d", program, top, RANKS);
    assert_int_equal(r.status, 0);
    json_t *plan = json_loads(r.out, 0, NULL);
    assert_non_null(plan);
    launch_free(&r);
    return plan;
}

static const char *text(const json_t *event, const char *key)
{
    const char *value = json_string_value(json_object_get(event, key));
    return value ? value : "";
}

static double number(const json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

static int argument(const json_t *event, const char *key)
{
    return (int)json_integer_value(json_object_get(json_object_get(event, "args"), key));
}

/* Every op of the program once in every traced step, one after another; each launch with its transfer. */
TEST(every_op_of_every_traced_step_is_there)
{
    json_t *plan = said_by_plan(*state);
    for (int rank = 0; rank < RANKS; rank++) {
        char *path = trace_path(*state, rank);
        json_t *events = events_of(path), *event;
        size_t i;
        const json_t *facts = json_array_get(json_object_get(plan, "ranks"), (size_t)rank);
        int ops = (int)number(facts, "ops"), seen[LAST + 1] = {0}, launched = 0, travels = 0;
        double end = 0;
        json_array_foreach(events, i, event)
        {
            const char *kind = text(event, "ph");
            if (*kind == 'M' || *kind == 'C')
                continue;
            int step = argument(event, "step");
            assert_true(step >= FIRST && step <= LAST);
            assert_int_equal((int)number(event, "pid"), rank);
            if (*kind == 'X') {
                assert_true(number(event, "ts") >= end - 1e-2 && number(event, "dur") >= 0);
                end = number(event, "ts") + number(event, "dur");
                seen[step]++;
                launched += strncmp(text(event, "name"), "launch ", 7) == 0;
            }
            travels += *kind == 'b';
        }
        for (int step = FIRST; step <= LAST; step++)
            assert_int_equal(seen[step], ops);
        assert_true(launched > 20 && launched == travels);
        json_decref(events);
        free(path);
    }
    json_decref(plan);
}

/* Of a counter each series is a number. */
static void check_counter(const json_t *event)
{
    json_t *value;
    const char *series;
    assert_true(json_is_number(json_object_get(event, "ts")));
    assert_true(json_object_size(json_object_get(event, "args")) > 0);
    json_object_foreach(json_object_get(event, "args"), series, value) assert_true(json_number_value(value) >= 0);
}

/* The Trace Event Format: a complete event has a time and a duration, those of a thread do not overlap; each begin of a
 * transfer has its end, with the same category, id and process; a flow has a number. */
static void check_format(const json_t *events)
{
    json_t *open = json_object(), *ends = json_object(), *event;
    size_t i;
    json_array_foreach((json_t *)events, i, event)
    {
        const char *kind = text(event, "ph");
        char key[128], thread[64];
        snprintf(key, sizeof key, "%s %s %d", text(event, "cat"), text(event, "id"), (int)number(event, "pid"));
        snprintf(thread, sizeof thread, "%d %d", (int)number(event, "pid"), (int)number(event, "tid"));
        assert_true(*text(event, "name") && json_is_integer(json_object_get(event, "pid")));
        if (*kind == 'X') {
            double before = number(ends, thread), at = number(event, "ts"), lasts = number(event, "dur");
            assert_true(json_is_number(json_object_get(event, "dur")) && at >= before - 1e-2 && lasts >= 0);
            json_object_set_new(ends, thread, json_real(at + lasts));
        } else if (*kind == 'b') {
            assert_null(json_object_get(open, key));
            json_object_set_new(open, key, json_real(number(event, "ts")));
        } else if (*kind == 'e') {
            assert_non_null(json_object_get(open, key));
            assert_true(number(event, "ts") >= number(open, key));
            json_object_del(open, key);
        } else if (*kind == 's' || *kind == 'f') {
            assert_true(json_is_integer(json_object_get(event, "id")) && number(event, "id") < 4503599627370496.0);
        } else if (*kind == 'C') {
            check_counter(event);
        } else {
            assert_string_equal(kind, "M");
        }
    }
    assert_int_equal(json_object_size(open), 0);
    json_decref(open);
    json_decref(ends);
}

static char *draw(const char *top, const char *what, const char *output, const char *more)
{
    char *program = launch_beside("../phalanx"), *path = workfolder_path(top, output);
    launch_result r = launch_run(60, "cd %s && %s timeline %s --output %s %s", top, program, what, path, more);
    if (r.status)
        fail_msg("timeline %s %s: %s", what, more, r.err);
    launch_free(&r);
    free(program);
    return path;
}

/* Where the ends of arrows may lie: spans of thread 0 of a process. */
static bool lies_in_a_span(const json_t *events, const json_t *end)
{
    json_t *event;
    size_t i;
    json_array_foreach((json_t *)events, i, event)
    {
        double from = number(event, "ts"), at = number(end, "ts");
        if (*text(event, "ph") == 'X' && number(event, "pid") == number(end, "pid") && at >= from &&
            at <= from + number(event, "dur"))
            return true;
    }
    return false;
}

/* Each message is sent once and arrives once, at another process, not before it was sent but for rounding: the ranks of
 * one machine have one clock. */
static void check_flows(json_t *const *lists, int count, int least)
{
    json_t *sent = json_object(), *event, *from;
    int arrived = 0;
    size_t i;
    char key[32];
    for (int turn = 0; turn < 2; turn++)
        for (int l = 0; l < count; l++)
            json_array_foreach(lists[l], i, event)
            {
                if (*text(event, "ph") != (turn ? 'f' : 's'))
                    continue;
                snprintf(key, sizeof key, "%lld", (long long)json_integer_value(json_object_get(event, "id")));
                assert_true(lies_in_a_span(lists[l], event));
                from = json_object_get(sent, key);
                if (!turn) {
                    assert_null(from);
                    json_object_set(sent, key, event);
                    continue;
                }
                assert_non_null(from);
                assert_true(number(from, "pid") != number(event, "pid"));
                assert_true(number(event, "ts") >= number(from, "ts") - 1e-2);
                json_object_del(sent, key);
                arrived++;
            }
    assert_int_equal(json_object_size(sent), 0);
    assert_true(arrived >= least);
    json_decref(sent);
}

/* Of a process, the largest sum of a counter's series. */
static double most_counted(const json_t *events, int process, const char *name)
{
    json_t *event, *value;
    const char *series;
    double most = 0;
    size_t i;
    json_array_foreach((json_t *)events, i, event)
    {
        double sum = 0;
        if (*text(event, "ph") != 'C' || number(event, "pid") != process || strcmp(text(event, "name"), name) != 0)
            continue;
        json_object_foreach(json_object_get(event, "args"), series, value) sum += json_number_value(value);
        most = sum > most ? sum : most;
    }
    return most;
}

static int threads_named(const json_t *events, int process)
{
    json_t *event;
    size_t i;
    int count = 0;
    json_array_foreach((json_t *)events, i, event) count +=
        number(event, "pid") == process && strcmp(text(event, "name"), "thread_name") == 0;
    return count;
}

/* What is alive at most is what the plan says; the tokens are those of the rank's micro-batches; threads have names. */
static void check_counters(const json_t *events, int process, const json_t *plan, int rank)
{
    const json_t *facts = json_array_get(json_object_get(plan, "ranks"), (size_t)rank);
    double bound = number(facts, "lower_bound_bytes"), most = most_counted(events, process, "memory");
    assert_true(fabs(most - bound) <= 0.001 * bound);
    assert_true(most_counted(events, process, "tokens") == number(plan, "tokens_per_step"));
    assert_int_equal(threads_named(events, process), 2);
}

/* Traces of ranks, and what timeline writes of them and of the prediction. */
TEST(viewers_have_names_counters_and_arrows)
{
    json_t *events[RANKS], *plan = said_by_plan(*state);
    int micro_batches = (int)number(json_object_get(plan, "layout"), "micro_batches");
    for (int rank = 0; rank < RANKS; rank++) {
        AUTO_FREE char *path = trace_path(*state, rank);
        events[rank] = events_of(path);
        check_counters(events[rank], rank, plan, rank);
    }
    check_flows(events, RANKS, 2 * 2 * 2 * micro_batches);
    for (int rank = 0; rank < RANKS; rank++)
        json_decref(events[rank]);
    AUTO_FREE char *path = draw(*state, "run", "run.json", "");
    json_t *all = events_of(path), *drawn = json_object_get(all, "traceEvents");
    check_flows(&drawn, 1, 3 * 2 * micro_batches);
    for (int stage = 0; stage < 2; stage++)
        check_counters(drawn, stage, plan, 2 * stage);
    for (int rank = 0; rank < RANKS; rank++)
        check_counters(drawn, 2 + rank, plan, rank);
    json_decref(all);
    json_decref(plan);
}

/* Of a message between stages: when it was launched (first), and received (second). */
static double time_of(const json_t *events, const char *name, const char *kind)
{
    json_t *event;
    size_t i;
    json_array_foreach((json_t *)events, i, event) if (strcmp(text(event, "ph"), kind) == 0 &&
                                                       strstr(text(event, "name"), name)) return number(event, "ts");
    fail_msg("no %s of %s", kind, name);
    return 0;
}

/* The ranks' times are on one clock: nothing is received before it is sent. prepare() left a link where rank 0's trace
 * is, which has replaced it. */
TEST(traces_are_whole_and_on_one_clock)
{
    json_t *events[RANKS];
    int64_t bytes;
    AUTO_FREE char *linked = workfolder_path(*state, "precious");
    AUTO_FREE uint8_t *precious = workfolder_read(linked, &bytes);
    assert_true(bytes == 8 && memcmp(precious, "precious", 8) == 0);
    for (int rank = 0; rank < RANKS; rank++) {
        AUTO_FREE char *path = trace_path(*state, rank);
        events[rank] = events_of(path);
        check_format(events[rank]);
    }
    for (int tensor = 0; tensor < 2; tensor++)
        assert_true(time_of(events[2 + tensor], "activation", "e") >= time_of(events[tensor], "activation", "b") - 200);
    for (int rank = 0; rank < RANKS; rank++)
        json_decref(events[rank]);
}

static double most_memory(const json_t *memory)
{
    const json_t *bytes = json_object_get(memory, "bytes");
    double most = 0;
    for (size_t i = 0; i < json_array_size(json_array_get(bytes, 0)); i++) {
        double all = 0;
        for (size_t k = 0; k < json_array_size(bytes); k++)
            all += json_number_value(json_array_get(json_array_get(bytes, k), i));
        most = all > most ? all : most;
    }
    return most;
}

/* Predicted above measured; rows, step and memory are those of the plan. */
TEST(the_page_has_what_the_plan_says)
{
    char *page, *path = draw(*state, "run", "run.html", "");
    json_t *data = pages_data(&page, path), *plan = said_by_plan(*state);
    const json_t *pictures = json_object_get(data, "pictures");
    assert_int_equal(json_array_size(pictures), 2);
    assert_int_equal(json_array_size(json_object_get(json_array_get(pictures, 0), "rows")), 2);
    assert_int_equal(json_array_size(json_object_get(json_array_get(pictures, 1), "rows")), RANKS);
    assert_string_equal(text(json_array_get(pictures, 1), "name"), "measured, step 3");
    for (int rank = 0; rank < RANKS; rank++) {
        const json_t *facts = json_array_get(json_object_get(plan, "ranks"), (size_t)rank);
        const json_t *row = json_array_get(json_object_get(json_array_get(pictures, 1), "rows"), (size_t)rank);
        double most = most_memory(json_object_get(row, "memory"));
        assert_true(fabs(most - number(facts, "lower_bound_bytes")) <= 0.001 * most);
        assert_true(json_array_size(json_object_get(row, "spans")) > 6 * 100);
    }
    json_decref(plan);
    json_decref(data);
    free(page);
    free(path);
}

TEST(a_step_that_was_not_traced_is_refused)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r = launch_run(60, "cd %s && %s timeline run --step 9 --output no.html", (char *)*state, program);
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "has no step 9"));
    launch_free(&r);
}

/* An ending says what is to be drawn: there is no third kind. */
TEST(an_output_of_another_kind_is_refused)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r = launch_run(60, "cd %s && %s timeline run --output step.png", (char *)*state, program);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, ".html"));
    launch_free(&r);
}

/* The highest point of a stage's temporary layer lies no higher than its arena's line, and reaches down from it by at
 * most what a plan leaves unused; every stage has its five layers. */
TEST(memory_is_drawn_within_the_arena)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r =
        launch_run(60, "cd %s && %s timeline run --output step.svg && cat step.svg", (char *)*state, program);
    assert_int_equal(r.status, 0);
    int layers = 0, lines = 0;
    double top = 0;
    for (char *at = strstr(r.out, "<path"); at; at = strstr(at + 1, "<path")) {
        if (strncmp(at, "<path stroke", 12) == 0) {
            double arena = strtod(strchr(strstr(at, "d=\"M"), ' '), NULL);
            lines++;
            assert_true(top >= arena - 0.11); /* pixels grow downward, and are written to a tenth */
            assert_true(top <= arena + 10);
            top = 0;
            continue;
        }
        if (layers++ % 5 == 0)
            for (char *v = strchr(strchr(at, 'M'), 'V'); v && v < strstr(at, "Z"); v = strchr(v + 1, 'V'))
                top = top == 0 ? strtod(v + 1, NULL) : fmin(top, strtod(v + 1, NULL));
    }
    assert_int_equal(lines, RANKS);
    assert_int_equal(layers, 5 * RANKS);
    launch_free(&r);
}

/* The configuration of a run says of data ranks only what it was told; how many there were its summary knows. */
TEST(a_run_without_a_trace_is_predicted_on_its_ranks)
{
    const char *top = *state;
    double milliseconds[2];
    AUTO_FREE char *program = launch_beside("../phalanx");
    free(runs_train_well(60, 2, "%s/run.yaml run.folder=%s/untraced train.steps=1", top, top));
    for (int given = 0; given < 2; given++) {
        launch_result r = launch_run(60, "cd %s && %s timeline untraced %s", top, program, given ? "--ranks 2" : "");
        assert_int_equal(r.status, 0);
        const char *line = strstr(r.out, "predicted, cpu");
        assert_non_null(line);
        assert_int_equal(sscanf(line, "predicted, cpu %lf ms", &milliseconds[given]), 1);
        launch_free(&r);
    }
    assert_true(fabs(milliseconds[0] - milliseconds[1]) < 0.051);
}

/* Spans follow one another without a gap from the step's begin to its end, each of a kind; the kinds of a row sum to
 * the step, those of a picture to 1. Times on the page are rounded to a nanosecond. */
static void check_moments(const json_t *picture)
{
    enum { SPAN = 6 };
    double length = number(picture, "length"), shares = 0;
    json_t *row, *kind;
    size_t i, k;
    json_array_foreach(json_object_get(picture, "rows"), i, row)
    {
        const json_t *spans = json_object_get(row, "spans");
        double now = 0, sum = 0, rounding = 2e-3 * (double)json_array_size(spans);
        for (size_t s = 0; s + SPAN <= json_array_size(spans); s += SPAN) {
            double begin = json_number_value(json_array_get(spans, s)),
                   lasts = json_number_value(json_array_get(spans, s + 1));
            assert_true(fabs(begin - now) <= 2e-3 && lasts >= 0);
            now = begin + lasts;
        }
        assert_true(fabs(now - length) <= 2e-3);
        json_array_foreach(json_object_get(row, "kinds"), k, kind) sum += json_number_value(kind);
        assert_true(fabs(sum - length) <= rounding);
    }
    json_array_foreach(json_object_get(picture, "kinds"), k, kind) shares += json_number_value(kind);
    assert_true(fabs(shares - 1) <= 1e-6);
}

/* Four ranks share the two cores of the CPU that is priced. */
TEST(every_moment_of_a_step_is_of_a_kind)
{
    char *page, *path = draw(*state, "run", "run.html", "");
    json_t *data = pages_data(&page, path), *plan = said_by_plan(*state), *wait;
    const json_t *pictures = json_object_get(data, "pictures"), *predicted = json_array_get(pictures, 0),
                 *kinds = json_object_get(predicted, "kinds"), *exposed = json_object_get(predicted, "exposed");
    double step = number(plan, "step_seconds"), waits = 0, bubble = number(plan, "bubble"),
           cores = number(plan, "core_wait_seconds") / step, computing = 0;
    const char *axis;
    for (size_t i = 0; i < 2; i++)
        check_moments(json_array_get(pictures, i));
    json_object_foreach(json_object_get(plan, "exposed_seconds"), axis, wait)
    {
        waits += json_number_value(wait) / step;
        assert_true(fabs(number(exposed, axis) - json_number_value(wait) / step) <= 1e-9);
    }
    for (size_t k = 0; k < 4; k++)
        computing += json_number_value(json_array_get(kinds, k));
    assert_true(cores > 0.1 && bubble > 0.01 && waits > 0.001);
    assert_true(fabs(number(predicted, "bubble") - bubble) <= 1e-9);
    assert_true(fabs(json_number_value(json_array_get(kinds, 6)) - cores) <= 1e-9);
    assert_true(fabs(computing - number(plan, "compute_seconds") / step) <= 1e-9);
    assert_true(fabs(computing + waits + bubble + cores - 1) <= 1e-9);
    json_decref(plan);
    json_decref(data);
    free(page);
    free(path);
}

/* Without --output; the page has the same. Percentages of a line sum to the step, each rounded to a tenth. */
TEST(shares_are_printed_as_drawn)
{
    char *page, *path = draw(*state, "run", "run.html", ""), *program = launch_beside("../phalanx");
    json_t *data = pages_data(&page, path);
    launch_result r = launch_run(60, "cd %s && %s timeline run", (char *)*state, program);
    assert_int_equal(r.status, 0);
    const char *line = r.out;
    for (size_t i = 0; i < 2; i++) {
        const json_t *picture = json_array_get(json_object_get(data, "pictures"), i);
        double milliseconds, bubble;
        const char *name = text(picture, "name");
        assert_int_equal(strncmp(line, name, strlen(name)), 0);
        assert_int_equal(sscanf(line + strlen(name), "%lf ms, bubble %lf%%", &milliseconds, &bubble), 2);
        assert_true(fabs(milliseconds - number(picture, "length") / 1e3) <= 0.051);
        assert_true(fabs(bubble - 100 * number(picture, "bubble")) <= 0.051);
        double sum = 0;
        const char *end = strchr(line, '\n');
        for (const char *at = line; (at = strchr(at, '%')) && at < end; at++) {
            const char *from = at;
            while (from[-1] != ' ')
                from--;
            sum += strtod(from, NULL);
        }
        assert_true(fabs(sum - 100) <= 0.6);
        line = strchr(line, '\n') + 1;
    }
    assert_int_equal(*line, 0);
    launch_free(&r);
    json_decref(data);
    free(program);
    free(page);
    free(path);
}

/* For Perfetto: the same spans as events, of a configuration too, whose predicted step is as long as the plan's. */
TEST(events_for_other_viewers_are_well_formed)
{
    static const char *const of[] = {"run", "run.yaml parallel.pipeline=2 model.layers=4"};
    for (int k = 0; k < 2; k++) {
        AUTO_FREE char *path = draw(*state, of[k], "run.json", "--device h100");
        json_t *all = events_of(path), *event;
        const json_t *events = json_object_get(all, "traceEvents");
        double end = 0;
        size_t i;
        check_format(events);
        json_array_foreach((json_t *)events, i, event) if (*text(event, "ph") == 'X' && number(event, "pid") < 2) end =
            fmax(end, number(event, "ts") + number(event, "dur"));
        AUTO_FREE char *program = launch_beside("../phalanx");
        launch_result r = launch_run(30, "cd %s && %s plan %s --ranks %d --device h100 --json", (char *)*state, program,
                                     k ? of[k] : "run/config.yaml", k ? 2 : RANKS);
        json_t *plan = json_loads(r.out, 0, NULL);
        assert_non_null(plan);
        assert_true(fabs(end - 1e6 * number(plan, "step_seconds")) <= 0.01 * end);
        json_decref(plan);
        launch_free(&r);
        json_decref(all);
    }
}

/* A run of fewer ranks leaves no files of ranks that it does not have; one that begins anew has no older trace. */
TEST(older_traces_do_not_stay)
{
    const char *top = *state;
    AUTO_FREE char *there = must_format("%s/other/trace/rank-00001.json", top),
                   *first = must_format("%s/other/trace", top);
    for (int ranks = 2; ranks >= 1; ranks--) {
        free(runs_train_well(60, ranks, "%s/run.yaml run.folder=%s/other run.trace=[%d,%d] train.steps=%d", top, top,
                             ranks == 2 ? 1 : 3, ranks == 2 ? 1 : 3, ranks == 2 ? 2 : 4));
        assert_int_equal(access(there, F_OK), ranks == 2 ? 0 : -1);
    }
    free(runs_train_well(60, 1, "%s/run.yaml run.folder=%s/other train.steps=1 checkpoint.resume=never", top, top));
    assert_int_equal(access(first, F_OK), -1);
}

/* Timing changes nothing that is computed. */
TEST(a_traced_run_computes_the_same_bits)
{
    const char *top = *state;
    AUTO_FREE char *traced = workfolder_path(top, "run"), *plain = workfolder_path(top, "plain");
    free(runs_train_well(120, RANKS, "%s/run.yaml run.folder=%s parallel.pipeline=2 parallel.tensor=2 model.layers=4",
                         top, plain));
    runs_metrics a = runs_read_metrics(traced), b = runs_read_metrics(plain);
    assert_int_equal(a.count, STEPS);
    assert_true(runs_same_metrics(&a, &b));
}

TEST(a_browser_draws_the_page)
{
    if (!pages_browser())
        skip_because("no browser: apt-get install chromium");
    AUTO_FREE char *path = draw(*state, "run", "browser.html", ""), *built = pages_built(*state, path, 1200);
    assert_non_null(strstr(built, "data-state=\"ready\""));
    assert_non_null(strstr(built, "data-rows=\"6\""));
    assert_int_equal(pages_occurrences(built, "<canvas"), 5); /* two pictures with their maps, memory */
    assert_null(strstr(built, "NaN"));
}

/* Acts as a reader of many rows; the measured picture becomes one of 256 ranks. */
static const char *const reading =
    "const p = data.pictures[1], said = [], write = CanvasRenderingContext2D.prototype.fillText;"
    "CanvasRenderingContext2D.prototype.fillText = function (t, x, y) { said.push([t, x, y, "
    "this.measureText(t).width]); write.apply(this, arguments); };"
    "const count = v => { find.value = v; find.dispatchEvent(new Event('input')); return data.pictures.map(q => "
    "q.list.length); };"
    "out.bars = [...document.querySelectorAll('.share')].map(b => [...b.children].reduce((s, e) => s + "
    "parseFloat(e.style.width), 0));"
    "drawPicture(p); out.ticks = said.filter(t => t[2] === 9).length;"
    "out.over = said.filter(t => t[1] === 0 && t[3] > LEFT - 4).length;"
    "out.edges = said.filter(t => t[2] === 9 && t[1] + t[3] / 2 > p.canvas.clientWidth + 1).length;"
    "out.found = [count('stage 1'), count('attention'), count('')]; count('attention'); out.hits = hits.size; "
    "count('');"
    "p.rows = Array.from({length: 256}, (_, i) => ({...p.rows[i % 4], name: `rank ${i}, stage ${i % 16}`}));"
    "out.many = [count('stage 1')[1], count('rank 37')[1], count('')[1]]; p.draw(); out.height = "
    "p.canvas.clientHeight;"
    "out.stages = stages(p).querySelectorAll('.share').length; zoom(.25);"
    "const b = p.map.getBoundingClientRect(); p.map.dispatchEvent(new PointerEvent('pointerdown', {clientX: b.right - "
    "1, clientY: b.bottom - 1})); out.looked = [p.top, to / length];";

/* Names beside the plot, four times or more, a bar a stage, rows and operations that are found, a map. */
static void check_reading(const json_t *out)
{
    json_t *bar;
    size_t i;
#define AT(key, index) json_number_value(json_array_get(json_object_get(out, key), index))
#define FOUND(search, picture)                                                                                         \
    json_number_value(json_array_get(json_array_get(json_object_get(out, "found"), search), picture))
    assert_int_equal(json_array_size(json_object_get(out, "bars")), 4);
    json_array_foreach(json_object_get(out, "bars"), i, bar) assert_true(fabs(json_number_value(bar) - 100) < 0.5);
    assert_true(number(out, "ticks") >= 4 && number(out, "over") == 0 && number(out, "edges") == 0);
    assert_true(FOUND(0, 0) == 1 && FOUND(0, 1) == 2 && FOUND(1, 1) == RANKS && FOUND(2, 0) == 2);
    assert_true(number(out, "hits") > 0);
    assert_true(AT("many", 0) == 16 && AT("many", 1) == 1 && AT("many", 2) == 256);
    assert_true(number(out, "height") < 900 && number(out, "stages") == 16);
    assert_true(AT("looked", 0) == 256 - 24 && fabs(AT("looked", 1) - 1) < 1e-6);
}

/* Its title names the run, nothing is wider than the window, and its table has the shares of the line that is
 * printed. */
TEST(a_page_for_a_phone_has_what_is_printed)
{
    if (!pages_browser())
        skip_because("no browser: apt-get install chromium");
    static const int widths[] = {1400, 400};
    char *path = draw(*state, "run", "browser.html", ""), *program = launch_beside("../phalanx"), said[16];
    launch_result r = launch_run(60, "cd %s && %s timeline run", (char *)*state, program);
    double bubble, computing;
    assert_int_equal(sscanf(strstr(r.out, "bubble "), "bubble %lf%%", &bubble), 1);
    assert_int_equal(sscanf(strstr(r.out, "computing "), "computing %lf%%", &computing), 1);
    for (int w = 0; w < 2; w++) {
        AUTO_FREE char *script =
            must_format("%s%s",
                        "out.title = document.title; out.width = window.innerWidth; out.scroll = "
                        "document.documentElement.scrollWidth; out.row = [...document.querySelector('#facts "
                        "tbody tr').children].map(c => c.textContent);",
                        reading);
        json_t *out = pages_probe(*state, path, widths[w], script);
        const json_t *row = json_object_get(out, "row");
        assert_string_equal(text(out, "title"), "A step of run - phalanx timeline");
        assert_true(number(out, "width") == widths[w] && number(out, "scroll") == widths[w]);
        snprintf(said, sizeof said, "%.1f%%", computing);
        assert_string_equal(json_string_value(json_array_get(row, 2)), said);
        snprintf(said, sizeof said, "%.1f%%", bubble);
        assert_string_equal(json_string_value(json_array_get(row, 3)), said);
        check_reading(out);
        json_decref(out);
    }
    launch_free(&r);
    free(program);
    free(path);
}

TEST_MAIN(prepare, workfolder_teardown)
