/* The bubble as it is measured is the bubble as the schedules' formulas have it: four stages, eight micro-batches, real
 * messages, and kernels that wait (tests/jobs/rank_bubble.c). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/scope.h"
#include "tests/jobs/launch.h"
#include "tests/skip.h"
#include "tests/test.h"

static const double ALLOWED = 0.05;

static void read_line(const char *out, const char *name, double *bubble, double *formula)
{
    char label[64];
    snprintf(label, sizeof label, "bubble %s ", name);
    const char *at = strstr(out, label);
    assert_non_null(at);
    assert_int_equal(sscanf(at + strlen(label), "%lf %lf", bubble, formula), 2);
    printf("%-12s bubble %.1f ms, formula %.1f ms: %+.1f%%\n", name, 1e3 * *bubble, 1e3 * *formula,
           100 * (*bubble / *formula - 1));
}

TEST(the_measured_bubble_is_the_formulas)
{
    AUTO_FREE char *mpirun = launch_mpirun(4), *program = launch_beside("rank_bubble");
    launch_result r = launch_run(120, "exec %s %s %g", mpirun, program, ALLOWED);
    if (r.status)
        fprintf(stderr, "%s%s", r.out, r.err);
    assert_int_equal(r.status, 0);
    if (strstr(r.out, "busy "))
        skip_because("the machine has other work, which delays messages");
    static const char *const names[] = {"gpipe", "1f1b", "interleaved", "zb-h1"};
    double bubble[4], formula[4];
    int wrong = 0;
    for (int i = 0; i < 4; i++) {
        read_line(r.out, names[i], &bubble[i], &formula[i]);
        wrong += !(fabs(bubble[i] / formula[i] - 1) <= ALLOWED);
    }
    assert_int_equal(wrong, 0);
    /* The schedules differ by far more than the allowance, so that one played for another would show. */
    assert_true(bubble[2] < 0.6 * bubble[1] && bubble[3] < 0.8 * bubble[2]);
    launch_free(&r);
}

TEST_MAIN(NULL, NULL)
