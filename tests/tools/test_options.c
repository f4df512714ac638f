/* Command lines: what is read, what is refused and in which words, and a help that is complete. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tools/options.h"
#include "tests/test.h"

static const char *const formats[] = {"huggingface", "phalanx", NULL};

typedef struct values {
    bool json;
    int64_t tokens;
    double temperature;
    const char *prompt;
    int format;
} values;

static void more(FILE *out)
{
    fputs("And more.\n", out);
}

/* Parses with a fresh set of values; the command line is copied, because parsing reorders it. */
static int parse(values *v, int *operands, int argc, const char **argv)
{
    *v = (values){.tokens = 100, .temperature = 1};
    const options_row rows[] = {
        {"--json", OPTIONS_FLAG, NULL, "print JSON", &v->json, 0, 0, NULL},
        {"--tokens", OPTIONS_INTEGER, "N", "how many", &v->tokens, 1, 1000, NULL},
        {"--temperature", OPTIONS_NUMBER, "T", "0 is greedy", &v->temperature, 0, 1.0 / 0.0, NULL},
        {"--prompt", OPTIONS_TEXT, "TEXT", "what to continue", &v->prompt, 0, 0, NULL},
        {"--format", OPTIONS_CHOICE, NULL, "of the output", &v->format, 0, 0, formats},
    };
    const options_command command = {"generate", "FILE [FILE]", "Continues text.", 1, 2, rows, 5, more, NULL};
    return options_parse(&command, operands, argc, (char **)argv);
}

TEST(options_and_operands_may_be_mixed)
{
    const char *argv[] = {"generate", "a",  "--tokens=7", "--json", "--temperature", "-0", "--prompt",
                          "-x",       "--", "--b",        NULL};
    values v;
    int operands;
    assert_int_equal(parse(&v, &operands, 10, argv), OPTIONS_GO_ON);
    assert_int_equal(operands, 2);
    assert_string_equal(argv[1], "a");
    assert_string_equal(argv[2], "--b");
    assert_true(v.json);
    assert_int_equal(v.tokens, 7);
    assert_true(v.temperature == 0);
    assert_string_equal(v.prompt, "-x");
}

TEST(defaults_stay_and_a_dash_is_an_operand)
{
    const char *argv[] = {"generate", "-", "--format", "phalanx", NULL};
    values v;
    int operands;
    assert_int_equal(parse(&v, &operands, 4, argv), OPTIONS_GO_ON);
    assert_int_equal(operands, 1);
    assert_string_equal(argv[1], "-");
    assert_int_equal(v.format, 1);
    assert_int_equal(v.tokens, 100);
    assert_false(v.json);
    assert_null(v.prompt);
}

TEST(wrong_usage_is_refused_in_one_exact_line)
{
    static const struct {
        const char *argv[4];
        const char *message;
    } cases[] = {
        {{"a", "--tokesn", "3"}, "unknown option --tokesn; did you mean --tokens?"},
        {{"a", "--tokesn=3"}, "unknown option --tokesn; did you mean --tokens?"},
        {{"a", "--token"}, "unknown option --token; did you mean --tokens?"},
        {{"a", "--num-layers", "3"}, "unknown option --num-layers; `phalanx generate --help` lists them"},
        {{"a", "--quantum"}, "unknown option --quantum; `phalanx generate --help` lists them"},
        {{"a", "-x"}, "unknown option -x; `phalanx generate --help` lists them"},
        {{"a", "--tokens"}, "--tokens: expected an integer from 1 to 1000 after it"},
        {{"a", "--tokens", "many"}, "--tokens: expected an integer from 1 to 1000, not \"many\""},
        {{"a", "--tokens", "1001"}, "--tokens: expected an integer from 1 to 1000, not \"1001\""},
        {{"a", "--tokens="}, "--tokens: expected an integer from 1 to 1000, not \"\""},
        {{"a", "--tokens=99999999999999999999"},
         "--tokens: expected an integer from 1 to 1000, not \"99999999999999999999\""},
        {{"a", "--temperature", "-1"}, "--temperature: expected a number, at least 0, not \"-1\""},
        {{"a", "--temperature", "nan"}, "--temperature: expected a number, at least 0, not \"nan\""},
        {{"a", "--format", "onnx"}, "--format: expected one of huggingface, phalanx, not \"onnx\""},
        {{"a", "--prompt"}, "--prompt: expected an argument after it"},
        {{"a", "--json=1"}, "--json takes no value"},
        {{NULL}, "expected FILE [FILE]; `phalanx generate --help` explains"},
        {{"a", "b", "c"}, "unexpected argument \"c\"; `phalanx generate --help` explains"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *argv[6] = {"generate"};
        int argc = 1;
        while (cases[i].argv[argc - 1]) {
            argv[argc] = cases[i].argv[argc - 1];
            argc++;
        }
        values v;
        int operands = -7;
        assert_int_equal(parse(&v, &operands, argc, argv), STATUS_USAGE);
        assert_string_equal(status_message(), cases[i].message);
        assert_int_equal(operands, -7);
    }
}

TEST(help_wins_over_missing_operands)
{
    const char *argv[] = {"generate", "--help", NULL};
    values v;
    int operands;
    assert_int_equal(parse(&v, &operands, 2, argv), 0);
}

TEST(help_is_complete)
{
    bool flag;
    int choice;
    const options_row rows[] = {
        {"--json", OPTIONS_FLAG, NULL, "print JSON", &flag, 0, 0, NULL},
        {"--format", OPTIONS_CHOICE, NULL, "of the output", &choice, 0, 0, formats},
    };
    const options_command command = {"convert", "FOLDER", "Converts.", 1, 1, rows, 2, more, NULL};
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    options_help(out, &command);
    fclose(out);
    assert_string_equal(text, "usage: phalanx convert [options] FOLDER\n\nConverts.\n\nOptions:\n"
                              "  --json                      print JSON\n"
                              "  --format huggingface|phalanx  of the output\n"
                              "  -h, --help                  this text\n\nAnd more.\n");
    free(text);
}

TEST_MAIN(NULL, NULL)
