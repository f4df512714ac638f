/* models/FAMILIES.md says what the tables and the reader of config.json say: it is printed again and compared, every
 * key that the reader asks for has a meaning, and every row of keys.def a reader. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/config_table.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "models/huggingface.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"
#include "tools/families.h"

static const char page[] = "models/FAMILIES.md";

/* Where the first line that differs begins. */
static size_t first_difference(const char *a, const char *b)
{
    size_t at = 0;
    while (a[at] && a[at] == b[at])
        at++;
    while (at > 0 && a[at - 1] != '\n')
        at--;
    return at;
}

TEST(the_page_is_what_the_tables_say)
{
    char *made, *text;
    size_t length;
    FILE *out = open_memstream(&made, &length);
    families_print(out);
    assert_int_equal(fclose(out), 0);
    int64_t bytes;
    text = (char *)workfolder_read(page, &bytes);
    if (strcmp(made, text) != 0) {
        size_t at = first_difference(made, text);
        fail_msg("%s is older than the tables: run\n    build/phalanx help families >%s\nThe tables make\n%.200s\nof\n"
                 "%.200s",
                 page, page, made + at, text + at);
    }
    free(text);
    free(made);
}

static const struct {
    const char *key, *becomes;
} rows[] = {
#define CONFIG_KEY(key, becomes, meaning) {key, becomes},
#include "models/keys.def"
};

enum { ROWS = sizeof rows / sizeof *rows };

TEST(every_key_that_is_read_has_a_meaning_and_every_row_a_reader)
{
    bool read[ROWS] = {false};
    for (int a = 0; a < SHAPE_ARCHITECTURES; a++) {
        json_t *asked = families_keys((shape_architecture)a);
        assert_true(json_object_size(asked) > 12);
        for (void *i = json_object_iter(asked); i; i = json_object_iter_next(asked, i)) {
            const char *key = json_object_iter_key(i);
            huggingface_role role = huggingface_means((shape_architecture)a, key).role;
            if (role != HUGGINGFACE_TAKEN && role != HUGGINGFACE_DEMANDED)
                fail_msg("%s asks for %s, which no table explains", shape_traits_of((shape_architecture)a)->name, key);
        }
        for (int i = 0; i < ROWS; i++)
            read[i] = read[i] || json_object_get(asked, rows[i].key);
        json_decref(asked);
    }
    for (int i = 0; i < ROWS; i++)
        if (!read[i])
            fail_msg("keys.def has %s, which no reader asks for", rows[i].key);
}

TEST(what_keys_become_are_keys_of_a_configuration)
{
    for (int i = 0; i < ROWS; i++) {
        AUTO_FREE char *names = must_strdup(rows[i].becomes);
        for (char *name = strtok(names, ", "); name; name = strtok(NULL, ", "))
            if (config_table_find(name) < 0 && !config_table_is_section(name))
                fail_msg("%s becomes %s, which is no key", rows[i].key, name);
    }
}

/* The reader, not a list beside it, says what was asked for. */
TEST(a_reading_knows_what_it_asked_for)
{
    static const char text[] = "{\"model_type\":\"llama\",\"hidden_act\":\"relu\",\"vocab_size\":9}";
    model_shape s;
    json_t *asked = json_object();
    assert_int_equal(huggingface_parse_asking(&s, NULL, asked, text, sizeof text - 1, "config.json"), STATUS_FAILED);
    workfolder_message_has("hidden_act is \"relu\"");
    assert_non_null(json_object_get(asked, "model_type"));
    assert_non_null(json_object_get(asked, "architectures")); /* absent, but asked for */
    assert_non_null(json_object_get(asked, "hidden_act"));
    assert_null(json_object_get(asked, "vocab_size")); /* comes after what is refused */
    assert_null(json_object_get(asked, "activation_function"));
    json_decref(asked);
}

TEST_MAIN(NULL, NULL)
