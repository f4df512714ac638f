/* The messages of failures: what status.h promises. */
#include <string.h>

#include "memory/status.h"
#include "tests/test.h"

TEST(context_stands_before_the_message)
{
    status s = status_fail(STATUS_USAGE, "unknown key %s", "trian.steps");
    s = status_context(s, "%s:%d", "a.yaml", 3);
    assert_int_equal(s, STATUS_USAGE);
    assert_string_equal(status_message(), "a.yaml:3: unknown key trian.steps");
}

TEST(long_messages_are_cut_not_overrun)
{
    char text[8000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    status_fail(STATUS_FAILED, "%s", text);
    status_context(STATUS_FAILED, "%s", text);
    assert_true(strlen(status_message()) < 2048);
}

TEST_MAIN(NULL, NULL)
