/* The subcommands by name: what phalanx runs, lists, and tells shells and man about; all but help, which speaks of
 * them. */
#pragma once

typedef struct commands_row {
    const char *name, *summary;
    int (*main)(int argc, char **argv);
} commands_row;

#define COMMANDS_VERSION "0.1.0"

/* NULL: no such command. */
const commands_row *commands_find(const char *name);
/* NULL behind the last one. */
const commands_row *commands_at(int index);
