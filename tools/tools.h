/* The subcommands by name: phalanx runs and lists them and describes them to shells and man; all but help, which
 * describes them. */
#pragma once

#include <stdio.h>

typedef struct commands_row {
    const char *name, *summary;
    int (*main)(int argc, char **argv);
} commands_row;

#define COMMANDS_VERSION "0.1.0"

/* Returns NULL if there is no such command. */
const commands_row *commands_find(const char *name);
/* Returns NULL after the last one. */
const commands_row *commands_at(int index);

/* The subcommands of phalanx. Each reads its own arguments (argv[0] is its name) and returns the exit status: 0 done,
 * 1 failed, 2 wrong usage or configuration. */
int train_main(int argc, char **argv);
int plan_main(int argc, char **argv);
int schedule_main(int argc, char **argv);
int tokenize_main(int argc, char **argv);
int detokenize_main(int argc, char **argv);
int merge_main(int argc, char **argv);
int supervise_main(int argc, char **argv);
int split_main(int argc, char **argv);
int convert_main(int argc, char **argv);
int generate_main(int argc, char **argv);
int eval_main(int argc, char **argv);
int report_main(int argc, char **argv);
int timeline_main(int argc, char **argv);
int inspect_main(int argc, char **argv);
int keys_main(int argc, char **argv);
int islands_main(int argc, char **argv);
int server_main(int argc, char **argv);
int bench_main(int argc, char **argv);

/* phalanx help: the one command that knows the others. */
#define HELP_SUMMARY "what to know, by topic: layout, memory, multi-node, data, troubleshooting, columns"

int help_main(int argc, char **argv);
/* Prints the commands, help among them, a line each. */
void help_commands(FILE *out);
