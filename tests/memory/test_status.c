/* The messages of failures: what status.h promises. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

#include "memory/status.h"

static void context_stands_before_the_message(void **state)
{
    (void)state;
    status s = status_fail(STATUS_USAGE, "unknown key %s", "trian.steps");
    s = status_context(s, "%s:%d", "a.yaml", 3);
    assert_int_equal(s, STATUS_USAGE);
    assert_string_equal(status_message(), "a.yaml:3: unknown key trian.steps");
}

static void long_messages_are_cut_not_overrun(void **state)
{
    (void)state;
    char text[8000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    status_fail(STATUS_FAILED, "%s", text);
    status_context(STATUS_FAILED, "%s", text);
    assert_true(strlen(status_message()) < 2048);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(context_stands_before_the_message),
        cmocka_unit_test(long_messages_are_cut_not_overrun),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
