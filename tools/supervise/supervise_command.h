/* The command that `phalanx supervise` runs: its words, where its configuration is, and its words for one start. */
#pragma once

#include <stdbool.h>

#include "memory/status.h"

typedef struct supervise_command {
    char *const *words; /* the caller's */
    int count;
    const char *job; /* "train" or "server" */
    int config;      /* the word after it; all that follow are overrides */
} supervise_command;

/* Refuses {ranks} and {hosts} in the configuration's words: the run's folder and its keys are the same at every
 * start. */
status supervise_command_open(supervise_command *out, int count, char *const *words);
/* Does it leave its size open ("{ranks}" or "{hosts}")? */
bool supervise_command_sized(const supervise_command *k);

/* What differs from start to start. */
typedef struct supervise_start {
    const char *id;     /* of the start: --start-id, after each configuration */
    const char *hosts;  /* for {hosts} */
    int ranks;          /* for {ranks} */
    int data;           /* parallel.data; 0: as the command says */
    const char *resume; /* checkpoint.resume; NULL: as the command says */
} supervise_start;

/* Ends with NULL; supervise_command_free_words. */
char **supervise_command_expand(const supervise_command *k, const supervise_start *start);
void supervise_command_free_words(char **words);
