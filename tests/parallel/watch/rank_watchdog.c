/* One rank of the watchdog tests: mpirun -np N rank_watchdog SCENARIO HANG_SECONDS. The ranks take steps of a few
 * milliseconds with a sum over all ranks in each, watched; the scenario says what goes wrong, in step 20. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "memory/log.h"
#include "parallel/comm/comm.h"
#include "parallel/watch/signals.h"
#include "parallel/watch/watchdog.h"

enum { EVENTFUL = 20 };

static bool joining;

/* While the watchdogs of one machine join, only that machine may connect. */
int listen(int file, int most)
{
    struct sockaddr_in at = {0};
    bool known = getsockname(file, (struct sockaddr *)&at, &(socklen_t){sizeof at}) == 0;
    if (joining && (!known || at.sin_family != AF_INET || at.sin_addr.s_addr != htonl(INADDR_LOOPBACK))) {
        errno = EACCES;
        return -1;
    }
    return (int)syscall(SYS_listen, file, most);
}

typedef struct run {
    comm *c;
    watchdog *w;
    const char *scenario;
    double hang;
    int steps;
} run;

static bool scenario_is(const run *r, const char *name)
{
    return strcmp(r->scenario, name) == 0;
}

static void sleep_for(double seconds)
{
    struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&t, &t)) /* a caught signal interrupts it */
        continue;
}

/* Sums what each rank brings; the label tells where the rank is. */
static int64_t sum(run *r, int step, const char *label, int64_t mine)
{
    int64_t scratch[128], all = mine;
    watchdog_at(
        r->w, &(watchdog_position){.step = step, .micro_batch = step % 4, .action = "forward of chunk 0", .op = label});
    comm_run(&(comm_call){.kind = COMM_ALL_REDUCE,
                          .group = comm_world(r->c),
                          .type = DTYPE_INT64,
                          .send = &all,
                          .receive = &all,
                          .count = 1,
                          .scratch = scratch});
    return all;
}

static void event(run *r, int step)
{
    int rank = comm_rank(r->c), ranks = comm_ranks(r->c);
    bool last = rank == ranks - 1;
    watchdog_position p = {.step = step, .micro_batch = -1, .op = "layer 9/attention/flash"};
    if (scenario_is(r, "stuck") && last) {
        watchdog_at(r->w, &p);
        sleep_for(3600);
    }
    if (scenario_is(r, "exit") && last)
        _exit(0); /* without a word: not even a failure's status */
    if (scenario_is(r, "circle")) {
        char byte = 0;
        p.op = "receive from the next";
        watchdog_at(r->w, &p);
        comm_run(&(comm_call){.kind = COMM_RECEIVE,
                              .group = comm_world(r->c),
                              .type = DTYPE_UINT8,
                              .receive = &byte,
                              .count = 1,
                              .source = (rank + 1) % ranks});
    }
    if (scenario_is(r, "save") && last && step == EVENTFUL) { /* others wait for this one, which may take its time */
        watchdog_enter(r->w, DURING_SAVE, true, step, "writing a checkpoint");
        sleep_for(3 * r->hang);
        watchdog_enter(r->w, DURING_STEP, false, step, "going on");
    }
    if (scenario_is(r, "storage") && last && step == EVENTFUL) {
        watchdog_enter(r->w, DURING_SAVE, true, step, "writing a checkpoint");
        sleep_for(3600);
    }
    if (scenario_is(r, "beside") && last && step == EVENTFUL)
        watchdog_beside(r->w, "writing fragment 3");
    if (scenario_is(r, "invariant") && last && step == EVENTFUL)
        MUST(rank < 0, "a promise is broken");
    bool heard = scenario_is(r, "heard"), lost = heard || scenario_is(r, "lost");
    if (lost && rank == 1) {
        watchdog_fail(r->w, INCIDENT_LINK, "remote process exited");
        sleep_for(3600);
    }
    if (heard && last) { /* later than the rank that has heard of it */
        sleep_for(0.2);
        MUST(rank < 0, "an illegal address");
    }
    if (scenario_is(r, "slow"))
        sleep_for(0.6 * r->hang);
}

static void tell(void *w, const char *words)
{
    watchdog_fail(w, INCIDENT_DEAD, words);
}

int main(int count, char **arguments)
{
    MUST(count == 3, "rank_watchdog SCENARIO HANG_SECONDS");
    run r = {.scenario = arguments[1], .hang = atof(arguments[2]), .steps = EVENTFUL + 5};
    watchdog_limits limits = {.silent = r.hang};
    for (int i = 0; i < INCIDENT_PHASES; i++)
        limits.phase[i] = i == DURING_SAVE ? 5 * r.hang : r.hang;
    if (!scenario_is(&r, "start"))
        limits.phase[DURING_START] = 30;
    limits.phase[DURING_END] = 30; /* MPI takes its time on a loaded machine */
    signals_install();
    log_set_rank(comm_expected_rank(), 1);
    if (watchdog_open(&r.w, &limits, NULL, NULL) != STATUS_OK)
        return 1;
    if (scenario_is(&r, "start") && comm_expected_rank() == 2)
        sleep_for(3600);
    bool opened = comm_open(&r.c) == STATUS_OK;
    joining = opened;
    if (!opened || watchdog_join(r.w, r.c) != STATUS_OK) {
        log_error("%s", status_message());
        return 1;
    }
    log_set_last_words(tell, r.w);
    log_set_where(watchdog_where, r.w);
    printf("rank %d is process %d.\n", comm_rank(r.c), (int)getpid());
    fflush(stdout);
    watchdog_enter(r.w, DURING_STEP, false, 0, "beginning");
    if (scenario_is(&r, "forever") || scenario_is(&r, "beside"))
        r.steps = 1 << 30;
    bool asked = false;
    int step = 0;
    for (; step < r.steps && !asked; step++) {
        asked = sum(&r, step, "layer 3/mlp/down", signals_pending() == SIGNALS_STOP) > 0;
        sleep_for(0.005);
        if (step == EVENTFUL) {
            sum(&r, step, "before the event", 0);
            printf("rank %d ready\n", comm_rank(r.c));
            fflush(stdout);
        }
        if (step >= EVENTFUL && step < EVENTFUL + 3)
            event(&r, step);
    }
    sleep_for(0.05 * comm_rank(r.c)); /* they close at different times */
    watchdog_leave(r.w);
    log_set_where(NULL, NULL);
    log_set_last_words(NULL, NULL);
    printf("rank %d finished after %d steps%s\n", comm_rank(r.c), step, asked ? ", as asked" : "");
    comm_close(r.c);
    watchdog_close(r.w);
    return 0;
}
