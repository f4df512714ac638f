#include "tools/options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "engine/config/config_table.h"
#include "engine/config/nearest.h"
#include "parallel/comm/agree.h"

/* Prints "--tokens N" or "--format huggingface|phalanx", as in the help. */
static int print_name(FILE *out, const options_row *row)
{
    int n = fprintf(out, "%s", row->name);
    if (row->argument)
        n += fprintf(out, " %s", row->argument);
    for (int i = 0; row->kind == OPTIONS_CHOICE && row->choices[i]; i++)
        n += fprintf(out, "%s%s", i ? "|" : " ", row->choices[i]);
    return n;
}

void options_help(FILE *out, const options_command *c)
{
    fprintf(out, "usage: phalanx %s%s%s%s\n\n%s\n\n", c->name, c->rows ? " [options]" : "", *c->operands ? " " : "",
            c->operands, c->summary);
    fprintf(out, "Options:\n");
    for (int i = 0; i < c->rows; i++) {
        fprintf(out, "  ");
        int width = print_name(out, &c->row[i]);
        fprintf(out, "%*s%s\n", width < 26 ? 28 - width : 2, "", c->row[i].doc);
    }
    fprintf(out, "  %-28s%s\n", "-h, --help", "this text");
    if (c->more_help) {
        fputc('\n', out);
        c->more_help(out);
    }
}

/* ---- for other readers ------------------------------------------------------------------------------------------- */

/* Escapes text for roff: a line that begins with . or ' is a request, a backslash an escape, and - a hyphen. */
static void manual_text(FILE *out, const char *text)
{
    for (const char *c = text; *c; c++) {
        if ((c == text || c[-1] == '\n') && (*c == '.' || *c == '\''))
            fputs("\\&", out);
        fputs(*c == '\\' ? "\\e" : *c == '-' ? "\\-" : (char[2]){*c, 0}, out);
    }
}

/* Prints a section of the manual in man(7). */
static void print_manual(FILE *out, const options_command *c)
{
    fprintf(out, ".SS phalanx %s%s%s", c->name, c->rows ? " [options]" : "", *c->operands ? " " : "");
    manual_text(out, c->operands);
    fputc('\n', out);
    manual_text(out, c->summary);
    fputc('\n', out);
    for (int i = 0; i < c->rows; i++) {
        const options_row *row = &c->row[i];
        fputs(".TP\n.B ", out);
        manual_text(out, row->name);
        if (row->argument)
            fprintf(out, " \\fI%s\\fP", row->argument);
        for (int k = 0; row->kind == OPTIONS_CHOICE && row->choices[k]; k++)
            fprintf(out, "%s%s", k ? "|" : " ", row->choices[k]);
        fputc('\n', out);
        manual_text(out, row->doc);
        fputc('\n', out);
    }
    if (c->more_help) {
        AUTO_FREE char *text = MUST_PRINT(to, c->more_help(to));
        fputs(".PP\n.nf\n", out);
        manual_text(out, text);
        fputs(".fi\n", out);
    }
}

/* Prints for shells a line for each option: its name and the words that may follow it. */
static void print_words(FILE *out, const options_command *c)
{
    for (int i = 0; i < c->rows; i++) {
        fputs(c->row[i].name, out);
        for (int k = 0; c->row[i].kind == OPTIONS_CHOICE && c->row[i].choices[k]; k++)
            fprintf(out, " %s", c->row[i].choices[k]);
        fputc('\n', out);
    }
    fputs("--help\n", out);
}

/* ---- parsing ----------------------------------------------------------------------------------------------------- */

static bool set_integer(const options_row *row, const char *text)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno)
        return false;
    if ((row->low != 0 || row->high != 0) && ((double)value < row->low || (double)value > row->high))
        return false;
    *(int64_t *)row->into = value;
    return true;
}

static bool set_number(const options_row *row, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value))
        return false;
    if ((row->low != 0 || row->high != 0) && (value < row->low || value > row->high))
        return false;
    *(double *)row->into = value;
    return true;
}

static bool set_text(const options_row *row, const char *text)
{
    *(const char **)row->into = text;
    return true;
}

static bool set_choice(const options_row *row, const char *text)
{
    for (int i = 0; row->choices[i]; i++)
        if (strcmp(row->choices[i], text) == 0) {
            *(int *)row->into = i;
            return true;
        }
    return false;
}

static const struct {
    const char *expected;
    bool (*set)(const options_row *, const char *);
} kinds[] = {
    [OPTIONS_FLAG] = {"nothing", NULL},          [OPTIONS_INTEGER] = {"an integer", set_integer},
    [OPTIONS_NUMBER] = {"a number", set_number}, [OPTIONS_TEXT] = {"an argument", set_text},
    [OPTIONS_CHOICE] = {"one of", set_choice},
};

static status wrong_value(const options_row *row, const char *text)
{
    AUTO_FREE char *expected = NULL;
    size_t bytes;
    FILE *out = open_memstream(&expected, &bytes);
    MUST(out, "out of host memory");
    fputs(kinds[row->kind].expected, out);
    for (int i = 0; row->kind == OPTIONS_CHOICE && row->choices[i]; i++)
        fprintf(out, "%s%s", i ? ", " : " ", row->choices[i]);
    if ((row->low != 0 || row->high != 0) && isfinite(row->high))
        fprintf(out, " from %.15g to %.15g", row->low, row->high);
    else if (row->low != 0 || row->high != 0)
        fprintf(out, ", at least %.15g", row->low);
    fclose(out);
    return text ? status_fail(STATUS_USAGE, "%s: expected %s, not \"%s\"", row->name, expected, text)
                : status_fail(STATUS_USAGE, "%s: expected %s after it", row->name, expected);
}

static const options_row *find(const options_command *c, const char *name, size_t length)
{
    for (int i = 0; i < c->rows; i++)
        if (strncmp(c->row[i].name, name, length) == 0 && !c->row[i].name[length])
            return &c->row[i];
    return NULL;
}

static status unknown(const options_command *c, const char *text)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(text, "="), text);
    nearest n = {.wanted = name};
    for (int i = 0; i < c->rows; i++)
        nearest_offer(&n, c->row[i].name);
    nearest_offer(&n, "--help");
    const char *meant = nearest_word(&n), *key = NULL;
    if (strstr(c->operands, "key=value"))
        key = meant ? nearest_meaning(name) : config_table_nearest(name);
    return key && strchr(key, '.') ? status_fail(STATUS_USAGE, "unknown option %s; did you mean %s=VALUE?", name, key)
           : meant                 ? status_fail(STATUS_USAGE, "unknown option %s; did you mean %s?", name, meant)
                   : status_fail(STATUS_USAGE, "unknown option %s; `phalanx %s --help` lists them", name, c->name);
}

/* Sets one option; *at moves over its argument if that is a word of its own. */
static status set_option(const options_command *c, int *at, int argc, char **argv)
{
    const char *text = argv[*at], *equals = strchr(text, '=');
    const options_row *row = find(c, text, equals ? (size_t)(equals - text) : strlen(text));
    if (!row)
        return unknown(c, text);
    if (row->kind == OPTIONS_FLAG) {
        if (equals)
            return status_fail(STATUS_USAGE, "%s takes no value", row->name);
        *(bool *)row->into = true;
        return STATUS_OK;
    }
    const char *value = equals ? equals + 1 : *at + 1 < argc ? argv[++*at] : NULL;
    return value && kinds[row->kind].set(row, value) ? STATUS_OK : wrong_value(row, value);
}

static status check_operands(const options_command *c, int count, char **argv)
{
    if (count < c->least)
        return status_fail(STATUS_USAGE, "expected %s; `phalanx %s --help` explains", c->operands, c->name);
    if (c->most >= 0 && count > c->most)
        return status_fail(STATUS_USAGE, "unexpected argument \"%s\"; `phalanx %s --help` explains", argv[c->most + 1],
                           c->name);
    return STATUS_OK;
}

/* Returns the exit status. A subject that is unknown to the command may be any word after --help. Without a subject
 * the help passes through $PAGER, or less, if a person sits before a terminal. */
static int say_help(const options_command *c, const char *subject)
{
    if (!subject || !c->help_about || *subject == '-') {
        const bool person = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
        FILE *pager = person ? popen("LESS=${LESS:-FRX} ${PAGER:-less} 2>/dev/null || cat", "w") : NULL;
        options_help(pager ? pager : stdout, c);
        if (pager)
            pclose(pager);
        return STATUS_OK;
    }
    if (c->help_about(stdout, subject))
        return STATUS_OK;
    const char *meant = config_table_nearest(subject);
    log_error("%s --help: no key and no section %.60s%s%s%s", c->name, subject, meant ? "; did you mean " : "",
              meant ? meant : "", meant ? "?" : "");
    return STATUS_USAGE;
}

int options_parse(const options_command *c, int *operands, int argc, char **argv)
{
    int count = 0;
    bool ended = false;
    status s = STATUS_OK;
    for (int i = 1; i < argc && s == STATUS_OK; i++) {
        const char *text = argv[i];
        if (ended || text[0] != '-' || !text[1]) {
            argv[++count] = argv[i];
        } else if (strcmp(text, "--") == 0) {
            ended = true;
        } else if (strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0) {
            return say_help(c, i + 1 < argc ? argv[i + 1] : NULL);
        } else if (strcmp(text, "--help-man") == 0) {
            print_manual(stdout, c);
            return 0;
        } else if (strcmp(text, "--help-words") == 0) {
            print_words(stdout, c);
            return 0;
        } else {
            s = set_option(c, &i, argc, argv);
        }
    }
    if (s == STATUS_OK)
        s = check_operands(c, count, argv);
    if (s != STATUS_OK) {
        log_error("%s: %s", c->name, status_message());
        return STATUS_USAGE;
    }
    *operands = count;
    return OPTIONS_GO_ON;
}

int options_exit(status s)
{
    bool written = fflush(stdout) == 0 && !ferror(stdout); /* shows the output before an error */
    if (s == STATUS_OK && !written)
        s = status_fail(STATUS_FAILED, "the output cannot be written");
    if (s != STATUS_OK)
        log_error("%s", status_message());
    return (int)s;
}

static void write_values(FILE *out, const options_command *c)
{
    for (int i = 0; i < c->rows; i++) {
        const options_row *row = &c->row[i];
        const char *word = row->kind == OPTIONS_TEXT     ? *(const char **)row->into
                           : row->kind == OPTIONS_CHOICE ? row->choices[*(int *)row->into]
                           : row->kind == OPTIONS_FLAG   ? *(bool *)row->into ? "given" : NULL
                                                         : "";
        if (row->kind == OPTIONS_INTEGER)
            agree_fact(out, row->name, "%" PRId64, *(int64_t *)row->into);
        else if (row->kind == OPTIONS_NUMBER)
            agree_fact(out, row->name, "%.17g", *(double *)row->into);
        else
            agree_fact(out, row->name, "%s", word ? word : "not given");
    }
}

static void write_facts(FILE *out, const options_facts *f)
{
    agree_fact(out, "the command", "%s", f->command->name);
    write_values(out, f->command);
    if (f->rest)
        agree_fact(out, "the argument", "%s", f->rest);
    if (f->config)
        config_write_shared(out, f->config);
    agree_write_environment(out);
}

status options_agree(comm *world, status mine, const options_facts *facts)
{
    AUTO_FREE char *same = MUST_PRINT(out, write_facts(out, facts)), *build = MUST_PRINT(out, agree_write_build(out));
    return agree_all(comm_world(world), mine, same, build);
}

options_said options_said_of(int operands, char *const *operand)
{
    bool keys = operands > 0 && (strchr(operand[0], '=') || config_table_find(operand[0]) >= 0) &&
                access(operand[0], F_OK) != 0;
    return (options_said){
        .file = keys || operands == 0 ? NULL : operand[0], .overrides = operands - !keys, .override = operand + !keys};
}
