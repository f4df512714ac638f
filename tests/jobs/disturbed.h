/* A run under `phalanx supervise` that is disturbed (test_campaign.c), and what is done to its surroundings: clocks,
 * the reader of its output, its folders, and neighbours who share the machine.
 *
 * The supervisor's output goes through a small pipe to a reader that may be stopped. The clocks of its ranks and of the
 * supervisor are those of two files (memory/spy/clock_faults.c). The caller owns everything: disturbed_close frees it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tests/jobs/launch.h"

typedef struct disturbed {
    int number, ranks, layout, steps;
    const char *top;
    char *run, *once, *no_memory, *clock, *supervisor_clock, *output, *before, *keys;
    launch *job;
    int pipe;        /* an end of the pipe of the output that nobody reads: it keeps the pipe small */
    int seen;        /* restarts of this supervisor */
    int64_t damaged; /* step of the checkpoint that was damaged last */
    uint64_t random;
    bool has_neighbours, adopted; /* adopted: a supervisor has found the job at work */
    char *loss;                   /* why the run counts as lost; NULL: it does not */
} disturbed;

/* Its files are named for `number`; `random` draws everything that is drawn. */
void disturbed_open(disturbed *out, const char *top, int number, uint64_t random);
/* `ranks`, `keys`: of the configuration. `environment`: more words for env. */
void disturbed_lay_out(disturbed *d, int ranks, const char *keys, const char *environment);
/* Removes its files, or moves the folder of a run that is lost into `keep`, if that is not NULL, as `name`. */
void disturbed_close(disturbed *d, const char *keep, const char *name);

/* From 0 to below - 1. */
int disturbed_draw(disturbed *d, int below);
/* Start the supervisor: its first, or another one after that has ended. */
void disturbed_begin(disturbed *d);
bool disturbed_is_done(const disturbed *d);
bool disturbed_has(const disturbed *d, const char *name);
/* Gives a file its words whole: a process that reads it must not see half of them. */
void disturbed_arm(const disturbed *d, const char *path, const char *words);
/* The supervisor that was started last holds the folder. */
bool disturbed_is_watched(const disturbed *d);
int64_t disturbed_latest(const disturbed *d);

/* ---- what may be done to it: each sets `loss` where something is not as promised; false: it could not
 * be done ---- */

/* A rank's clock, all ranks' or the supervisor's is set back or ahead, and stays so. */
bool disturbed_set_back_a_clock(disturbed *d);
bool disturbed_set_ahead_a_clock(disturbed *d);
bool disturbed_set_all_clocks(disturbed *d);
bool disturbed_set_supervisor_clock(disturbed *d);
/* Nobody reads the output for a while. */
bool disturbed_stop_reader(disturbed *d);
/* The folder is renamed, and has its name again after a while. */
bool disturbed_rename_run(disturbed *d);
/* An empty folder is where the checkpoints were, for a while. */
bool disturbed_unmount_checkpoints(disturbed *d);
/* Others begin in the same folder: they are refused, and write nothing. */
bool disturbed_second_train(disturbed *d);
bool disturbed_second_supervisor(disturbed *d);
/* Files and links of others where the run keeps its copies in memory, and under names that it is about to use. */
bool disturbed_fill_memory(disturbed *d);
bool disturbed_plant_links(disturbed *d);

/* Neighbours go, and take along what they have put there. A sentence that says what has become of it, or NULL. */
char *disturbed_neighbours_go(disturbed *d);
