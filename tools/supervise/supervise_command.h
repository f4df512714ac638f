/* The command that `phalanx supervise` runs: its words, the place of its configuration, and its words for one start. */
#pragma once

#include <stdbool.h>

#include "memory/status.h"

typedef struct supervise_command {
    char *const *words; /* the caller owns them */
    int count;
    const char *job; /* "train" or "server" */
    int config;      /* index of the word after it; all later words are overrides */
} supervise_command;

/* Refuses {ranks} and {hosts} in the configuration's words: the run's folder and its keys are the same at every
 * start. */
status supervise_command_open(supervise_command *out, int count, char *const *words);
/* Tells whether the command leaves its size open ("{ranks}" or "{hosts}"). */
bool supervise_command_sized(const supervise_command *k);

/* Values that differ from start to start. */
typedef struct supervise_start {
    const char *id;     /* value of --start-id, added after each configuration */
    const char *hosts;  /* value of {hosts} */
    int ranks;          /* value of {ranks} */
    int data;           /* parallel.data; 0: as the command says */
    const char *resume; /* checkpoint.resume; NULL: as the command says */
} supervise_start;

/* Returns the words, ended by NULL; supervise_command_free_words frees them. */
char **supervise_command_expand(const supervise_command *k, const supervise_start *start);
void supervise_command_free_words(char **words);
