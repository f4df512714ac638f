#include "tools/ticker.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "memory/clock.h"
#include "memory/log.h"
#include "memory/units.h"

static const double FIRST = 1, AGAIN = 30, REDRAW = 0.5; /* seconds */

struct ticker {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    char doing[200];
    bool terminal, fresh, ended, drawn; /* fresh: `doing` was not printed yet */
    double begun, last;                 /* when it began; when a line was printed, 0: never */
};

static void print(ticker *t, double now)
{
    char took[UNITS_TEXT];
    units_duration(took, now - t->begun);
    fprintf(stderr, t->terminal ? "\r\033[Kphalanx: %s, %s" : "phalanx: %s, %s\n", t->doing, took);
    fflush(stderr);
    t->drawn = t->terminal;
    t->fresh = false;
    t->last = now;
}

/* When the next line is due. */
static double due(const ticker *t)
{
    if (t->last == 0)
        return t->begun + FIRST;
    return t->terminal ? t->last + REDRAW : t->fresh ? t->last : t->last + AGAIN;
}

static void *tick(void *context)
{
    ticker *t = context;
    pthread_mutex_lock(&t->mutex);
    while (!t->ended) {
        double at = due(t), now = clock_seconds();
        if (now >= at) {
            print(t, now);
            continue;
        }
        clock_wait(&t->changed, &t->mutex, at);
    }
    pthread_mutex_unlock(&t->mutex);
    return NULL;
}

ticker *ticker_open(const char *doing)
{
    ticker *t = must_calloc(1, sizeof *t);
    t->begun = clock_seconds();
    t->terminal = isatty(STDERR_FILENO);
    snprintf(t->doing, sizeof t->doing, "%s", doing);
    pthread_mutex_init(&t->mutex, NULL);
    clock_condition(&t->changed);
    MUST(pthread_create(&t->thread, NULL, tick, t) == 0, "a thread cannot be created");
    return t;
}

void ticker_say(ticker *t, const char *doing)
{
    pthread_mutex_lock(&t->mutex);
    snprintf(t->doing, sizeof t->doing, "%s", doing);
    t->fresh = true;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->mutex);
}

void ticker_close(ticker *t)
{
    if (!t)
        return;
    pthread_mutex_lock(&t->mutex);
    t->ended = true;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->mutex);
    pthread_join(t->thread, NULL);
    if (t->drawn)
        fputs("\r\033[K", stderr);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->mutex);
    free(t);
}
