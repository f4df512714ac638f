#include "tests/test.h"

#include <stdio.h>

#include "memory/log.h"
#include "tests/skip.h"

enum { TEST_MOST = 256 };
static struct CMUnitTest tests[TEST_MOST];
static size_t count;

void test_register(const char *name, CMUnitTestFunction run, CMFixtureFunction setup, CMFixtureFunction teardown)
{
    MUST(count < TEST_MOST, "more than %d tests in a program", TEST_MOST);
    tests[count++] = (struct CMUnitTest){name, run, setup, teardown, NULL};
}

void test_keep(size_t first)
{
    count = first < count ? first : count;
}

int test_run(CMFixtureFunction setup, CMFixtureFunction teardown)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    return _cmocka_run_group_tests("tests", tests, count, setup, teardown);
}

static const char *reason_to_skip;
static void the_whole_program(__attribute__((unused)) void **state)
{
    skip_because(reason_to_skip);
}

int test_run_unless(const char *reason, CMFixtureFunction setup, CMFixtureFunction teardown)
{
    if (!reason)
        return test_run(setup, teardown);
    reason_to_skip = reason;
    count = 0;
    test_register("the_whole_program", the_whole_program, NULL, NULL);
    return test_run(NULL, NULL);
}
