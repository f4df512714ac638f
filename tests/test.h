/* A test program: its tests register themselves, and run in the order in which they stand in the file.
 *
 *     TEST(a_promise_is_kept) { ... }                          `void **state` is what the group's setup made
 *     TEST_WITH(another, workfolder_setup, workfolder_teardown) { ... }      with a setup of its own
 *     TEST_MAIN(prepare, finish)                               the group's setup and teardown, or NULL
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Adds a test to the program's. At most TEST_MOST. */
void test_register(const char *name, CMUnitTestFunction run, CMFixtureFunction setup, CMFixtureFunction teardown);
/* Only the first of the registered tests will run. */
void test_keep(size_t first);
/* Runs what is registered, line by line on stdout, and returns how many failed. */
int test_run(CMFixtureFunction setup, CMFixtureFunction teardown);
/* The same; with a reason, one test that is skipped for it. */
int test_run_unless(const char *reason, CMFixtureFunction setup, CMFixtureFunction teardown);

#define TEST_WITH(name, setup, teardown)                                                                               \
    static void name(void **state);                                                                                    \
    __attribute__((constructor)) static void register_##name(void)                                                     \
    {                                                                                                                  \
        test_register(#name, name, setup, teardown);                                                                   \
    }                                                                                                                  \
    static void name(__attribute__((unused)) void **state)
#define TEST(name) TEST_WITH(name, NULL, NULL)

#define TEST_MAIN(setup, teardown)                                                                                     \
    int main(void)                                                                                                     \
    {                                                                                                                  \
        return test_run(setup, teardown);                                                                              \
    }
