/* The command that `phalanx supervise` runs: its words, where its configuration is, and its words for one start. */
#ifndef PHALANX_TOOLS_SUPERVISE_SUPERVISE_COMMAND_H
#define PHALANX_TOOLS_SUPERVISE_SUPERVISE_COMMAND_H

#include <stdbool.h>

#include "memory/status.h"

typedef struct supervise_command {
    char *const *words; /* the caller's */
    int count;
    const char *job; /* "train" or "server" */
    int config;      /* the word after it; all that follow are overrides */
} supervise_command;

status supervise_command_open(supervise_command *out, int count, char *const *words);
/* Does it leave its size open ("{ranks}" or "{hosts}")? */
bool supervise_command_sized(const supervise_command *k);
/* {ranks} and {hosts} filled in; parallel.data set if `data` > 0. Ends with NULL; supervise_command_free_words. */
char **supervise_command_expand(const supervise_command *k, int ranks, const char *hosts, int data);
void supervise_command_free_words(char **words);

#endif
