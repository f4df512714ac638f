#include "parallel/signals.h"

#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

/* Launchers and batch systems deliver one request twice (to the process, and forwarded to it): signals so close together
 * are one. */
#define ONE_REQUEST_NANOSECONDS 1000000000LL

static struct {
    _Atomic int received;
    _Atomic long long first; /* nanoseconds */
} signals;

_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2, "a handler may use lock-free atomics only");

static void on_signal(int number)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    long long time = t.tv_sec * 1000000000LL + t.tv_nsec;
    int none = 0;
    if (atomic_load(&signals.received) && time - atomic_load(&signals.first) > ONE_REQUEST_NANOSECONDS)
        _exit(128 + number);
    if (atomic_load(&signals.received) == 0)
        atomic_store(&signals.first, time);
    atomic_compare_exchange_strong(&signals.received, &none, number);
}

void signals_install(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGTERM);
    sigaddset(&action.sa_mask, SIGINT);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}

int signals_pending(void)
{
    return atomic_load(&signals.received);
}
