/* Trains as `phalanx train` does, on a machine that is not as it should be: PHALANX_FAULT says how. The linker puts this file's
 * functions between the engine's (-Wl,--wrap, see the Makefile).
 *
 *   slow RANK SHARE FROM    that rank's ops take 1 + SHARE times as long, from step FROM on
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/executor.h"
#include "memory/log.h"
#include "tools/tools.h"

void __real_executor_observe(executor *e, executor_observer o);
void __wrap_executor_observe(executor *e, executor_observer o);

static struct {
    executor_observer real;
    int rank, from, step;
    double share, began;
} fault = {.rank = -1};

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void before(void *context, const compiled_program *p, int i)
{
    (void)context;
    fault.step += i == 0;
    if (fault.real.before)
        fault.real.before(fault.real.context, p, i);
    fault.began = processor_seconds();
}

static void after(void *context, const compiled_program *p, int i)
{
    (void)context;
    bool computes = !(op_row_of(p->list.ops[i])->flags & OP_COMM) && p->list.ops[i]->kind != OP_wait;
    double now = processor_seconds(), until = now + fault.share * (now - fault.began);
    while (log_rank() == fault.rank && fault.step >= fault.from && computes && processor_seconds() < until)
        ;
    if (fault.real.after)
        fault.real.after(fault.real.context, p, i);
}

void __wrap_executor_observe(executor *e, executor_observer o)
{
    fault.real = o;
    __real_executor_observe(e, (executor_observer){NULL, before, after});
}

int main(int argc, char **argv)
{
    const char *what = getenv("PHALANX_FAULT");
    if (what && sscanf(what, "slow %d %lf %d", &fault.rank, &fault.share, &fault.from) != 3)
        MUST(0, "no such fault: %s", what);
    return train_main(argc, argv);
}
