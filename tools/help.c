/* Prints topics on the terminal, the manual's page for `make install`, and the words of a shell's completion. */
#include "tools/tools.h"

#include <stdio.h>
#include <string.h>

#include "engine/config/config.h"
#include "engine/config/config_table.h"
#include "engine/config/nearest.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tools/page.h"
#include "tools/families.h"
#include "tools/options.h"

EMBED(help_configuration, "tools/help/configuration.txt");
EMBED(help_planning, "tools/help/planning.txt");
EMBED(help_layout, "tools/help/layout.txt");
EMBED(help_memory, "tools/help/memory.txt");
EMBED(help_multi_node, "tools/help/multi-node.txt");
EMBED(help_data, "tools/help/data.txt");
EMBED(help_troubleshooting, "tools/help/troubleshooting.txt");
EMBED(help_islands, "tools/help/islands.txt");
EMBED(help_recovery, "tools/help/recovery.txt");
EMBED(help_gpu, "tools/help/gpu.txt");
EMBED(help_columns, "tools/help/columns.txt");
EMBED(help_megatron, "tools/help/megatron.txt");
EMBED(help_glossary, "tools/help/glossary.txt");
EMBED(help_storage, "tools/help/storage.txt");
EMBED(help_messages, "tools/help/messages.txt");

/* ---- output for programs ---- */

/* Prints the commands, one word a line. */
static void print_words(FILE *out)
{
    for (int i = 0; commands_at(i); i++)
        fprintf(out, "%s\n", commands_at(i)->name);
    fputs("help\n", out);
}

static void print_manual(FILE *out)
{
    fputs(".TH PHALANX 1 \"\" \"phalanx " COMMANDS_VERSION
          "\" \"User Commands\"\n.SH NAME\nphalanx \\- pretrains transformers "
          "across clusters\n.SH SYNOPSIS\n.B phalanx\n.I COMMAND\n...\n.SH COMMANDS\n",
          out);
    for (int i = 0; commands_at(i); i++) {
        char name[32], option[] = "--help-man", *arguments[] = {name, option, NULL};
        snprintf(name, sizeof name, "%s", commands_at(i)->name);
        commands_at(i)->main(2, arguments);
    }
    fputs(".SS phalanx help [TOPIC]\n" HELP_SUMMARY "\n", out);
    fputs(".SH EXIT STATUS\n0 done; 1 failed; 2 wrong usage or configuration; 75 stopped by a signal and saved, or by "
          "the loss of its folder's lock: run it "
          "again.\n",
          out);
}

/* ---- topics ---- */

static void print_topics(FILE *out);

static const struct {
    const char *name, *summary; /* summary NULL: not listed */
    const char *text;           /* NULL: `print` writes the topic */
    void (*print)(FILE *out);
} topics[] = {{"configuration", "files, overrides, includes, variables, editors", help_configuration, NULL},
              {"planning", "from a file of ten lines to the line that starts the job", help_planning, NULL},
              {"layout", "choosing tensor, pipeline and data ranks", help_layout, NULL},
              {"memory", "what a rank needs, and what to do when it does not fit", help_memory, NULL},
              {"multi-node", "Slurm, mpirun, containers, exit status, supervision", help_multi_node, NULL},
              {"islands", "several jobs that merge over slow links", help_islands, NULL},
              {"recovery", "restarts, signals, copies in memory", help_recovery, NULL},
              {"gpu", "what is built, the self-check, determinism, profiling", help_gpu, NULL},
              {"data", "from text to samples", help_data, NULL},
              {"storage", "objects of a store, s3://BUCKET/KEY", help_storage, NULL},
              {"troubleshooting", "what to look at when a run hangs, fails or is slow", help_troubleshooting, NULL},
              {"messages", "words of an error, and what to do", help_messages, NULL},
              {"columns", "what the columns on the screen and in a run's files mean", help_columns, NULL},
              {"megatron", "from Megatron-LM: its flags, and the keys that do the same", help_megatron, NULL},
              {"glossary", "our words, and the field's", help_glossary, NULL},
              {"families", "what is read of Hugging Face's config.json, by architecture", NULL, families_print},
              {"schema", "the configuration's keys as a JSON schema, for editors", NULL, config_schema},
              {"man", NULL, NULL, print_manual},
              {"commands", NULL, NULL, print_words},
              {"keys", NULL, NULL, config_words},
              {"topics", NULL, NULL, print_topics}};

enum { TOPICS = sizeof topics / sizeof *topics };

static void print_topics(FILE *out)
{
    for (int i = 0; i < TOPICS; i++)
        if (topics[i].summary)
            fprintf(out, "%s\n", topics[i].name);
    for (int i = 0; commands_at(i); i++)
        fprintf(out, "%s\n", commands_at(i)->name);
}

static void list(FILE *out)
{
    fputs("Topics:\n", out);
    for (int i = 0; i < TOPICS; i++)
        if (topics[i].summary)
            fprintf(out, "  %-28s%s\n", topics[i].name, topics[i].summary);
}

/* Prints the lines of topics, and then the keys, that have the word in any case; false: there are none. */
static bool print_found(const char *word)
{
    bool found = false;
    for (int i = 0; i < TOPICS; i++)
        for (const char *line = topics[i].text; line && *line;) {
            const int length = (int)strcspn(line, "\n");
            AUTO_FREE char *one = must_format("%.*s", length, line);
            if (strcasestr(one, word) && printf("%-16s%s\n", topics[i].name, one + strspn(one, " ")))
                found = true;
            line += length + (line[length] == '\n');
        }
    for (int i = 0; i < config_table_rows(); i++)
        if (strcasestr(config_table_row(i)->key, word) || strcasestr(config_table_row(i)->doc, word))
            found |= config_help_about(stdout, config_table_row(i)->key);
    return found;
}

static int print_topic(const char *name)
{
    nearest n = {.wanted = name};
    for (int i = 0; i < TOPICS; i++) {
        if (!strcmp(name, topics[i].name)) {
            if (topics[i].text)
                fputs(topics[i].text, stdout);
            else
                topics[i].print(stdout);
            return STATUS_OK;
        }
        if (topics[i].summary)
            nearest_offer(&n, topics[i].name);
    }
    const char *key = nearest_meaning(name), *meant = nearest_word(&n);
    const commands_row *command = commands_find(key ? key : name);
    if (command) {
        char own[32], option[] = "--help", *arguments[] = {own, option, NULL};
        snprintf(own, sizeof own, "%s", command->name);
        return command->main(2, arguments);
    }
    if (config_help_about(stdout, key ? key : name) || (*name && print_found(name)))
        return STATUS_OK;
    if (!meant)
        meant = config_table_nearest(name);
    if (meant)
        log_error("no topic %.60s; did you mean %s?", name, meant);
    else
        log_error("no topic %.60s; `phalanx help` lists them", name);
    return STATUS_USAGE;
}

void help_commands(FILE *out)
{
    for (int i = 0; commands_at(i); i++)
        fprintf(out, "  %-12s%s\n", commands_at(i)->name, commands_at(i)->summary);
    fputs("  help        " HELP_SUMMARY "\n", out);
}

int help_main(int argc, char **argv)
{
    const options_command command = {.name = "help",
                                     .operands = "[TOPIC]",
                                     .summary = "What to know about a topic, or what a command takes.",
                                     .least = 0,
                                     .most = 1,
                                     .more_help = list};
    int operands, code = options_parse(&command, &operands, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    if (operands > 0)
        return print_topic(argv[1]);
    help_commands(stdout);
    putchar('\n');
    list(stdout);
    return STATUS_OK;
}
