#include "tools/ticker.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/system/worker.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/units.h"

static const double FIRST = 1, AGAIN = 30, REDRAW = 0.5; /* seconds */

struct ticker {
    worker worker;
    char doing[200];
    bool terminal, fresh, drawn; /* fresh: `doing` has not been printed yet */
    double begun, last;          /* its start; the time of the last line, 0: none */
};

static void print(ticker *t, double now)
{
    fprintf(stderr, t->terminal ? "\r\033[Kphalanx: %s, %s" : "phalanx: %s, %s\n", t->doing,
            DURATION_TEXT(now - t->begun));
    fflush(stderr);
    t->drawn = t->terminal;
    t->fresh = false;
    t->last = now;
}

/* Returns the time of the next line. */
static double due(const ticker *t)
{
    if (t->last == 0)
        return t->begun + FIRST;
    return t->terminal ? t->last + REDRAW : t->fresh ? t->last : t->last + AGAIN;
}

static void tick(void *context)
{
    ticker *t = context;
    WORKER_HELD(&t->worker);
    while (!atomic_load(&t->worker.stop)) {
        double at = due(t), now = clock_seconds();
        if (now >= at)
            print(t, now);
        else
            worker_wait_until(&t->worker, at);
    }
}

ticker *ticker_open(const char *doing)
{
    ticker *t = must_calloc(1, sizeof *t);
    t->begun = clock_seconds();
    t->terminal = isatty(STDERR_FILENO);
    snprintf(t->doing, sizeof t->doing, "%s", doing);
    worker_init(&t->worker);
    MUST(worker_start(&t->worker, tick, t, "tells what is done") == STATUS_OK, "%s", status_message());
    return t;
}

void ticker_say(ticker *t, const char *doing)
{
    worker_lock(&t->worker);
    snprintf(t->doing, sizeof t->doing, "%s", doing);
    t->fresh = true;
    worker_tell(&t->worker);
    worker_unlock(&t->worker);
}

void ticker_close(ticker *t)
{
    if (!t)
        return;
    worker_close(&t->worker);
    if (t->drawn)
        fputs("\r\033[K", stderr);
    free(t);
}
