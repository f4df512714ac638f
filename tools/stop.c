#include "tools/stop.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t caught; /* a signal handler gets no context */

static void ignore_signal(int number)
{
    caught = number;
}

void stop_catch(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = ignore_signal, .sa_flags = (int)SA_RESETHAND | SA_RESTART};
    sigemptyset(&action.sa_mask);
    for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction old;
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN) /* skips ignored ones, as nohup's */
            (void)sigaction(numbers[i], &action, NULL);
    }
}

status stop_asked(void)
{
    return caught ? status_fail(STATUS_FAILED, "stopped by a signal: nothing was written") : STATUS_OK;
}

int stop_exit(status s)
{
    if (caught && s != STATUS_OK) {
        sigset_t all;
        sigfillset(&all);
        (void)signal((int)caught, SIG_DFL);
        (void)pthread_sigmask(SIG_UNBLOCK, &all, NULL); /* workers block all signals */
        (void)raise((int)caught);
    }
    return (int)s;
}
