/* The topics of `phalanx help` stay true: their commands run, their keys are keys, their columns are those that a run
 * writes. And the manual and the shell's completion know what the tables of options know. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/config/config_table.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tools/tools.h"
#include "tests/test.h"

static const char *const topics[] = {"configuration", "planning", "layout",   "memory",  "multi-node",
                                     "islands",       "recovery", "gpu",      "data",    "troubleshooting",
                                     "columns",       "megatron", "glossary", "storage", "messages"};
enum { TOPICS = sizeof topics / sizeof *topics };

static void run_well(double limit, const char *top, const char *line)
{
    char here[4096];
    assert_non_null(getcwd(here, sizeof here));
    launch_result r = launch_run(limit, "cd %s && export PATH=%s/bin:$PATH OMP_NUM_THREADS=1 && %s", top, top, line);
    if (r.status)
        fail_msg("%s: status %d: %s", line, r.status, r.err);
    launch_free(&r);
}

/* A folder in which the commands make sense: the program on the path, the examples, texts, data, a run. */
static int prepare(void **state)
{
    if (workfolder_setup(state))
        return -1;
    char here[4096], *program = launch_beside("../phalanx"), *whole = realpath(program, NULL);
    assert_non_null(getcwd(here, sizeof here));
    char *line =
        must_format("mkdir -p bin texts corpus && ln -s %s bin/phalanx && ln -s %s/models models && cp %s/README.md "
                    "texts/a.txt && cp %s/engine/README.md texts/b.txt && cp %s/tests/README.md texts/held.txt",
                    whole, here, here, here, here);
    run_well(20, *state, line);
    run_well(60, *state,
             "phalanx tokenize --output corpus/train --tokenizer corpus/tokenizer.model --train-vocab 400 texts/a.txt "
             "texts/b.txt");
    run_well(60, *state,
             "phalanx tokenize --output corpus/validation --tokenizer corpus/tokenizer.model texts/held.txt");
    run_well(120, *state,
             "phalanx train models/configs/demo.yaml train.steps=2 train.global_batch=2 train.micro_batch=2 "
             "optimizer.warmup=1 evaluate.batches=1 model.layers=1 model.hidden_size=64 train.sequence=32 "
             "data.validation=[corpus/validation,corpus/train]");
    free(line);
    free(whole);
    free(program);
    return 0;
}

/* What `phalanx help NAME` prints; the caller's. */
static char *help_on(const char *name)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r = launch_run(20, "%s help %s", program, name);
    assert_int_equal(r.status, 0);
    char *text = must_strdup(r.out);
    launch_free(&r);
    return text;
}

TEST(the_commands_of_all_topics_run)
{
    int count = 0;
    for (int i = 0; i < TOPICS; i++) {
        AUTO_FREE char *text = help_on(topics[i]);
        for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
            if (strncmp(line, "    $ ", 6) == 0) {
                run_well(120, *state, line + 6);
                count++;
            }
    }
    assert_true(count >= 15);
}

static int is_part(int c)
{
    return isalnum(c) || c == '_' || c == '.';
}

/* section.key, section.key=value; a file's name is no key */
static int check_word(const char *topic, char *word)
{
    static const char *const endings[] = {".yaml", ".jsonl", ".json", ".txt",    ".bin",
                                          ".idx",  ".model", ".html", ".sbatch", NULL};
    char *dot = strchr(word, '.');
    size_t length = strlen(word);
    while (length > 0 && word[length - 1] == '.')
        word[--length] = 0;
    for (int i = 0; endings[i]; i++)
        if (strstr(word, endings[i]))
            return 0;
    if (!dot || !strchr(word, '.') || !isalpha((unsigned char)*word))
        return 0;
    char section[128];
    snprintf(section, sizeof section, "%.*s", (int)(dot - word), word);
    if (!config_table_is_section(section))
        return 0; /* another language's */
    if (config_table_find(word) < 0)
        fail_msg("help %s speaks of %s, which is no key", topic, word);
    return 1;
}

TEST(the_keys_of_all_topics_are_keys)
{
    int count = 0;
    for (int i = 0; i < TOPICS; i++) {
        char *text = help_on(topics[i]);
        for (char *at = text; *at;) {
            size_t length = 0;
            while (is_part((unsigned char)at[length]))
                length++;
            char word[128];
            snprintf(word, sizeof word, "%.*s", (int)length, at);
            count += check_word(topics[i], word);
            at += length + (at[length] != 0);
        }
        free(text);
    }
    assert_true(count >= 40);
}

static void expect_keys(const char *text, const json_t *line, const char *where)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)line, key, value) if (!strstr(text, key))
        fail_msg("help columns does not say what %s in %s is", key, where);
}

TEST(the_columns_are_those_of_a_run)
{
    char *text = help_on("columns"), host[256] = "", line[8192];
    AUTO_FREE char *metrics = workfolder_path(*state, "runs/demo/metrics.jsonl");
    FILE *f = fopen(metrics, "r");
    assert_non_null(f);
    int lines = 0;
    for (; fgets(line, sizeof line, f); lines++) {
        json_t *object = json_loads(line, 0, NULL);
        assert_non_null(object);
        expect_keys(text, object, metrics);
        json_decref(object);
    }
    fclose(f);
    assert_int_equal(lines, 3);
    gethostname(host, sizeof host - 1);
    AUTO_FREE char *path = must_format("%s/runs/demo/hosts/%s/resources.jsonl", (char *)*state, host);
    json_t *resources = runs_last_line(path);
    assert_non_null(resources);
    expect_keys(text, resources, path);
    json_decref(resources);
#define METRIC(kind, name, ...)                                                                                        \
    if (!strstr(text, #name))                                                                                          \
        fail_msg("help columns does not say what %s is", #name);
#include "engine/train/report/metrics.def"
    free(text);
}

TEST(no_line_is_wider_than_a_terminal)
{
    for (int i = 0; i < TOPICS; i++) {
        AUTO_FREE char *text = help_on(topics[i]);
        for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
            if (strlen(line) > 132 && strncmp(line, "    $ ", 6) != 0)
                fail_msg("help %s: %s", topics[i], line);
    }
}

/* README's row of topics has those that there are. */
TEST(readme_lists_the_topics)
{
    int64_t bytes;
    AUTO_FREE char *readme = (char *)workfolder_read("README.md", &bytes), *all = help_on("topics");
    char *row = strstr(readme, "| `phalanx help` | topics: "), *end = row ? strchr(row, ';') : NULL;
    assert_non_null(end);
    *end = 0;
    int listed = 1, there = 0;
    for (const char *comma = row; (comma = strchr(comma + 1, ',')); listed++)
        ;
    for (char *name = strtok(all, "\n"); name; name = strtok(NULL, "\n")) {
        if (!strcmp(name, commands_at(0)->name)) /* commands follow */
            break;
        AUTO_FREE char *word = must_format(" %s", name);
        const char *at = strstr(row, word);
        if (!at || !strchr(",", at[strlen(word)]))
            fail_msg("README does not list %s", name);
        there++;
    }
    assert_int_equal(listed, there);
}

/* The words on the left are those of the sources. */
TEST(messages_are_those_that_are_said)
{
    AUTO_FREE char *text = help_on("messages");
    int count = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char *end = strncmp(line, "  ", 2) == 0 ? strstr(line + 2, "  ") : NULL;
        if (!end)
            continue;
        *end = 0;
        launch_result r = launch_run(20, "grep -rqF --include=*.c -- \"%s\" engine tools", line + 2);
        if (r.status)
            fail_msg("nothing says \"%s\"", line + 2);
        launch_free(&r);
        count++;
    }
    assert_true(count >= 12);
}

/* Groups come first, a line each, and every key has its group; nothing pages where no terminal is. */
TEST(train_help_begins_with_the_groups)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r = launch_run(20, "PAGER='sed s/^Groups/PAGED/' %s train --help", program);
    assert_int_equal(r.status, 0);
    char *groups = strstr(r.out, "\nGroups of configuration keys"), *keys = strstr(r.out, "\nConfiguration keys");
    assert_true(groups && keys && groups < keys);
    *keys = 0;
    for (int i = 0; config_table_section(i); i++) {
        AUTO_FREE char *line = must_format("\n  %s ", config_table_section(i)->name);
        assert_non_null(strstr(groups, line));
        assert_true(config_table_is_section(config_table_section(i)->name));
    }
    for (int i = 0; i < config_table_rows(); i++) {
        AUTO_FREE char *line =
            must_format("\n  %.*s ", (int)strcspn(config_table_row(i)->key, "."), config_table_row(i)->key);
        assert_non_null(strstr(groups, line));
    }
    launch_free(&r);
    r = launch_run(20, "PAGER='sed s/^Groups/PAGED/' script -qec '%s train --help' /dev/null </dev/null", program);
    if (r.status != 127 && !strstr(r.out, "PAGED of configuration keys"))
        fail_msg("on a terminal: %.200s", r.out);
    launch_free(&r);
}

/* train --help SECTION, and `help` of a section or a key: those keys and no others. */
TEST(help_of_a_section_is_its_keys)
{
    static const struct {
        const char *line, *has, *not ;
        int status;
    } rows[] = {
        {"train --help optimizer", "  optimizer.muon_lr: ", "parallel.", 0},
        {"plan --help run.spike", "  run.spike.zscore: ", "run.folder", 0},
        {"help optimizer.lr", "  optimizer.lr: a number", "optimizer.min_lr", 0},
        {"help run", "  run.folder: ", "debug.", 0},
        {"help learning_rate", "  optimizer.lr: a number", "no topic", 0},
        {"help NoSuchBucket", "AWS_ENDPOINT_URL", "no topic", 0},
        {"help optimzer", "did you mean optimizer?", "lists them", 2},
        {"plan --max-steps=3", "did you mean train.steps=VALUE?", "lists them", 2},
        {"plan --train.steps 3", "did you mean train.steps=VALUE?", "lists them", 2},
        {"inspect --max-steps 3", "`phalanx inspect --help` lists them", "train.steps", 2},
        {"plan train.steps 100", "train.steps=100", "argument 1", 2},
        {"plan train.device=gpu", "did you mean cuda?", "argument", 2},
        {"plan model.architecture=gemma3", "did you mean gemma3_text?", "argument", 2},
        {"evaluate", "did you mean eval?", "lists them", 2},
        {"pretrain", "did you mean train?", "lists them", 2},
        {"export", "did you mean convert?", "report", 2},
        {"help export", "usage: phalanx convert", "no topic", 0},
        {"plan gpu=1", "unknown key gpu", "cuda", 2},
        {"plan train.device=GPU", "did you mean cuda?", "unknown", 2},
        {"train --help optimzer", "no key and no section optimzer; did you mean optimizer?", "optimizer.lr:", 2},
        {"train --help opt", "no key and no section opt", "optimizer.lr:", 2}};
    AUTO_FREE char *program = launch_beside("../phalanx");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        launch_result r = launch_run(20, "%s %s 2>&1", program, rows[i].line);
        assert_int_equal(r.status, rows[i].status);
        if (!strstr(r.out, rows[i].has) || strstr(r.out, rows[i].not ))
            fail_msg("%s: %s", rows[i].line, r.out);
        launch_free(&r);
    }
}

/* Does the schema have the key, below its sections, with a meaning? */
static bool in_schema(json_t *schema, const char *key)
{
    json_t *at = schema;
    char name[64];
    for (; *key; key += strcspn(key, ".") + (strchr(key, '.') != NULL)) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(key, "."), key);
        at = json_object_get(json_object_get(at, "properties"), name);
    }
    return json_is_string(json_object_get(at, "description"));
}

/* A validator of another language checks all shipped configurations by it in check-all (tests/tools/schema.py). */
TEST(the_schema_has_every_key)
{
    AUTO_FREE char *text = help_on("schema");
    json_t *schema = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(schema);
    for (int i = 0; i < config_table_rows(); i++)
        if (!in_schema(schema, config_table_row(i)->key))
            fail_msg("the schema has no %s", config_table_row(i)->key);
    assert_false(in_schema(schema, "train.stepz"));
    json_decref(schema);
}

/* A word that is no topic is searched in the lines of topics and in keys with what they say. */
TEST(an_unknown_topic_is_searched_or_refused_with_the_one_meant)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r = launch_run(20, "%s help STRAGGLER && %s help yarn && %s help memori", program, program, program);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.out, "glossary        slow rank            a straggler (run.slow_ratio)\n"));
    assert_non_null(strstr(r.out, "model.rope_scaling.kind"));
    assert_non_null(strstr(r.err, "no topic memori; did you mean memory?"));
    launch_free(&r);
}

TEST(the_manual_has_every_command_option_and_key)
{
    AUTO_FREE char *manual = help_on("man"), *program = launch_beside("../phalanx");
    for (int i = 0; commands_at(i); i++) {
        char heading[64], option[128];
        snprintf(heading, sizeof heading, ".SS phalanx %s", commands_at(i)->name);
        char *section = strstr(manual, heading);
        assert_non_null(section);
        launch_result r = launch_run(20, "%s %s --help-words", program, commands_at(i)->name);
        assert_int_equal(r.status, 0);
        for (char *word = strtok(r.out, "\n"); word; word = strtok(NULL, "\n")) {
            int length = (int)strcspn(word, " "), used = 0;
            for (int k = 0; k < length; k++)
                used += snprintf(option + used, sizeof option - (size_t)used, word[k] == '-' ? "\\-" : "%c", word[k]);
            if (strncmp(word, "--help", 6) != 0 && !strstr(section, option))
                fail_msg("the manual's %s has no %s", heading, option);
        }
        launch_free(&r);
    }
    assert_non_null(strstr(manual, "parallel.tensor"));
}

/* What bash offers for a line, with the cursor at its end. */
static char *completed(const char *top, const char *line)
{
    AUTO_FREE char *path = must_format("%s/ask", top);
    char *script =
        must_format(". tools/completion.bash; export PATH=%s/bin:$PATH\nread -ra COMP_WORDS <<<'%s'\n"
                    "[[ '%s' == *' ' ]] && COMP_WORDS+=('')\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_phalanx\n"
                    "printf '%%s\\n' \"${COMPREPLY[@]}\"\n",
                    top, line, line);
    runs_write_text(path, script);
    launch_result r = launch_run(20, "bash %s", path);
    if (r.status)
        fail_msg("%s: %s", line, r.err);
    char *text = must_format("\n%s", r.out);
    launch_free(&r);
    free(script);
    return text;
}

TEST(bash_completes_commands_options_words_and_keys)
{
    static const struct {
        const char *line, *offered, *not ;
    } rows[] = {{"phalanx tr", "\ntrain\n", "\nplan\n"},
                {"phalanx generate --t", "\n--temperature\n", "\n--seed\n"},
                {"phalanx eval --device ", "\ncuda\n", "\n--json\n"},
                {"phalanx train x.yaml parallel.t", "\nparallel.tensor=\n", "\nparallel.data=\n"},
                {"phalanx plan --no", "\n--node-ranks\n", "\n--json\n"},
                {"phalanx help multi", "\nmulti-node\n", "\nmemory\n"},
                {"phalanx train x.yaml optimizer.name=", "\nmuon\n", "\noptimizer.name=\n"},
                {"phalanx train x.yaml optimizer.name = ad", "\nadamw\n", "\nmuon\n"}, /* as bash breaks words */
                {"phalanx train x.yaml run.lock = ", "\ntrue\n", "\nfalse=\n"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        AUTO_FREE char *text = completed(*state, rows[i].line);
        if (!strstr(text, rows[i].offered) || strstr(text, rows[i].not ))
            fail_msg("%s offers%s", rows[i].line, text);
    }
}

TEST(an_installed_tree_runs)
{
    char *program = launch_beside("../phalanx"), *build = must_strdup(program), *top = *state;
    *strrchr(build, '/') = 0;
    launch_result r =
        launch_run(60, "make --no-print-directory -o all BUILD=%s PREFIX=/usr DESTDIR=%s/tree install", build, top);
    if (r.status)
        fail_msg("make install: %s", r.err);
    launch_free(&r);
    r = launch_run(
        30,
        "cd %s/tree/usr && bin/phalanx plan share/phalanx/configs/demo.yaml && gzip -dc share/man/man1/phalanx.1.gz "
        "&& bash -n share/bash-completion/completions/phalanx && test -f share/zsh/site-functions/_phalanx "
        "&& { ! command -v zsh >/dev/null || zsh -n share/zsh/site-functions/_phalanx; }",
        top);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "parameters "));
    assert_non_null(strstr(r.out, ".TH PHALANX 1"));
    launch_free(&r);
    free(build);
    free(program);
}

TEST_MAIN(prepare, workfolder_teardown)
