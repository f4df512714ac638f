/* Lines of the screen as JSON objects: the level, the rank, and that whatever bytes come, an object comes out. */
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "memory/outlet.h"
#include "tests/test.h"

static json_t *object_of(const char *line, size_t bytes, bool error)
{
    char out[OUTLET_LINE_JSON];
    size_t length = outlet_json(out, line, bytes, error, 3);
    assert_true(length <= sizeof out && out[length - 1] == '\n' && !memchr(out, '\n', length - 1));
    json_error_t why;
    json_t *object = json_loadb(out, length, JSON_REJECT_DUPLICATES, &why);
    if (!object)
        fail_msg("%s: %.*s", why.text, (int)length, out);
    assert_int_equal(strlen(json_string_value(json_object_get(object, "time"))), strlen("2026-11-28T01:52:03.123Z"));
    return object;
}

TEST(a_line_has_its_level_and_rank)
{
    static const struct {
        const char *line;
        bool error;
        const char *level, *message;
    } rows[] = {{"  model       llama", false, "info", "model       llama"},
                {"phalanx: warning: slow \"disk\"", true, "warning", "slow \"disk\""},
                {"phalanx: rank 12: warning: x", true, "warning", "x"},
                {"phalanx: rank 12: a.yaml:3: wrong", true, "error", "a.yaml:3: wrong"},
                {"phalanx: no such file", true, "error", "no such file"},
                {"phalanx: rank", true, "error", "rank"},
                {"phalanx: rank 5", true, "error", "rank 5"},
                {"phalanx: ", true, "error", ""},
                {"phalanx: warning: on the screen", false, "info", "phalanx: warning: on the screen"},
                {"a library's word", true, "info", "a library's word"},
                {"tab\tand \x01 and \xc3\xbc and \xff.", false, "info", "tab\tand \x01 and \xc3\xbc and ?."}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *o = object_of(rows[i].line, strlen(rows[i].line), rows[i].error);
        assert_string_equal(json_string_value(json_object_get(o, "level")), rows[i].level);
        assert_string_equal(json_string_value(json_object_get(o, "message")), rows[i].message);
        assert_int_equal(json_integer_value(json_object_get(o, "rank")), 3);
        json_decref(o);
    }
}

/* Metrics are an object in the object; what has a time already passes as it is. */
TEST(objects_are_members_or_pass)
{
    static const char metrics[] = "{\"step\": 2, \"loss\": 1.5}",
                      stamped[] = "{\"time\": \"2026-11-28T01:52:03.123Z\", \"level\": \"error\", \"message\": \"x\"}";
    json_t *o = object_of(metrics, sizeof metrics - 1, false);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(o, "metrics"), "step")), 2);
    json_decref(o);
    o = object_of(stamped, sizeof stamped - 1, false);
    assert_string_equal(json_string_value(json_object_get(o, "level")), "error");
    assert_null(json_object_get(o, "rank"));
    json_decref(o);
}

/* 20,000 lines of drawn bytes, many of them the first of UTF-8 sequences, up to the longest. */
TEST(any_bytes_make_an_object)
{
    char line[OUTLET_LINE];
    uint32_t seed = 7;
    for (int i = 0; i < 20000; i++) {
        size_t length = i % 100 ? (size_t)i % 61 : OUTLET_LINE;
        for (size_t k = 0; k < length; k++) {
            seed = seed * 1664525 + 1013904223;
            line[k] = (char)(seed >> 24 | (seed >> 20 & 1 ? 0x80 : 0));
        }
        json_decref(object_of(line, length, seed & 1));
    }
}

TEST_MAIN(NULL, NULL)
