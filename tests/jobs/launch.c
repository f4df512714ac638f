#include "tests/jobs/launch.h"

#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
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

struct launch {
    pid_t pid;
    double started, limit;
    int out, err; /* unlinked files: no pipe to drain, and both can be read while the command runs */
    bool ended, timed_out;
    int wait_status;
    double seconds;
    char *mpi; /* a folder for Open MPI's sessions */
};

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

static int unlinked_file(void)
{
    char path[] = "/tmp/phalanx-launch-XXXXXX";
    int fd = mkostemp(path, O_CLOEXEC);
    MUST(fd >= 0, "cannot make %s", path);
    unlink(path);
    return fd;
}

static char *contents(int fd)
{
    off_t bytes = lseek(fd, 0, SEEK_END);
    char *text = must_calloc((unsigned long)bytes + 1, 1);
    ssize_t got = pread(fd, text, (size_t)bytes, 0);
    MUST(got >= 0, "cannot read captured output");
    return text;
}

/* Open MPI makes one folder for all jobs of a user, and a job that ends removes it where it is empty, which may be the
 * moment between another's making and looking: each job has one of its own, in the program's (tests/run.sh removes it)
 * or in /tmp, with a short name, since sockets are in it. */
static char *session_folder(void)
{
    const char *programs = getenv("OMPI_MCA_orte_tmpdir_base");
    char *path = must_format("%s/mXXXXXX", programs ? programs : "/tmp");
    MUST(mkdtemp(path), "cannot make %s", path);
    return path;
}

static launch *start(double limit, char *command)
{
    launch *l = must_calloc(1, sizeof *l);
    l->mpi = session_folder();
    l->limit = limit;
    l->out = unlinked_file();
    l->err = unlinked_file();
    l->started = clock_seconds();
    l->pid = fork();
    MUST(l->pid >= 0, "cannot fork");
    if (l->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        setpgid(0, 0);
        int nothing = open("/dev/null", O_RDONLY);
        dup2(nothing, 0);
        dup2(l->out, 1);
        dup2(l->err, 2);
        setenv("OMP_NUM_THREADS", "1", 0);
        setenv("OMPI_MCA_orte_tmpdir_base", l->mpi, 1);
        setenv("PRTE_MCA_prte_tmpdir_base", l->mpi, 1);
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    setpgid(l->pid, l->pid);
    free(command);
    return l;
}

/* Look whether the command has ended; end it if its time is over. mpirun's ranks are in process groups of their own: it
 * takes them along if it is asked to end, and only then. */
static void look(launch *l)
{
    if (!l->ended && waitpid(l->pid, &l->wait_status, WNOHANG) == l->pid) {
        l->ended = true;
        l->seconds = clock_seconds() - l->started;
    }
    if (l->ended || clock_seconds() - l->started < l->limit)
        return;
    l->timed_out = l->ended = true;
    kill(-l->pid, SIGTERM);
    for (double until = clock_seconds() + 4; clock_seconds() < until; nap())
        if (waitpid(l->pid, &l->wait_status, WNOHANG) == l->pid)
            return;
    kill(-l->pid, SIGKILL);
    waitpid(l->pid, &l->wait_status, 0);
}

launch *launch_start(double limit_seconds, const char *format, ...)
{
    char *command;
    va_list arguments;
    va_start(arguments, format);
    MUST(vasprintf(&command, format, arguments) >= 0, "out of memory");
    va_end(arguments);
    return start(limit_seconds, command);
}

/* Behind the first `said` characters of standard output, or anywhere on standard error if that is looked at, too. */
static bool expect(launch *l, size_t said, bool errors, const char *text, double seconds)
{
    for (double until = clock_seconds() + seconds;; nap()) {
        bool last = l->ended || clock_seconds() > until;
        AUTO_FREE char *out = contents(l->out), *err = contents(l->err);
        bool found = (strlen(out) >= said && strstr(out + said, text)) || (errors && strstr(err, text));
        if (found || last)
            return found;
        look(l);
    }
}

bool launch_expect(launch *l, const char *text, double seconds)
{
    return expect(l, 0, true, text, seconds);
}

bool launch_expect_after(launch *l, size_t said, const char *text, double seconds)
{
    return expect(l, said, false, text, seconds);
}

char *launch_output(const launch *l)
{
    return contents(l->out);
}

double launch_seconds(const launch *l)
{
    return clock_seconds() - l->started;
}

bool launch_ended(launch *l)
{
    look(l);
    return l->ended;
}

int launch_pid(const launch *l)
{
    return (int)l->pid;
}

launch_result launch_finish(launch *l)
{
    for (look(l); !l->ended; look(l))
        nap();
    launch_result r = {.timed_out = l->timed_out, .seconds = l->timed_out ? clock_seconds() - l->started : l->seconds};
    r.status = WIFSIGNALED(l->wait_status) ? 128 + WTERMSIG(l->wait_status) : WEXITSTATUS(l->wait_status);
    r.out = contents(l->out);
    r.err = contents(l->err);
    close(l->out);
    close(l->err);
    (void)rmdir(l->mpi); /* a job that outlives its command keeps it */
    free(l->mpi);
    free(l);
    return r;
}

launch_result launch_run(double limit_seconds, const char *format, ...)
{
    char *command;
    va_list arguments;
    va_start(arguments, format);
    MUST(vasprintf(&command, format, arguments) >= 0, "out of memory");
    va_end(arguments);
    return launch_finish(start(limit_seconds, command));
}

void launch_free(launch_result *r)
{
    free(r->out);
    free(r->err);
    *r = (launch_result){0};
}

/* MPI libraries leak, and take their locks in both orders, by design; what the engine does shows in the runs without
 * mpirun, and in data races. */
char *launch_mpirun(int ranks)
{
    return must_format("mpirun --oversubscribe --allow-run-as-root --bind-to none --mca mpi_yield_when_idle 1 "
                       "-x ASAN_OPTIONS=detect_leaks=0 -x TSAN_OPTIONS=detect_deadlocks=0 -np %d",
                       ranks);
}

char *launch_beside(const char *name)
{
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    MUST(length > 0, "cannot tell where this program is");
    path[length] = 0;
    return must_format("%s/%s", dirname(path), name);
}
