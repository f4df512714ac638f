/* A small run under `phalanx supervise`, and what it must leave: the bits of a run that nobody disturbed, and nothing
 * else. */
#pragma once

#include "tests/jobs/launch.h"

enum { SUPERVISED_STEPS = 100 };

/* cmocka's setup: a workfolder with data and run.yaml, SUPERVISED_STEPS steps and a checkpoint every four. */
int supervised_setup(void **state);
/* The run in the folder `run`, with limits of a few seconds. `before`: words for env, NAME=VALUE. */
launch *supervised_start(const char *top, const char *run, int ranks, const char *before, const char *keys);
/* The same, where the supervisor itself begins behind words for the shell, the last of them "exec" and what may follow
 * it, and its standard output goes to a file. */
typedef struct supervised_output {
    const char *before, *to;
} supervised_output;
launch *supervised_start_through(const supervised_output *through, const char *top, const char *run, int ranks,
                                 const char *before, const char *keys);
/* The folder of such a run that nothing happens to; it is made once. */
const char *supervised_whole(const char *top, int ranks, const char *keys);

/* The same losses and the same checkpoint as `whole`: else a sentence that says what differs. NULL: nothing. The
 * caller's to free. */
char *supervised_difference(const char *run, const char *whole);
/* A process that trains in this folder, something half-written in it, a copy in memory of the node f<this process>: a
 * sentence that says what is left, or NULL. */
char *supervised_litter(const char *run);
/* The same as tests. */
void supervised_is_undisturbed(const char *run, const char *whole);
void supervised_left_nothing(const char *run);

/* Until the output holds `text` so many times: what follows it (the caller's), or NULL after `seconds`. */
char *supervised_wait_for(launch *l, const char *text, int times, double seconds);
