/* Prints a config as text: the effective configuration, differences on resume, help. */
#include "engine/config/config.h"

#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "engine/config/config_table.h"
#include "models/presets.h"
#include "parallel/comm/agree.h"

/* --- write and compare -------------------------------------------------------------------------------------------- */

/* Splits a key at its dots: returns their number, and sets *last to the last name. */
static int split_key(const char *key, const char **last)
{
    int dots = 0;
    for (*last = key; *key; key++)
        if (*key == '.') {
            dots++;
            *last = key + 1;
        }
    return dots;
}

/* True if the key derives from others that give no value, as heads that do not divide the hidden size. The key is left
 * out; config_check reports it. */
static bool is_unknown(const config *c, const config_row *row)
{
    const void *field = (const char *)c + row->offset;
    if (row->fallback || (row->type != CONFIG_TYPE_INT && row->type != CONFIG_TYPE_LONG))
        return false;
    return (double)(row->type == CONFIG_TYPE_INT ? *(const int *)field : *(const int64_t *)field) < row->low;
}

/* Prints a key, after the names of sections that the previous key was not in. */
static void write_key(FILE *out, const char **previous, const config *c, const config_row *row)
{
    const char *last;
    int dots = split_key(row->key, &last), level = 0;
    if (is_unknown(c, row))
        return;
    for (const char *dot = strchr(row->key, '.'); dot; dot = strchr(dot + 1, '.'), level++) {
        size_t length = (size_t)(dot + 1 - row->key);
        if (strncmp(row->key, *previous, length) == 0)
            continue;
        const char *name = dot;
        while (name > row->key && name[-1] != '.')
            name--;
        fprintf(out, "%*s%.*s:\n", 2 * level, "", (int)(dot - name), name);
    }
    fprintf(out, "%*s%s: ", 2 * dots, "", last);
    config_value_print(out, c, row);
    fputc('\n', out);
    *previous = row->key;
}

/* A section within a section is printed where its first key is, as a whole: a YAML mapping has a key once. */
static void write_config(FILE *out, const config *c)
{
    const char *previous = "", *last;
    const int rows = config_table_rows();
    AUTO_FREE bool *done = must_calloc((unsigned long)rows, sizeof *done);
    for (int i = 0; i < rows; i++) {
        const char *key = config_table_row(i)->key;
        bool nested = split_key(key, &last) > 1;
        for (int k = i; k < rows && (k == i || nested); k++)
            if (!done[k] && strncmp(config_table_row(k)->key, key, (size_t)(last - key)) == 0) {
                write_key(out, &previous, c, config_table_row(k));
                done[k] = true;
            }
    }
}

char *config_text(const config *c)
{
    return MUST_PRINT(out, write_config(out, c));
}

void config_write_shared(FILE *out, const config *c)
{
    for (int i = 0; i < config_table_rows(); i++) {
        const config_row *row = config_table_row(i);
        AUTO_FREE char *value = row->by_rank ? NULL : config_value_text(c, row);
        if (value)
            agree_fact(out, row->key, "%s", value);
    }
    agree_fact(out, "model.from", "%s", c->model.from ? "given" : "not given"); /* ranks read it, or none does */
}

bool config_same(const config *a, const config *b, const char *key)
{
    int i = config_table_find(key);
    MUST(i >= 0, "no configuration key %s", key);
    AUTO_FREE char *before = config_value_text(a, config_table_row(i)),
                   *after = config_value_text(b, config_table_row(i));
    return strcmp(before, after) == 0;
}

status config_compare_for_resume(const config *saved, const config *now, bool new_stage,
                                 void (*changed)(void *context, const char *key, const char *old_value,
                                                 const char *new_value),
                                 void *context)
{
    AUTO_FREE char *refused = NULL;
    size_t bytes;
    bool stage = false; /* a new stage would allow some of the changes */
    FILE *out = open_memstream(&refused, &bytes);
    MUST(out, "out of host memory");
    for (int i = 0; i < config_table_rows(); i++) {
        const config_row *row = config_table_row(i);
        if (row->resume == CONFIG_SILENT)
            continue;
        AUTO_FREE char *before = config_value_text(saved, row), *after = config_value_text(now, row);
        if (strcmp(before, after) != 0) {
            bool of_a_stage = row->resume == CONFIG_STAGE;
            stage |= of_a_stage;
            if (row->resume == CONFIG_FIXED || (of_a_stage && !new_stage))
                fprintf(out, "%s%s (%s -> %s)", ftell(out) ? ", " : "", row->key, before, after);
            else if (changed)
                changed(context, row->key, before, after);
        }
    }
    MUST(fclose(out) == 0, "out of host memory");
    status s = STATUS_OK;
    if (bytes)
        s = status_fail(STATUS_USAGE,
                        "a run that resumes cannot change %s; set it back, or start afresh with "
                        "checkpoint.resume=never%s",
                        refused,
                        stage && !new_stage ? ", or begin a new stage: another run.folder, and checkpoint.resume with "
                                              "this one"
                                            : "");
    return s;
}

status config_each(const config *c, status (*each)(void *context, const char *key, const char *value), void *context)
{
    status s = STATUS_OK;
    for (int i = 0; i < config_table_rows() && s == STATUS_OK; i++) {
        AUTO_FREE char *value = config_value_text(c, config_table_row(i));
        s = each(context, config_table_row(i)->key, value);
    }
    return s;
}

/* --- help and small answers --------------------------------------------------------------------------------------- */

static void help_key(FILE *out, const config_row *row)
{
    fprintf(out, "  %s: ", row->key);
    config_value_expected(out, row);
    fprintf(out, "\n      %s [%s]\n", row->doc, row->fallback ? row->fallback : row->otherwise);
}

void config_help(FILE *out)
{
    fputs("Groups of configuration keys; all keys are below. `phalanx train --help GROUP` has one group, `phalanx help "
          "WORD`\nwhat is said of a word, `phalanx help configuration` how files are written:\n\n",
          out);
    for (int i = 0; config_table_section(i); i++)
        fprintf(out, "  %-20s%s\n", config_table_section(i)->name, config_table_section(i)->doc);
    fputs("\nConfiguration keys (in the file as section: {key: value}, on the command line as section.key=value):\n",
          out);
    for (int i = 0; i < config_table_rows(); i++) {
        const config_row *row = config_table_row(i);
        const char *before = i ? config_table_row(i - 1)->key : "";
        size_t section = strcspn(row->key, ".") + 1;
        if (strncmp(before, row->key, section) != 0)
            fputc('\n', out);
        help_key(out, row);
    }
}

bool config_help_about(FILE *out, const char *name)
{
    size_t length = strlen(name);
    bool any = false;
    for (int i = 0; length && i < config_table_rows(); i++) {
        const config_row *row = config_table_row(i);
        if (strncmp(row->key, name, length) != 0 || (row->key[length] != '.' && row->key[length]))
            continue;
        help_key(out, row);
        any = true;
    }
    return any;
}

void config_words(FILE *out)
{
    for (int i = 0; i < config_table_rows(); i++) {
        const config_row *row = config_table_row(i);
        fprintf(out, "%s=", row->key);
        for (int k = 0; row->word && row->word[k]; k++)
            fprintf(out, " %s", row->word[k]);
        for (int k = 0; row->type == CONFIG_TYPE_PRESET && k < presets_count(); k++)
            fprintf(out, " %s", presets_at(k)->name);
        fputs(row->type == CONFIG_TYPE_BOOL ? " true false\n" : "\n", out);
    }
}

static const config_row *find_word_row(const char *key)
{
    int i = config_table_find(key);
    MUST(i >= 0 && config_table_row(i)->type == CONFIG_TYPE_WORD, "%s is no key that takes a word", key);
    return config_table_row(i);
}

const char *config_word_of(const char *key, int value)
{
    return find_word_row(key)->word[value];
}

const char *config_word(const config *c, const char *key)
{
    const config_row *row = find_word_row(key);
    return row->word[*(const int *)(const void *)((const char *)c + row->offset)];
}
