#include "tests/test.h"

#include <stdio.h>

#include "memory/log.h"

enum { TEST_MOST = 256 };
static struct CMUnitTest tests[TEST_MOST];
static size_t count;

void test_register(const char *name, CMUnitTestFunction run, CMFixtureFunction setup, CMFixtureFunction teardown)
{
    MUST(count < TEST_MOST, "more than %d tests in a program", TEST_MOST);
    tests[count++] = (struct CMUnitTest){name, run, setup, teardown, NULL};
}

int test_run(CMFixtureFunction setup, CMFixtureFunction teardown)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    return _cmocka_run_group_tests("tests", tests, count, setup, teardown);
}
