/* A user's file with keys changed: what is said, and that all the rest stays letter by letter. Files that include
 * others, and variables of the environment in paths. */
#include <stdlib.h>
#include <string.h>

#include "engine/config/config.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

/* ---- one key ----------------------------------------------------------------------------------------------------- */

TEST(one_key_is_changed_where_it_stands)
{
    static const struct {
        const char *text, *key, *value, *after;
    } cases[] = {
        {"train:\n  steps: 10   # few\n  seed: 1\n", "train.steps", "20", "train:\n  steps: 20   # few\n  seed: 1\n"},
        {"train: {steps: 10, seed: 1} # one line\n", "train.steps", "20", "train: {steps: 20, seed: 1} # one line\n"},
        {"# ünïcode\ntrain: {steps: 10}\n", "train.steps", "20", "# ünïcode\ntrain: {steps: 20}\n"},
        {"train: {steps: 10}\n", "train.seed", "3", "train: {steps: 10, seed: 3}\n"},
        {"train: {}\n", "train.seed", "3", "train: {seed: 3}\n"},
        {"train:\n    steps: 10 # few\n\n# the end\nrun: {log_every: 2}\n", "train.seed", "3",
         "train:\n    steps: 10 # few\n    seed: 3\n\n# the end\nrun: {log_every: 2}\n"},
        {"train:\n  steps: 10", "parallel.tensor", "2", "train:\n  steps: 10\nparallel: {tensor: 2}"},
        {"train:\n  # steps: 10\nrun: {log_every: 2}\n", "train.steps", "20",
         "train: {steps: 20}\n  # steps: 10\nrun: {log_every: 2}\n"},
        {"train: ~\n", "train.steps", "20", "train: {steps: 20}\n"},
        {"# nothing yet\n", "run.spike.zscore", "6", "# nothing yet\nrun: {spike: {zscore: 6}}\n"},
        {"", "train.steps", "20", "train: {steps: 20}\n"},
        {"run: {spike: {zscore: 0}}\n", "run.spike.zscore", "6", "run: {spike: {zscore: 6}}\n"},
        {"{train: {steps: 10}}\n", "run.log_every", "2", "{train: {steps: 10}, run: {log_every: 2}}\n"},
        {"parallel:\n  layers_per_stage:\n    - 3\n    - 3 # a list\n  tensor: 2\n", "parallel.layers_per_stage", "[]",
         "parallel:\n  layers_per_stage: [] # a list\n  tensor: 2\n"},
        {"run:\r\n  log_every: 2\r\n", "run.log_every", "3", "run:\r\n  log_every: 3\r\n"},
        {"run: {folder: \"a b\"} # said\n", "run.folder", "\"c d\"", "run: {folder: \"c d\"} # said\n"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *after;
        assert_int_equal(config_edit(&after, "a.yaml", cases[i].text, cases[i].key, cases[i].value), STATUS_OK);
        assert_string_equal(after, cases[i].after);
        free(after);
    }
    char *after;
    assert_int_equal(config_edit(&after, "a.yaml", "train: 5\n", "train.steps", "20"), STATUS_USAGE);
    workfolder_message_has("a.yaml: there is no place for train.steps: 20");
    assert_int_equal(config_edit(&after, "a.yaml", "train: {\n", "train.steps", "20"), STATUS_USAGE);
}

static void write_text(const char *folder, const char *name, const char *text)
{
    AUTO_FREE char *path = workfolder_path(folder, name);
    workfolder_write(path, text, (int64_t)strlen(text));
}

/* What differs is written, and what an override says though it does not; it reads back as it was meant. */
TEST_WITH(a_file_is_rewritten_to_say_what_is_meant, workfolder_setup, workfolder_teardown)
{
    static const char text[] = "# mine\n"
                               "model: {preset: llama-15m}\n"
                               "data: {train: corpus} # here\n"
                               "train: {steps: 10, micro_batch: 4}\n"
                               "memory: {recompute: full}\n",
                      expected[] = "# mine\n"
                                   "model: {preset: llama-15m}\n"
                                   "data: {train: corpus} # here\n"
                                   "train: {steps: 77, micro_batch: 2, seed: 1}\n"
                                   "memory: {recompute: none}\n"
                                   "parallel: {tensor: 2}\n";
    static const char *const sections[] = {"parallel.", "memory.", "train.micro_batch", NULL};
    char steps[] = "train.steps=77", seed[] = "train.seed=1", *override[] = {steps, seed}, *after;
    AUTO_FREE char *path = workfolder_path(*state, "a.yaml");
    write_text(*state, "a.yaml", text);
    config from, to;
    assert_int_equal(config_load(&from, path, 0, NULL), STATUS_OK);
    assert_int_equal(config_load(&to, path, 2, override), STATUS_OK);
    to.parallel.size[GRID_TENSOR] = 2;
    to.train.micro_batch = 2;
    to.memory.recompute = RECOMPUTE_NONE;
    assert_int_equal(config_rewrite(&after, path, &from, &to, sections, 2, override), STATUS_OK);
    assert_string_equal(after, expected);
    free(after);
    to.run.log_every = 9; /* no section names it: what is written is not what was meant */
    assert_int_equal(config_rewrite(&after, path, &from, &to, sections, 2, override), STATUS_FAILED);
    workfolder_message_has("says another run.log_every");
    config_free(&from);
    config_free(&to);
}

/* ---- includes ---------------------------------------------------------------------------------------------------- */

static status load(config *c, const char *folder, const char *name, int overrides, char *const *override)
{
    AUTO_FREE char *path = workfolder_path(folder, name);
    return config_load(c, path, overrides, override);
}

TEST_WITH(a_file_overrides_what_it_includes, workfolder_setup, workfolder_teardown)
{
    char seed[] = "train.seed=5", *override[] = {seed};
    config c;
    write_text(*state, "base.yaml", "model: {preset: llama-15m}\ntrain: {steps: 10, seed: 2, micro_batch: 2}\n");
    write_text(*state, "more.yaml", "train: {steps: 30, max_skipped: 3}\n");
    write_text(*state, "a.yaml", "train: {steps: 20}\ninclude: [base.yaml, more.yaml]\n");
    assert_int_equal(load(&c, *state, "a.yaml", 1, override), STATUS_OK);
    assert_string_equal(c.model.preset, "llama-15m");
    assert_true(c.train.steps == 20 && c.train.seed == 5 && c.train.micro_batch == 2 && c.train.max_skipped == 3);
    assert_true(config_is_given(&c, "train.micro_batch"));
    config_free(&c);
}

TEST_WITH(includes_that_are_wrong_are_refused_with_the_place, workfolder_setup, workfolder_teardown)
{
    static const struct {
        const char *text, *said;
    } cases[] = {
        {"run: {log_every: 2}\ninclude: nowhere.yaml\n", "a.yaml:2: include: "},
        {"include: a.yaml\n", "a.yaml includes itself"},
        {"include: loop.yaml\n", "includes itself"},
        {"include: {of: base.yaml}\n", "expected a file's name"},
        {"include: wrong.yaml\n", "wrong.yaml:1: unknown key"},
        {"include: \"${PHALANX_TEST_NOWHERE}/a.yaml\"\n", "PHALANX_TEST_NOWHERE"},
        {"include: base.yaml\nincluded: 3\n", "unknown key"},
    };
    config c;
    write_text(*state, "loop.yaml", "include: a.yaml\n");
    write_text(*state, "wrong.yaml", "trian: {steps: 3}\n");
    write_text(*state, "base.yaml", "train: {steps: 3}\n");
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(*state, "a.yaml", cases[i].text);
        assert_int_equal(load(&c, *state, "a.yaml", 0, NULL), STATUS_USAGE);
        workfolder_message_has(cases[i].said);
    }
    static const char stored[] = "include: base.yaml\n";
    assert_int_equal(config_parse(&c, "manifest", stored, strlen(stored), 0, NULL), STATUS_USAGE);
    workfolder_message_has("unknown key include");
}

/* ---- variables --------------------------------------------------------------------------------------------------- */

TEST_WITH(paths_name_variables_of_the_environment, workfolder_setup, workfolder_teardown)
{
    static const char text[] = "model: {preset: llama-15m}\n"
                               "data: {train: [\"${PHALANX_TEST_DATA}/a\", {path: \"${PHALANX_TEST_DATA}/b\"}]}\n"
                               "run: {folder: \"x/$${NAME}/${PHALANX_TEST_DATA}/$5\"}\n";
    config c, again;
    setenv("PHALANX_TEST_DATA", "/corpus ${HOME}", 1);
    write_text(*state, "a.yaml", text);
    assert_int_equal(load(&c, *state, "a.yaml", 0, NULL), STATUS_OK);
    assert_string_equal(c.data.train.item[0].path, "/corpus ${HOME}/a");
    assert_string_equal(c.data.train.item[1].path, "/corpus ${HOME}/b");
    assert_string_equal(c.run.folder, "x/${NAME}//corpus ${HOME}/$5");
    /* what a run writes means the same wherever it is read: nothing in it is a variable any more */
    AUTO_FREE char *effective = config_text(&c);
    assert_int_equal(config_parse(&again, "config.yaml", effective, strlen(effective), 0, NULL), STATUS_OK);
    assert_string_equal(again.run.folder, c.run.folder);
    config_free(&again);
    write_text(*state, "config.yaml", effective);
    assert_int_equal(load(&again, *state, "config.yaml", 0, NULL), STATUS_OK);
    assert_string_equal(again.run.folder, c.run.folder);
    assert_string_equal(again.data.train.item[1].path, c.data.train.item[1].path);
    config_free(&again);
    config_free(&c);
    unsetenv("PHALANX_TEST_DATA");
    assert_int_equal(load(&c, *state, "a.yaml", 0, NULL), STATUS_USAGE);
    workfolder_message_has("data.train: ${PHALANX_TEST_DATA} is not set in the environment");
    write_text(*state, "a.yaml", "run: {folder: \"${}\"}\n");
    assert_int_equal(load(&c, *state, "a.yaml", 0, NULL), STATUS_USAGE);
    workfolder_message_has("$${ for these characters themselves");
}

/* A checkpoint's text comes from anybody: it learns nothing of the environment. Addresses are no paths. */
TEST(stored_texts_and_addresses_name_none)
{
    static const char text[] = "model: {preset: llama-15m}\nrun: {folder: \"${HOME}/x\"}\n"
                               "outer: {rendezvous: [\"http://${HOME}\"]}\n";
    config c;
    assert_int_equal(config_parse(&c, "manifest", text, strlen(text), 0, NULL), STATUS_OK);
    assert_string_equal(c.run.folder, "${HOME}/x");
    config_free(&c);
    assert_int_equal(config_parse_users(&c, "a.yaml", text, strlen(text)), STATUS_OK);
    assert_null(strstr(c.run.folder, "${"));
    assert_string_equal(c.outer.rendezvous.item[0].path, "http://${HOME}");
    config_free(&c);
}

TEST_MAIN(NULL, NULL)
