#include "tests/jobs/disturbed.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/supervised.h"
#include "tests/jobs/workfolder.h"

#define HOUR 3600
/* What is away, or stopped, is back after 0.2 to 1.2 seconds: several saves fall into that. */
enum { SHORTEST_MILLISECONDS = 200, LONGEST_MILLISECONDS = 1200, PIPE_BYTES = 4096 };

int disturbed_draw(disturbed *d, int below)
{
    d->random ^= d->random << 13; /* xorshift64 */
    d->random ^= d->random >> 7;
    d->random ^= d->random << 17;
    return (int)(d->random % (uint64_t)below);
}

/* A line for the shell, which must not fail; it is freed. */
static void shell(char *line)
{
    MUST(system(line) == 0, "%s", line);
    free(line);
}

static void pause_a_while(disturbed *d)
{
    int span = LONGEST_MILLISECONDS - SHORTEST_MILLISECONDS;
    clock_nap(1e-3 * (SHORTEST_MILLISECONDS + disturbed_draw(d, span)));
}

/* ---- the run ---- */

void disturbed_open(disturbed *out, const char *top, int number, uint64_t random)
{
    *out = (disturbed){.number = number, .top = top, .random = random};
    for (int i = 0; i < 8; i++)
        disturbed_draw(out, 2);
    out->run = must_format("%s/run%d", top, number);
    out->once = must_format("%s/once%d", top, number);
    out->no_memory = must_format("%s/memory%d", top, number);
    out->clock = must_format("%s/clock%d", top, number);
    out->supervisor_clock = must_format("%s/supervisor-clock%d", top, number);
    out->output = must_format("%s/output%d", top, number);
    MUST(mkfifo(out->output, 0600) == 0, "cannot make %s", out->output);
    out->pipe = open(out->output, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    MUST(out->pipe >= 0 && fcntl(out->pipe, F_SETPIPE_SZ, PIPE_BYTES) >= PIPE_BYTES, "%s: no small pipe", out->output);
}

void disturbed_lay_out(disturbed *d, int ranks, const char *keys, const char *environment)
{
    AUTO_FREE char *files = launch_beside("io_faults.so"), *memory = launch_beside("allocation_faults.so"),
                   *clocks = launch_beside("clock_faults.so"), *waits = launch_beside("patient_waits.so");
    d->ranks = ranks;
    d->keys = must_strdup(keys);
    d->before = must_format("'LD_PRELOAD=%s %s %s %s' PHALANX_IO_ONCE=%s PHALANX_ALLOCATION_ONCE=%s "
                            "PHALANX_CLOCK_FAULTS=%s PHALANX_NODE=f%d %s",
                            files, memory, clocks, waits, d->once, d->no_memory, d->clock, (int)getpid(), environment);
}

void disturbed_close(disturbed *d, const char *keep, const char *name)
{
    shell(d->loss && keep ? must_format("mv %s %s/%s", d->run, keep, name) : must_format("rm -rf %s", d->run));
    shell(must_format("rm -rf %s.* %s %s.* %s %s.* %s.* %s %s.* %s %s.* %s/stray%d-*", d->run, d->clock, d->clock,
                      d->supervisor_clock, d->supervisor_clock, d->output, d->once, d->once, d->no_memory, d->no_memory,
                      d->top, d->number));
    unlink(d->output);
    close(d->pipe);
    free(d->run);
    free(d->once);
    free(d->no_memory);
    free(d->clock);
    free(d->supervisor_clock);
    free(d->output);
    free(d->before);
    free(d->keys);
    free(d->loss);
}

static char *reader_file(const disturbed *d)
{
    return must_format("%s.reader", d->output);
}

void disturbed_begin(disturbed *d)
{
    AUTO_FREE char *clocks = launch_beside("clock_faults.so"), *reader = reader_file(d);
    const supervised_output through = {
        .before = must_format("(cat %s & echo $! >%s); exec env LD_PRELOAD=%s PHALANX_CLOCK_FAULTS=%s", d->output,
                              reader, clocks, d->supervisor_clock),
        .to = d->output};
    d->job = supervised_start_through(&through, d->top, d->run, d->ranks, d->before, d->keys);
    d->seen = 0;
    free((void *)(uintptr_t)through.before);
}

bool disturbed_has(const disturbed *d, const char *name)
{
    AUTO_FREE char *path = workfolder_path(d->run, name);
    return access(path, F_OK) == 0;
}

bool disturbed_is_done(const disturbed *d)
{
    return disturbed_has(d, "summary.json");
}

void disturbed_arm(const disturbed *d, const char *path, const char *words)
{
    AUTO_FREE char *new = must_format("%s.new", d->once);
    workfolder_write(new, words, (int64_t)strlen(words));
    MUST(rename(new, path) == 0, "cannot write %s", path);
}

bool disturbed_is_watched(const disturbed *d)
{
    AUTO_FREE char *path = workfolder_path(d->run, "supervisor");
    json_t *lock = json_load_file(path, 0, NULL);
    bool is = json_integer_value(json_object_get(lock, "pid")) == launch_pid(d->job);
    json_decref(lock);
    return is;
}

int64_t disturbed_latest(const disturbed *d)
{
    long long step = 0;
    AUTO_FREE char *path = workfolder_path(d->run, "checkpoints/latest");
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "step-%lld", &step) != 1)
        step = 0;
    if (f)
        fclose(f);
    return step;
}

/* ---- clocks ---- */

/* Has anybody read the wrong time, within two seconds? */
static bool set_clock(disturbed *d, const char *path, int who, int seconds)
{
    AUTO_FREE char *words = must_format("%d %d", who, seconds), *unread = must_format("%s.unread", path);
    workfolder_write(unread, "", 0);
    disturbed_arm(d, path, words);
    for (double until = clock_seconds() + 2; access(unread, F_OK) == 0 && clock_seconds() < until;)
        clock_nap(0.02);
    return unlink(unread) != 0;
}

bool disturbed_set_back_a_clock(disturbed *d)
{
    return set_clock(d, d->clock, disturbed_draw(d, d->ranks), -HOUR - disturbed_draw(d, HOUR));
}

bool disturbed_set_ahead_a_clock(disturbed *d)
{
    return set_clock(d, d->clock, disturbed_draw(d, d->ranks), HOUR + disturbed_draw(d, HOUR));
}

bool disturbed_set_all_clocks(disturbed *d)
{
    return set_clock(d, d->clock, -1, disturbed_draw(d, 2) ? HOUR : -HOUR);
}

bool disturbed_set_supervisor_clock(disturbed *d)
{
    return set_clock(d, d->supervisor_clock, 0, disturbed_draw(d, 2) ? 24 * HOUR : -24 * HOUR);
}

/* ---- the reader of the output ---- */

bool disturbed_stop_reader(disturbed *d)
{
    int reader = 0;
    AUTO_FREE char *path = reader_file(d);
    FILE *f = fopen(path, "r");
    MUST(f && fscanf(f, "%d", &reader) == 1 && reader > 1, "%s does not name a process", path);
    fclose(f);
    if (kill(reader, SIGSTOP) != 0)
        return false; /* its supervisor has just ended */
    pause_a_while(d);
    pause_a_while(d);
    kill(reader, SIGCONT);
    return true;
}

/* ---- folders ---- */

/* The folder is elsewhere for a while, with `instead` an empty one in its place. What has come into being there
 * meanwhile is set aside. */
static bool take_away(disturbed *d, const char *path, bool instead)
{
    AUTO_FREE char *away = must_format("%s.away", path), *stray = must_format("%s/stray%d-XXXXXX", d->top, d->number);
    bool taken = rename(path, away) == 0;
    if (taken) {
        if (instead)
            (void)!mkdir(path, 0777); /* somebody may have been faster */
        pause_a_while(d);
        MUST(mkdtemp(stray), "cannot make %s", stray);
        for (int i = 0; i < 1000 && rename(away, path) != 0; i++)
            (void)!rename(path, stray); /* an empty folder makes way for it */
        if (access(away, F_OK) == 0)
            d->loss = must_format("%s cannot be renamed back", away);
    }
    return taken;
}

bool disturbed_rename_run(disturbed *d)
{
    return take_away(d, d->run, false);
}

bool disturbed_unmount_checkpoints(disturbed *d)
{
    AUTO_FREE char *path = workfolder_path(d->run, "checkpoints");
    return take_away(d, path, true);
}

/* ---- others in the same folder ---- */

static bool intrude(disturbed *d, const char *before, const char *words)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r = launch_run(60, "exec %s%s %s train %s/run.yaml run.folder=%s", *before ? program : "", before,
                                 program, d->top, d->run);
    if (r.status == 0 ? !disturbed_is_done(d) : !strstr(r.err, words))
        d->loss = must_format("it was not refused: status %d, %s%s", r.status, r.out, r.err);
    launch_free(&r);
    return true;
}

bool disturbed_second_train(disturbed *d)
{
    return intrude(d, "", "another run");
}

bool disturbed_second_supervisor(disturbed *d)
{
    return intrude(d, " supervise --", "a supervisor is at work here already");
}

/* ---- neighbours ---- */

#define MEMORY      "/dev/shm"
#define VICTIM_TEXT "a file of this user that has nothing to do with the run\n"

static char *node_end(void)
{
    return must_format(".f%d", (int)getpid());
}

/* The folders of this process's node, those of neighbours left out: "" and none where the run keeps no copies. */
static char *copies_folder(void)
{
    char *end = node_end(), *found = NULL;
    DIR *all = opendir(MEMORY);
    for (struct dirent *e; !found && all && (e = readdir(all));)
        if (!strncmp(e->d_name, "phalanx-", 8) && strstr(e->d_name, end) && !strstr(e->d_name, "-neighbour"))
            found = must_format(MEMORY "/%s", e->d_name);
    if (all)
        closedir(all);
    free(end);
    return found;
}

static char *victim(const disturbed *d)
{
    return must_format("%s.victim", d->run);
}

/* A file and a folder with a file, which links of neighbours lead to. */
static void make_victim(disturbed *d)
{
    AUTO_FREE char *folder = victim(d), *file = must_format("%s/kept", folder);
    if (!d->has_neighbours) {
        MUST(mkdir(folder, 0700) == 0, "cannot make %s", folder);
        workfolder_write(file, VICTIM_TEXT, (int64_t)strlen(VICTIM_TEXT));
    }
    d->has_neighbours = true;
}

/* Folders with the shape of copies that anybody can enter, a link, a loose file; and, where the run has a folder, files
 * in it that are not its own. */
bool disturbed_fill_memory(disturbed *d)
{
    AUTO_FREE char *end = node_end(), *to = victim(d), *own = copies_folder();
    int64_t step = disturbed_latest(d) + 4;
    make_victim(d);
    shell(must_format("cd " MEMORY " && f=phalanx-%u-neighbour%d%s && mkdir -p -m 0777 $f/.tmp-step-%08lld && "
                      "echo damaged >$f/.tmp-step-%08lld/fragment-00000 && ln -sfn %s ${f%%.*}.link%s && "
                      "echo >${f%%.*}.file%s",
                      (unsigned)getuid(), d->number, end, (long long)step, (long long)step, to, end, end));
    if (own) /* it may go at any moment */
        shell(must_format("(cd %s && mkdir -p .tmp-step-%08lld && echo damaged >.tmp-step-%08lld/fragment-00000 && "
                          "echo damaged >loose && ln -sfn %s link) 2>/dev/null || true",
                          own, (long long)step + 1000000, (long long)step + 1000000, to));
    return true;
}

/* Names that the run and its supervisor are about to use. */
static char **planted_names(const disturbed *d)
{
    enum { NAMES = 5 };
    long long step = (long long)disturbed_latest(d);
    char **names = must_calloc(NAMES + 1, sizeof *names);
    names[0] = must_strdup("summary.json.tmp");
    names[1] = must_strdup("checkpoints/latest.tmp");
    names[2] = must_format("checkpoints/.tmp-step-%08lld", step + 4);
    names[3] = must_format("checkpoints/.tmp-step-%08lld", step + 8);
    names[4] = must_strdup("memory.tmp");
    return names;
}

bool disturbed_plant_links(disturbed *d)
{
    char *to = victim(d), *file = must_format("%s/kept", to), **names = planted_names(d);
    make_victim(d);
    for (int i = 0; names[i]; i++) {
        AUTO_FREE char *path = workfolder_path(d->run, names[i]);
        (void)!symlink(strstr(names[i], "step-") ? to : file, path); /* the run may have one of that name just now */
        free(names[i]);
    }
    free(names);
    free(file);
    free(to);
    return true;
}

/* What is left in the folder of links that lead to the victim. */
static void remove_links(const char *folder, const char *to)
{
    char target[512];
    DIR *all = opendir(folder);
    for (struct dirent *e; all && (e = readdir(all));) {
        AUTO_FREE char *path = workfolder_path(folder, e->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length > 0 && strncmp(target, to, strlen(to)) == 0)
            unlink(path);
    }
    if (all)
        closedir(all);
}

/* Has what the links lead to stayed as it was? A sentence if not. */
static char *look_at_victim(const char *folder)
{
    AUTO_FREE char *file = must_format("%s/kept", folder), *only = must_format("[ $(ls -A %s | wc -l) = 1 ]", folder);
    int64_t bytes = 0;
    char *text = access(file, R_OK) == 0 ? (char *)workfolder_read(file, &bytes) : must_strdup(""), *found = NULL;
    if (bytes != (int64_t)strlen(VICTIM_TEXT) || memcmp(text, VICTIM_TEXT, (size_t)bytes) != 0)
        found = must_format("the file %s that a link led to has changed", file);
    else if (system(only) != 0)
        found = must_format("something is in %s that a link led to", folder);
    free(text);
    return found;
}

char *disturbed_neighbours_go(disturbed *d)
{
    if (!d->has_neighbours)
        return NULL;
    char *folder = victim(d), *checkpoints = workfolder_path(d->run, "checkpoints"), *found = look_at_victim(folder);
    remove_links(d->run, folder);
    remove_links(checkpoints, folder);
    shell(must_format("rm -rf " MEMORY "/phalanx-%u-neighbour%d.* %s", (unsigned)getuid(), d->number, folder));
    free(checkpoints);
    free(folder);
    return found;
}
