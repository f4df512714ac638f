/* One folder, one run: who is alive keeps it, who is dead does not, whatever machine it was on. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <fcntl.h>

#include "engine/system/atomic.h"
#include "engine/system/lock.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

static const double LEASE = 1.2;

static void nap(double seconds)
{
    nanosleep(&(struct timespec){(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))}, NULL);
}

/* A process that takes the lock and says so, and holds it until it is killed. */
static pid_t holder(const char *path, const char *id)
{
    int pipes[2];
    char taken;
    assert_int_equal(pipe(pipes), 0);
    pid_t pid = fork();
    if (pid == 0) {
        lock *l = NULL;
        if (lock_take(&l, path, id, LEASE) != STATUS_OK || write(pipes[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(pipes[1]);
    assert_int_equal(read(pipes[0], &taken, 1), 1);
    close(pipes[0]);
    return pid;
}

static void end(pid_t pid)
{
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

TEST(who_is_alive_keeps_it_and_who_is_dead_does_not)
{
    AUTO_FREE char *path = workfolder_path(*state, "lock");
    lock *l = NULL;
    pid_t pid = holder(path, "aaaa");
    double began = clock_seconds();
    assert_int_equal(lock_take(&l, path, "bbbb", LEASE), STATUS_FAILED);
    assert_true(clock_seconds() - began < LEASE / 2); /* on one machine nobody waits */
    AUTO_FREE char *process = must_format("process %d on ", (int)pid);
    workfolder_message_has(process);
    end(pid);
    assert_true(atomic_exists(path));
    began = clock_seconds();
    assert_int_equal(lock_take(&l, path, "bbbb", LEASE), STATUS_OK);
    assert_true(clock_seconds() - began < LEASE / 2);
    assert_true(lock_check(l) == STATUS_OK && !lock_lost(l));
    lock_release(l);
    assert_false(atomic_exists(path));
}

/* The same file, as a machine with another boot id would have written it. */
static char *foreign(const char *path, long long beat)
{
    char *text = must_format(
        "{\"run\":\"cccc\",\"host\":\"elsewhere\",\"pid\":7,\"started\":1,\"boot\":\"other\",\"space\":\"\","
        "\"beat\":%lld}\n",
        beat);
    workfolder_write(path, text, (int64_t)strlen(text));
    return text;
}

TEST(another_machine_s_lock_is_believed_while_it_beats)
{
    AUTO_FREE char *path = workfolder_path(*state, "far");
    lock *l = NULL;
    free(foreign(path, 1));
    pid_t pid = fork();
    if (pid == 0) {
        for (long long i = 2;; i++) {
            nap(LEASE / 6);
            free(foreign(path, i));
        }
    }
    assert_int_equal(lock_take(&l, path, "dddd", LEASE), STATUS_FAILED);
    workfolder_message_has("process 7 on elsewhere");
    end(pid);
    free(foreign(path, 1000)); /* the last, perhaps torn, is as good as any */
    double began = clock_seconds();
    assert_int_equal(lock_take(&l, path, "dddd", LEASE), STATUS_OK);
    assert_true(clock_seconds() - began >= LEASE * 0.9); /* not sooner than that */
    lock_release(l);
    free(foreign(path, 1));
    struct timespec old[2] = {{time(NULL) - 3600, 0}, {time(NULL) - 3600, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0); /* a clock that has been set ahead makes every file old */
    began = clock_seconds();
    assert_int_equal(lock_take(&l, path, "dddd", LEASE), STATUS_OK);
    assert_true(clock_seconds() - began >= LEASE * 0.9);
    lock_release(l);
    AUTO_FREE char *ended = must_format("%s.ended", path);
    free(foreign(path, 5));    /* whoever started that run knows that it has ended */
    lock_retire(path, "bbbb"); /* not that one */
    assert_false(atomic_exists(ended));
    lock_retire(path, "cccc");
    assert_true(atomic_exists(ended));
    began = clock_seconds();
    assert_int_equal(lock_take(&l, path, "dddd", LEASE), STATUS_OK);
    assert_true(clock_seconds() - began < LEASE / 2);
    assert_false(atomic_exists(ended));
    lock_release(l);
    workfolder_write(ended, "bbbb\n", 5); /* that was another */
    free(foreign(path, 5));
    began = clock_seconds();
    assert_int_equal(lock_take(&l, path, "dddd", LEASE), STATUS_OK);
    assert_true(clock_seconds() - began >= LEASE * 0.9);
    lock_release(l);
    workfolder_write(path, "", 0); /* its machine died between two calls */
    assert_int_equal(lock_take(&l, path, "dddd", LEASE), STATUS_OK);
    lock_release(l);
}

/* A run that was killed while it moved a stale lock out of its way. */
TEST(what_was_moved_aside_and_left_is_removed)
{
    AUTO_FREE char *path = workfolder_path(*state, "aside"), *left = must_format("%s.beef", path),
                   *mine = must_format("%s.txt", path);
    lock *l = NULL;
    free(foreign(left, 1));
    free(foreign(mine, 1)); /* no name of ours */
    assert_int_equal(lock_take(&l, path, "dddd", LEASE), STATUS_OK);
    assert_false(atomic_exists(left));
    assert_true(atomic_exists(mine));
    lock_release(l);
}

/* A run may end while its folder is elsewhere. */
TEST(a_lock_is_given_back_wherever_its_folder_is)
{
    AUTO_FREE char *folder = workfolder_path(*state, "moving"), *away = must_format("%s.away", folder);
    AUTO_FREE char *path = workfolder_path(folder, "lock"), *moved = workfolder_path(away, "lock");
    lock *l = NULL;
    assert_int_equal(mkdir(folder, 0777), 0);
    assert_int_equal(lock_take(&l, path, "aaaa", LEASE), STATUS_OK);
    assert_int_equal(rename(folder, away), 0);
    assert_true(atomic_exists(moved));
    lock_release(l);
    assert_false(atomic_exists(moved));
}

TEST(a_holder_beats_and_notices_what_happens_to_its_lock)
{
    AUTO_FREE char *path = workfolder_path(*state, "mine");
    lock *l = NULL;
    int64_t bytes;
    assert_int_equal(lock_take(&l, path, "eeee", LEASE), STATUS_OK);
    AUTO_FREE char *before = (char *)workfolder_read(path, &bytes);
    nap(LEASE / 2);
    AUTO_FREE char *after = (char *)workfolder_read(path, &bytes);
    assert_string_not_equal(before, after);
    assert_int_equal(unlink(path), 0); /* deleted: nobody else has it */
    assert_int_equal(lock_check(l), STATUS_OK);
    assert_true(atomic_exists(path) && lock_removed(l)); /* its holder may save, and is to end */
    assert_int_equal(unlink(path), 0);
    free(foreign(path, 1)); /* taken: this run was believed to be dead */
    nap(LEASE / 2);
    assert_true(lock_lost(l));
    assert_int_equal(lock_check(l), STATUS_LOST);
    lock_release(l);
    AUTO_FREE char *left = (char *)workfolder_read(path, &bytes);
    assert_non_null(strstr(left, "cccc")); /* the other's is left alone, and says what it said */
}

/* The text of a lock of this machine, of a process that has ended and that began then. The caller's to free. */
static char *of_a_process_that_ended(const char *mine, const char *id, long long started)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    const char *host = strstr(mine, ",\"host\""), *boot = strstr(mine, ",\"boot\""), *own = strstr(mine, ",\"pid\"");
    assert_true(host && own && boot && host < own && own < boot);
    return must_format("{\"run\":\"%s\"%.*s,\"pid\":%d,\"started\":%lld%s", id, (int)(own - host), host, (int)pid,
                       started, boot);
}

/* A folder was elsewhere for a while, and another one in its place, in which a lock was taken: with it comes the
 * file of a process that had ended before. One that came after the holder has taken the lock from it, and has ended
 * since. */
TEST(a_file_that_comes_back_with_its_folder_takes_no_lock)
{
    AUTO_FREE char *path = workfolder_path(*state, "back");
    lock *l = NULL;
    int64_t bytes;
    assert_int_equal(lock_take(&l, path, "abab", LEASE), STATUS_OK);
    AUTO_FREE char *mine = (char *)workfolder_read(path, &bytes), *before = of_a_process_that_ended(mine, "cdcd", 1),
                   *after = of_a_process_that_ended(mine, "efef", INT64_MAX);
    assert_int_equal(unlink(path), 0);
    workfolder_write(path, before, (int64_t)strlen(before));
    assert_int_equal(lock_check(l), STATUS_OK);
    nap(LEASE / 2);
    AUTO_FREE char *again = (char *)workfolder_read(path, &bytes);
    assert_non_null(strstr(again, "abab"));
    assert_false(lock_lost(l));
    assert_int_equal(unlink(path), 0);
    workfolder_write(path, after, (int64_t)strlen(after));
    assert_int_equal(lock_check(l), STATUS_LOST);
    lock_release(l);
}

/* This program's clock of the day, for all that is linked with it, may be set back, and its machine suspended. */
static long set_back, suspended;
int clock_gettime(clockid_t clock, struct timespec *out)
{
    int code = (int)syscall(SYS_clock_gettime, clock, out);
    out->tv_sec += clock == CLOCK_REALTIME ? set_back : clock == CLOCK_BOOTTIME ? suspended : 0;
    return code;
}

/* A process that takes the lock, and gives it back. Returns its number. */
static int hold_and_end(const char *path, const char *id)
{
    pid_t pid = fork();
    if (pid == 0) {
        lock *l = NULL;
        bool taken = lock_take(&l, path, id, LEASE) == STATUS_OK;
        lock_release(l);
        _exit(taken ? 0 : 1);
    }
    int how;
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_int_equal(how, 0);
    return (int)pid;
}

/* A machine was suspended; another run took the lock over, has ended and removed it. */
TEST(a_lock_that_another_run_has_held_since_is_lost)
{
    AUTO_FREE char *path = workfolder_path(*state, "since");
    lock *l = NULL, *rank = lock_join(path, "aaaa", LEASE);
    hold_and_end(path, "eeee"); /* before it */
    assert_int_equal(lock_take(&l, path, "aaaa", LEASE), STATUS_OK);
    assert_int_equal(lock_check(rank), STATUS_OK);
    assert_false(lock_is_anothers(path, "aaaa") || lock_is_anothers(path, "ffff"));
    assert_int_equal(unlink(path), 0);
    int pid = hold_and_end(path, "bbbb");
    AUTO_FREE char *process = must_format("process %d on ", pid);
    assert_int_equal(lock_check(rank), STATUS_LOST);
    workfolder_message_has("bbbb");
    assert_int_equal(lock_check(l), STATUS_LOST);
    workfolder_message_has(process);
    workfolder_message_has("and has ended");
    assert_true(lock_lost(l) && !lock_removed(l) && !atomic_exists(path));
    assert_true(lock_is_anothers(path, "aaaa") && !lock_is_anothers(path, "bbbb"));
    lock_release(rank);
    lock_release(l);
}

/* A network file system may answer with an inode that it has kept: after a lease, and a suspended machine's clock
 * counts it, the file is read, and another rank asks it as well. */
TEST(a_suspended_holder_reads_the_file_before_it_believes_its_inode)
{
    AUTO_FREE char *path = workfolder_path(*state, "suspended");
    lock *l = NULL, *rank = lock_join(path, "aaaa", 100);
    assert_int_equal(lock_take(&l, path, "aaaa", 100), STATUS_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(lock_check(l), STATUS_OK);
        assert_int_equal(lock_check(rank), STATUS_OK);
        suspended += 99;
    }
    int file = open(path, O_WRONLY);
    const char other[] = "{\"run\":\"bbbb\",\"host\":\"elsewhere\"}\n";
    assert_int_equal(ftruncate(file, 0), 0);
    assert_int_equal(write(file, other, strlen(other)), strlen(other));
    close(file);
    assert_int_equal(lock_check(rank), STATUS_LOST);
    suspended = 0;
    lock_release(rank);
    lock_release(l);
}

/* What has gone with its folder begins anew under its name, as the run's files do. */
TEST(a_lock_begins_anew_in_a_new_folder_of_its_name)
{
    AUTO_FREE char *folder = workfolder_path(*state, "anew"), *away = must_format("%s.away", folder);
    AUTO_FREE char *path = workfolder_path(folder, "lock");
    lock *l = NULL;
    assert_int_equal(mkdir(folder, 0777), 0);
    assert_int_equal(lock_take(&l, path, "aaaa", LEASE), STATUS_OK);
    assert_int_equal(rename(folder, away), 0);
    assert_int_equal(lock_check(l), STATUS_OK);
    assert_int_equal(mkdir(folder, 0777), 0);
    hold_and_end(path, "bbbb"); /* not in the folder that was taken */
    assert_int_equal(lock_check(l), STATUS_OK);
    assert_true(atomic_exists(path) && !lock_removed(l));
    assert_int_equal(unlink(path), 0);
    hold_and_end(path, "cccc");
    assert_int_equal(lock_check(l), STATUS_LOST);
    lock_release(l);
}

/* What waits until a moment of that clock, as it was an hour ahead, waits for an hour. */
TEST(a_clock_that_is_set_back_does_not_stop_the_beat)
{
    AUTO_FREE char *path = workfolder_path(*state, "back");
    lock *l = NULL;
    lock_sight seen = {0};
    assert_int_equal(lock_take(&l, path, "abcd", LEASE), STATUS_OK);
    set_back = 3600;
    nap(LEASE / 2); /* what was waited for before */
    assert_true(lock_watch(&seen, path, LEASE) && seen.here && seen.pid == getpid());
    long long before = seen.beat;
    nap(LEASE);
    assert_true(lock_watch(&seen, path, LEASE));
    set_back = 0;
    assert_true(seen.beat >= before + 3);
    lock_release(l);
}

/* Who only looks: a process that is dead holds nothing, another machine's holder nothing when it has not beaten for a
 * lease. */
TEST(who_watches_a_lock_knows_whether_its_holder_lives)
{
    AUTO_FREE char *path = workfolder_path(*state, "seen");
    lock_sight seen = {0}, far = {0};
    assert_false(lock_watch(&seen, path, LEASE));
    pid_t pid = holder(path, "aaaa");
    assert_true(lock_watch(&seen, path, LEASE) && seen.here);
    assert_string_equal(seen.id, "aaaa");
    assert_int_equal(seen.pid, pid);
    end(pid);
    assert_false(lock_watch(&seen, path, LEASE));
    free(foreign(path, 1));
    assert_true(lock_watch(&far, path, LEASE));
    nap(LEASE * 0.7);
    free(foreign(path, 2));
    assert_true(lock_watch(&far, path, LEASE) && !far.here);
    nap(LEASE * 0.7);
    assert_true(lock_watch(&far, path, LEASE)); /* a lease since it has beaten, not since it was seen */
    nap(LEASE * 0.5);
    assert_false(lock_watch(&far, path, LEASE));
    unlink(path);
}

/* Twelve processes at once, each of which finds the lock of a dead one: exactly one has it. */
TEST(of_many_that_find_a_stale_lock_one_gets_it)
{
    enum { ROUNDS = 10, MANY = 12 };
    AUTO_FREE char *path = workfolder_path(*state, "many");
    for (int round = 0; round < ROUNDS; round++) {
        int taken = 0, tried[2], all[2]; /* pipes: a byte of each that has tried; closed when all have */
        pid_t pids[MANY];
        char byte;
        end(holder(path, "ffff"));
        assert_true(pipe(tried) == 0 && pipe(all) == 0);
        for (int i = 0; i < MANY; i++) {
            pids[i] = fork();
            if (pids[i] == 0) {
                lock *l = NULL;
                char id[8];
                snprintf(id, sizeof id, "%04x", i);
                bool mine = lock_take(&l, path, id, LEASE) == STATUS_OK;
                close(all[1]);
                if (write(tried[1], "x", 1) != 1 || read(all[0], &byte, 1) != 0) /* nobody lets it go before */
                    _exit(100);
                _exit(mine && lock_check(l) == STATUS_OK);
            }
        }
        for (int i = 0; i < MANY; i++)
            assert_int_equal(read(tried[0], &byte, 1), 1);
        close(all[1]);
        for (int i = 0; i < MANY; i++) {
            int how;
            assert_int_equal(waitpid(pids[i], &how, 0), pids[i]);
            assert_true(WIFEXITED(how));
            taken += WEXITSTATUS(how);
        }
        assert_int_equal(taken, 1);
        close(all[0]);
        close(tried[0]);
        close(tried[1]);
    }
}

/* A start that is alive and about to find out who holds the lock has a file aside: nobody sweeps it away. */
TEST(the_file_of_another_start_that_is_alive_stays)
{
    char *path = workfolder_path(*state, "raced"), *other = workfolder_path(*state, "other"), *aside;
    lock *another = NULL, *mine = NULL;
    int64_t bytes;
    assert_int_equal(lock_take(&another, other, "aaaa", LEASE), STATUS_OK);
    AUTO_FREE uint8_t *text = workfolder_read(other, &bytes);
    aside = must_format("%s.aaaa", path);
    workfolder_write(aside, text, bytes);
    assert_int_equal(lock_take(&mine, path, "bbbb", LEASE), STATUS_OK);
    assert_int_equal(access(aside, F_OK), 0);
    lock_release(mine);
    lock_release(another);
    free(aside);
    free(other);
    free(path);
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
