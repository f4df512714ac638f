#include "tests/jobs/supervised.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "memory/clock.h"
#include "memory/log.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"

int supervised_setup(void **state)
{
    if (workfolder_setup(state))
        return -1;
    runs_write_small(*state, 30000, SUPERVISED_STEPS, "micro_batch: 1, global_batch: 12",
                     "optimizer: {lr: 3e-3}\ncheckpoint: {every: 4, keep: 2}\n");
    return 0;
}

launch *supervised_start_through(const supervised_output *through, const char *top, const char *run, int ranks,
                                 const char *before, const char *keys)
{
    char *program = launch_beside("../phalanx"), *mpirun = ranks > 1 ? launch_mpirun(ranks) : must_strdup("");
    launch *l =
        launch_start(400,
                     "%s %s supervise -- env %s %s %s train %s/run.yaml run.folder=%s run.hang_seconds=4 "
                     "run.setup_seconds=8 run.load_seconds=6 run.save_seconds=4 run.evaluation_seconds=4 %s%s%s",
                     through->before, program, before, mpirun, program, top, run, keys, through->to ? " >" : "",
                     through->to ? through->to : "");
    free(mpirun);
    free(program);
    return l;
}

launch *supervised_start(const char *top, const char *run, int ranks, const char *before, const char *keys)
{
    return supervised_start_through(&(supervised_output){.before = "exec"}, top, run, ranks, before, keys);
}

const char *supervised_whole(const char *top, int ranks, const char *keys)
{
    static char run[512];
    snprintf(run, sizeof run, "%s/whole-%d-%s", top, ranks, keys);
    for (char *c = run + strlen(top) + 1; *c; c++)
        *c = strchr("=. ", *c) ? '-' : *c;
    if (access(run, F_OK) != 0)
        free(runs_train_well(400, ranks, "%s/run.yaml run.folder=%s %s", top, run, keys));
    return run;
}

char *supervised_difference(const char *run, const char *whole)
{
    char difference[256];
    runs_metrics part = runs_read_metrics(run), all = runs_read_metrics(whole);
    if (!runs_same_metrics(&part, &all))
        return must_format("%s: %d of %d steps, losses differ by %.1e", run, part.count, all.count,
                           runs_loss_error(&part, &all));
    if (runs_compare_checkpoints(difference, sizeof difference, run, whole) <= 0)
        return must_format("%s: no tensor to compare", run);
    return *difference ? must_format("%s: %s", run, difference) : NULL;
}

/* The list of a lock's holders stays. What a supervisor has said of the last one is swept by the next start, unless a
 * look at it fails. */
static bool is_half_written(const char *name)
{
    bool stays = !strcmp(name, "lock.ended") || !strcmp(name, "lock.holders");
    return strstr(name, ".tmp") || (strstr(name, "lock") && !stays) || !strncmp(name, ".shared", 7) ||
           strstr(name, ".part");
}

static bool is_copy_of_ours(const char *name)
{
    char node[32];
    snprintf(node, sizeof node, ".f%d", (int)getpid());
    return !strncmp(name, "phalanx-", 8) && strstr(name, node);
}

static char *find_in(const char *path, bool (*is_litter)(const char *name))
{
    char *found = NULL;
    DIR *folder = opendir(path);
    for (struct dirent *e; !found && folder && (e = readdir(folder));)
        if (is_litter(e->d_name))
            found = must_format("%s/%s is left", path, e->d_name);
    if (folder)
        closedir(folder);
    return found;
}

char *supervised_litter(const char *run)
{
    for (int i = 0; i < 4; i++)
        if (runs_process(run, i))
            return must_format("rank %d is left, process %d", i, runs_process(run, i));
    char *checkpoints = must_format("%s/checkpoints", run), *found = find_in(run, is_half_written);
    if (!found)
        found = find_in(checkpoints, is_half_written);
    if (!found)
        found = find_in("/dev/shm", is_copy_of_ours);
    free(checkpoints);
    return found;
}

void supervised_is_undisturbed(const char *run, const char *whole)
{
    char *difference = supervised_difference(run, whole);
    if (difference)
        fail_msg("%s", difference);
}

void supervised_left_nothing(const char *run)
{
    char *litter = supervised_litter(run);
    if (litter)
        fail_msg("%s", litter);
}

char *supervised_wait_for(launch *l, const char *text, int times, double seconds)
{
    for (double until = clock_seconds() + seconds; clock_seconds() < until; usleep(20000)) {
        char *out = launch_output(l), *at = out;
        int seen = 0;
        for (; seen < times && (at = strstr(at, text)); seen++)
            at += strlen(text);
        if (seen == times) {
            char *rest = must_strdup(at);
            free(out);
            return rest;
        }
        free(out);
    }
    return NULL;
}
