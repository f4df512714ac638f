#include "engine/store/pool.h"

#include <stdlib.h>

#include "memory/clock.h"
#include "memory/log.h"

static void run_thread(void *context)
{
    pool *p = context;
    const pool_task *task = p->task;
    AUTO(object_store) *s = NULL;
    object_limits limits = task->limits;
    int fault = 0;
    if (!limits.stop)
        limits.stop = &p->worker.stop;
    worker_lock(&p->worker);
    int thread = p->begun++;
    worker_unlock(&p->worker);
    status result = object_open(&s, task->bucket, &limits);
    if (result == STATUS_OK)
        result = task->work(task->context, p, s, thread, &fault);
    WORKER_HELD(&p->worker);
    if (result != STATUS_OK && !p->why) {
        p->result = result;
        p->why = must_strdup(status_message());
        p->fault = fault;
        atomic_store(&p->worker.stop, true);
    }
    p->running--;
    worker_tell(&p->worker);
}

status pool_run(const pool_task *task, int *fault)
{
    pool p = {.task = task, .running = task->threads};
    status s = STATUS_OK;
    worker_init(&p.worker);
    for (int i = 0; i < task->threads && s == STATUS_OK; i++)
        s = worker_start(&p.worker, run_thread, &p, task->does);
    worker_lock(&p.worker);
    p.running -= task->threads - p.worker.threads;
    if (p.worker.threads > 0)
        s = STATUS_OK; /* fewer threads suffice */
    for (double next = clock_seconds() + task->every; p.running > 0 && !atomic_load(&p.worker.stop);)
        if (!task->tell)
            (void)worker_wait(&p.worker);
        else if (!worker_wait_until(&p.worker, next) && !atomic_load(&p.worker.stop)) {
            task->tell(task->context);
            next = clock_seconds() + task->every;
        }
    worker_unlock(&p.worker);
    worker_join(&p.worker);
    if (p.why)
        s = status_fail(p.result, "%s", p.why);
    if (p.why && fault)
        *fault = p.fault;
    free(p.why);
    worker_close(&p.worker);
    return s;
}
