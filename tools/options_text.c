#include "tools/options_text.h"

#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

/* A line that begins with . or ' is a request, a backslash an escape, and - a hyphen. */
static void put(FILE *out, const char *text)
{
    for (const char *c = text; *c; c++) {
        if ((c == text || c[-1] == '\n') && (*c == '.' || *c == '\''))
            fputs("\\&", out);
        fputs(*c == '\\' ? "\\e" : *c == '-' ? "\\-" : (char[2]){*c, 0}, out);
    }
}

static void put_more(FILE *out, void (*more)(FILE *out))
{
    char *text = NULL;
    size_t bytes;
    FILE *to = open_memstream(&text, &bytes);
    MUST(to, "out of host memory");
    more(to);
    fclose(to);
    fputs(".PP\n.nf\n", out);
    put(out, text);
    fputs(".fi\n", out);
    free(text);
}

void options_text_man(FILE *out, const options_command *c)
{
    fprintf(out, ".SS phalanx %s%s%s", c->name, c->rows ? " [options]" : "", *c->operands ? " " : "");
    put(out, c->operands);
    fputc('\n', out);
    put(out, c->summary);
    fputc('\n', out);
    for (int i = 0; i < c->rows; i++) {
        const options_row *row = &c->row[i];
        fputs(".TP\n.B ", out);
        put(out, row->name);
        if (row->argument)
            fprintf(out, " \\fI%s\\fP", row->argument);
        for (int k = 0; row->kind == OPTIONS_CHOICE && row->choices[k]; k++)
            fprintf(out, "%s%s", k ? "|" : " ", row->choices[k]);
        fputc('\n', out);
        put(out, row->doc);
        fputc('\n', out);
    }
    if (c->more_help)
        put_more(out, c->more_help);
}

void options_text_words(FILE *out, const options_command *c)
{
    for (int i = 0; i < c->rows; i++) {
        fputs(c->row[i].name, out);
        for (int k = 0; c->row[i].kind == OPTIONS_CHOICE && c->row[i].choices[k]; k++)
            fprintf(out, " %s", c->row[i].choices[k]);
        fputc('\n', out);
    }
    fputs("--help\n", out);
}
