#include "tools/supervise/children.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "engine/system/atomic.h"

status children_adopt(void)
{
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
        return status_fail(STATUS_FAILED, "cannot adopt processes: %s", strerror(errno));
    return STATUS_OK;
}

/* ---- starting ---- */

static _Noreturn void become(char *const *argv, int output)
{
    static const int caught[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE};
    int nothing = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
        signal(caught[i], SIG_DFL);
    dup2(nothing, 0);
    dup2(output, 1);
    dup2(output, 2);
    execvp(argv[0], argv);
    dprintf(2, "phalanx: supervise: cannot start %s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

status children_start(pid_t *out, char *const *argv, const char *output)
{
    int file = open(output, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0)
        return status_fail(STATUS_FAILED, "cannot write to %s: %s", output, strerror(errno));
    pid_t child = fork();
    if (child == 0)
        become(argv, file);
    close(file);
    if (child < 0)
        return status_fail(STATUS_FAILED, "cannot start a process: %s", strerror(errno));
    setpgid(child, child);
    *out = child;
    return STATUS_OK;
}

bool children_ended(pid_t child, int *exit_status)
{
    int state;
    bool ended = false;
    for (pid_t one; (one = waitpid(-1, &state, WNOHANG)) > 0;)
        if (one == child) {
            *exit_status = WIFSIGNALED(state) ? 128 + WTERMSIG(state) : WEXITSTATUS(state);
            ended = true;
        }
    return ended;
}

/* ---- descendants ---- */

typedef struct process {
    pid_t pid, parent;
    char state; /* state letter of /proc/PID/stat */
    bool below;
} process;

/* Reads a process; false for one that has ended, since it needs no signal. */
static bool look_at(process *out, const char *pid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
    AUTO(FILE) *f = fopen(path, "r");
    size_t got = f ? fread(text, 1, sizeof text - 1, f) : 0;
    text[got] = 0;
    const char *rest = strrchr(text, ')'); /* the command's name may hold any character, even ')' */
    *out = (process){.pid = atoi(pid)};
    return rest && sscanf(rest + 1, " %c %d", &out->state, &out->parent) == 2 && out->parent && out->state != 'Z';
}

/* Returns all living processes below this one; the caller frees the list. */
static process *find_below(int *out)
{
    process *all = NULL;
    int count = 0, kept = 0;
    AUTO(DIR) *folder = opendir("/proc");
    for (struct dirent *e = folder ? readdir(folder) : NULL; e; e = readdir(folder)) {
        process one;
        if (!isdigit((unsigned char)e->d_name[0]) || !look_at(&one, e->d_name))
            continue;
        one.below = one.parent == getpid();
        APPEND(all, count) = one;
    }
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < count; i++)
            for (int k = 0; k < count && !all[i].below; k++)
                if (all[k].pid == all[i].parent && all[k].below)
                    all[i].below = more = true;
    }
    for (int i = 0; i < count; i++)
        if (all[i].below)
            all[kept++] = all[i];
    *out = kept;
    return all;
}

static bool is_ours(pid_t pid, const char *word)
{
    char path[64], mine[PATH_MAX] = "", theirs[PATH_MAX] = "", text[4096];
    snprintf(path, sizeof path, "/proc/%d/exe", (int)pid);
    if (readlink("/proc/self/exe", mine, sizeof mine - 1) <= 0 || readlink(path, theirs, sizeof theirs - 1) <= 0 ||
        strcmp(mine, theirs) != 0)
        return false;
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    AUTO(FILE) *f = fopen(path, "r");
    size_t got = f ? fread(text, 1, sizeof text - 1, f) : 0;
    text[got] = 0;
    const char *second = text + strlen(text) + 1; /* arguments end with zeros */
    return second < text + got && strcmp(second, word) == 0;
}

int children_signal(int number, const char *word)
{
    int sent = 0, count;
    AUTO_FREE process *all = find_below(&count);
    for (int i = 0; i < count; i++)
        if (is_ours(all[i].pid, word) && kill(all[i].pid, number) == 0)
            sent++;
    return sent;
}

pid_t children_stopped(void)
{
    int count;
    AUTO_FREE process *all = find_below(&count);
    for (int i = 0; i < count; i++)
        if (all[i].state == 'T')
            return all[i].pid;
    return 0;
}

bool children_kill(double seconds)
{
    for (double until = clock_seconds() + seconds;;) {
        int ignored, count;
        AUTO_FREE process *all = find_below(&count);
        for (int i = 0; i < count; i++)
            kill(all[i].pid, SIGKILL);
        (void)children_ended(-1, &ignored);
        if (count == 0 || clock_seconds() > until)
            return count == 0;
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
}

/* ---- files of a killed Open MPI mpirun: its session's folder, shared memory of its ranks ---- */

/* Reads the job's number from the session's contact.txt: "JOB.0;tcp://...". Its upper half is the launcher's; 0:
 * unknown. */
static unsigned job_of(const char *session)
{
    unsigned job = 0;
    AUTO_FREE char *path = must_format("%s/contact.txt", session);
    AUTO(FILE) *f = fopen(path, "r");
    if (f && fscanf(f, "%u.", &job) != 1)
        job = 0;
    return job;
}

/* Removes vader_segment.HOST.UID.JOB.RANK (JOB in hexadecimal), parsed from the end: a host's name may hold dots. */
static void remove_segments(unsigned job)
{
    AUTO(DIR) *folder = opendir("/dev/shm");
    for (struct dirent *e = folder ? readdir(folder) : NULL; e; e = readdir(folder)) {
        char *copy = must_strdup(e->d_name), *rank = strrchr(copy, '.'), *number = NULL;
        if (rank) {
            *rank = 0;
            number = strrchr(copy, '.');
        }
        if (number && strncmp(copy, "vader_segment.", 14) == 0 && (strtoul(number + 1, NULL, 16) ^ job) >> 16 == 0)
            unlinkat(dirfd(folder), e->d_name, 0); /* fails for another user's file, which stays */
        free(copy);
    }
}

void children_remove_files(pid_t launcher)
{
    char host[256] = "";
    const char *top = getenv("TMPDIR");
    gethostname(host, sizeof host - 1);
    host[strcspn(host, ".")] = 0;
    AUTO_FREE char *session =
        must_format("%s/ompi.%s.%d/pid.%d", top && *top ? top : "/tmp", host, (int)getuid(), (int)launcher);
    if (atomic_exists(session)) {
        unsigned job = job_of(session);
        if (job)
            remove_segments(job);
        if (atomic_remove(session) != STATUS_OK)
            log_warn("%s", status_message());
    }
}
