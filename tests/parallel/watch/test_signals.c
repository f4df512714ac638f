/* With what status a process ends that is asked to stop twice: before its work is done, and after. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory/clock.h"
#include "parallel/watch/signals.h"
#include "tests/test.h"

/* A process gets `first`, and 1.2 s later `second`, which ends it; in between its work is done with `status`, or -1: it
 * is not. */
static int asked_twice(int first, int second, int status)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signals_install();
        raise(first);
        if (status >= 0)
            signals_done(status);
        clock_nap(1.2);
        raise(second);
        _exit(99); /* the second did not end it */
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how));
    return WEXITSTATUS(how);
}

TEST(a_second_signal_ends_a_process_with_the_status_of_its_work)
{
    static const struct {
        int first, second, status, expected;
    } cases[] = {
        {SIGTERM, SIGTERM, -1, 128 + SIGTERM},
        {SIGINT, SIGTERM, -1, 128 + SIGTERM},
        {SIGTERM, SIGTERM, 75, 75}, /* srun: another rank has ended with 75 already */
        {SIGTERM, SIGINT, 0, 0},
        {SIGTERM, SIGTERM, 1, 1},
        {SIGUSR1, SIGTERM, -1, 99}, /* the first that insists */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(asked_twice(cases[i].first, cases[i].second, cases[i].status), cases[i].expected);
}

TEST_MAIN(NULL, NULL)
