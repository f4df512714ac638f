/* `phalanx schedule` as a user meets it: numbers of any size, memory that is too small, and counts that agree with each
 * other. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "memory/scope.h"
#include "tests/jobs/launch.h"
#include "tests/test.h"

static launch_result schedule(const char *options)
{
    AUTO_FREE char *phalanx = launch_beside("../phalanx");
    launch_result r = launch_run(60, "%s schedule %s", phalanx, options);
    return r;
}

static double number_of(const char *options, const char *key)
{
    launch_result r = schedule(options);
    if (r.status)
        fail_msg("%s: status %d: %s", options, r.status, r.err);
    json_t *root = json_loads(r.out, 0, NULL);
    assert_non_null(root);
    double number = json_number_value(json_object_get(root, key));
    json_decref(root);
    launch_free(&r);
    return number;
}

/* Table 5 of 2401.10241, 1.5B with 24 micro-batches, from its Table 9. */
TEST(published_bubbles_come_out)
{
    static const struct {
        const char *kind;
        double bubble;
    } rows[] = {{"1f1b", 0.2431}, {"zb-h1", 0.1585}, {"zb-h2", 0.1083}};
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        char options[200];
        snprintf(options, sizeof options,
                 "--kind %s --stages 8 --micro-batches 24 --costs 18.522,18.086,9.337,0.601 --json", rows[i].kind);
        assert_true(fabs(number_of(options, "bubble") - rows[i].bubble) < 5e-5);
    }
}

/* Costs may be many powers of ten apart: the picture then shows less, and nothing else suffers. */
TEST(costs_of_any_size_are_drawn)
{
    static const char *const costs[] = {"1,1,1e-12,0", "1,1,1,1e12", "1e12,1e12,1e-9,0", "1e-12,1e-12,1e-12,0"};
    for (unsigned i = 0; i < sizeof costs / sizeof *costs; i++)
        for (int kind = 0; kind < 3; kind++) {
            static const char *const kinds[] = {"1f1b", "zb-h1", "auto"};
            char options[100];
            snprintf(options, sizeof options, "--kind %s --costs %s", kinds[kind], costs[i]);
            launch_result r = schedule(options);
            if (r.status)
                fail_msg("%s: status %d: %s", options, r.status, r.err);
            assert_non_null(strstr(r.out, "stage 3 |"));
            launch_free(&r);
        }
}

TEST(what_is_no_cost_is_refused)
{
    static const char *const options[] = {"--costs 1e308,1,1,0", "--costs 1,1", "--costs 1,1,1,0,0", "--costs 1,-1,1,0",
                                          "--costs nan,1,1,0",   "--keeps 1",   "--keeps 1e300,1",   "--costs 0,0,0,0"};
    for (unsigned i = 0; i < sizeof options / sizeof *options; i++) {
        launch_result r = schedule(options[i]);
        assert_int_equal(r.status, 2);
        assert_non_null(strstr(r.err, i == 5 || i == 6 ? "--keeps" : "--costs"));
        launch_free(&r);
    }
}

/* The table and the sentence below it count in the same unit, that of --keeps. */
TEST(a_stages_peak_is_that_of_the_schedule)
{
    launch_result r = schedule("--stages 2 --kind 1f1b --keeps 0.25,0.25");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "  0.50\n"));
    assert_non_null(strstr(r.out, "in micro-batches of a stage: 0.5\n"));
    launch_free(&r);
}

TEST(too_little_memory_is_said_with_what_is_needed)
{
    static const char *const options[] = {"--kind auto --memory 0.5", "--kind auto --chunks 2 --memory 0.5",
                                          "--kind 1f1b --memory 0.5"};
    static const char *const needs[] = {"at least 1,", "at least 1,", "holds 4 "};
    for (int i = 0; i < 3; i++) {
        launch_result r = schedule(options[i]);
        assert_int_equal(r.status, 2);
        assert_non_null(strstr(r.err, needs[i]));
        assert_non_null(strstr(r.err, "--memory is 0.5"));
        launch_free(&r);
    }
    assert_true(number_of("--kind auto --memory 1 --json", "peak") <= 1);
    assert_true(number_of("--kind auto --chunks 2 --memory 1 --json", "peak") <= 1);
}

TEST_MAIN(NULL, NULL)
