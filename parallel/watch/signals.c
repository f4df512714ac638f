#include "parallel/watch/signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

/* Launchers and batch systems deliver one request twice (to the process, and forwarded to it): signals this close
 * together count as one. */
#define ONE_REQUEST_NANOSECONDS 1000000000LL

static const struct {
    int number;
    const char *name;
    signals_request asks;
    bool insists; /* a second one ends the process */
} caught[] = {
    {SIGTERM, "SIGTERM", SIGNALS_STOP, true},  {SIGINT, "SIGINT", SIGNALS_STOP, true},
    {SIGHUP, "SIGHUP", SIGNALS_STOP, false},   {SIGUSR1, "SIGUSR1", SIGNALS_STOP, false},
    {SIGUSR2, "SIGUSR2", SIGNALS_SAVE, false},
};

enum { CAUGHT = sizeof caught / sizeof *caught };

static struct {
    _Atomic int stop; /* the signal that asked for it; 0: none has */
    _Atomic bool save;
    _Atomic long long first; /* nanoseconds: when an insisting signal first came; 0: none has */
    _Atomic long long saved; /* when the last save was done */
    _Atomic int status;      /* the process's exit status; -1: not known yet */
    bool hangup_ignored;     /* true if SIGHUP was ignored when the process began */
} signals = {.status = -1};

_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_BOOL_LOCK_FREE == 2,
               "a handler may use lock-free atomics only");

static long long monotonic_nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void on_signal(int number)
{
    int which = 0, none = 0;
    long long time = monotonic_nanoseconds(), never = 0;
    while (caught[which].number != number)
        which++;
    if (caught[which].asks == SIGNALS_SAVE) {
        if (time - atomic_load(&signals.saved) > ONE_REQUEST_NANOSECONDS)
            atomic_store(&signals.save, true);
        return;
    }
    if (caught[which].insists && !atomic_compare_exchange_strong(&signals.first, &never, time) &&
        time - never > ONE_REQUEST_NANOSECONDS) {
        int status = atomic_load(&signals.status);
        _exit(status >= 0 ? status : 128 + number);
    }
    atomic_compare_exchange_strong(&signals.stop, &none, number);
}

static bool is_hangup_ignored(void)
{
    struct sigaction now;
    return sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

void signals_note_hangup(void)
{
    signals.hangup_ignored = is_hangup_ignored();
}

void signals_install(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    bool hangup_ignored = signals.hangup_ignored || is_hangup_ignored();
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < CAUGHT; i++)
        sigaddset(&action.sa_mask, caught[i].number);
    for (int i = 0; i < CAUGHT; i++)
        sigaction(caught[i].number, &action, NULL);
    if (hangup_ignored)
        sigaction(SIGHUP, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
    sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
}

signals_request signals_pending(void)
{
    if (atomic_load(&signals.stop))
        return SIGNALS_STOP;
    return atomic_load(&signals.save) ? SIGNALS_SAVE : SIGNALS_NONE;
}

const char *signals_name(void)
{
    int stop = atomic_load(&signals.stop);
    for (int i = 0; i < CAUGHT; i++)
        if (caught[i].number == stop)
            return caught[i].name;
    return "a signal";
}

void signals_saved(void)
{
    atomic_store(&signals.saved, monotonic_nanoseconds());
    atomic_store(&signals.save, false);
}

void signals_done(int status)
{
    atomic_store(&signals.status, status);
}
