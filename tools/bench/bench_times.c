#include "tools/bench/bench_parts.h"

#include <stdlib.h>

#include "memory/clock.h"
#include "memory/log.h"

/* An op takes `share` of the interval between two stamps. */
typedef struct span {
    int from, to;
    double share;
} span;

struct bench_times {
    executor *executor;
    const compiled_program *program;
    const device_interface *interface;
    device *device;
    const op *boundary_op; /* a computing op: its queue records the boundaries */
    span *span;            /* [ops] */
    int next;              /* first unused stamp of this step */
    int last;              /* stamp of the latest boundary on the compute queue */
    int *deferred;         /* later ops with a launch that the device may defer */
    int deferred_count;
    bool on;
};

/* True if the device may defer the op until another op is launched. */
static bool may_be_deferred(const op *o)
{
    return op_is(o, OP_CLASS_UPDATE) || op_waits(o);
}

static int record_stamp(bench_times *t, const op *o)
{
    t->interface->times.stamp(t->device, CLOCK_TRACE, t->next, o);
    return t->next++;
}

static int stamp_boundary(bench_times *t)
{
    return record_stamp(t, t->boundary_op);
}

/* Ends the interval of the deferred ops at a boundary and divides it among them by their bytes. */
static void share_among_deferred(bench_times *t, int end)
{
    double all = 0;
    for (int i = 0; i < t->deferred_count; i++) {
        const op *o = t->program->list.ops[t->deferred[i]];
        all += op_waits(o) ? 0 : op_row_of(o)->cost(o).bytes;
    }
    for (int i = 0; i < t->deferred_count; i++) {
        const op *o = t->program->list.ops[t->deferred[i]];
        double own = op_waits(o) ? 0 : op_row_of(o)->cost(o).bytes;
        t->span[t->deferred[i]] = (span){t->last, end, all > 0 ? own / all : 1.0 / t->deferred_count};
    }
    t->deferred_count = 0;
    t->last = end;
}

static void before_op(void *context, const compiled_program *p, int i)
{
    bench_times *t = context;
    const op *o = p->list.ops[i];
    if (!t->on)
        return;
    if (t->next == 0)
        t->last = stamp_boundary(t);
    if (op_starts(o))
        t->span[i].from = record_stamp(t, o);
    else if (!may_be_deferred(o) && t->deferred_count > 0)
        share_among_deferred(t, stamp_boundary(t));
}

static void after_op(void *context, const compiled_program *p, int i)
{
    bench_times *t = context;
    const op *o = p->list.ops[i];
    if (!t->on)
        return;
    if (op_starts(o)) {
        t->span[i] = (span){t->span[i].from, record_stamp(t, o), 1};
    } else if (may_be_deferred(o)) {
        t->deferred[t->deferred_count++] = i;
    } else {
        int end = stamp_boundary(t);
        t->span[i] = (span){t->last, end, 1};
        t->last = end;
    }
}

static const op *find_undeferred_op(const program *list)
{
    for (int i = 0; i < list->count; i++)
        if (op_computes(list->ops[i]) && !may_be_deferred(list->ops[i]))
            return list->ops[i];
    MUST(0, "a program that computes nothing");
}

bench_times *bench_times_open(executor *e, const compiled_program *p)
{
    bench_times *t = must_calloc(1, sizeof *t);
    unsigned long ops = (unsigned long)p->list.count + 1;
    t->executor = e;
    t->program = p;
    t->interface = executor_device(e, &t->device);
    t->boundary_op = find_undeferred_op(&p->list);
    t->span = must_calloc(ops, sizeof *t->span);
    t->deferred = must_calloc(ops, sizeof *t->deferred);
    if (t->interface->times.stamps) {
        t->interface->times.stamps(t->device, CLOCK_TRACE, 2 * p->list.count + 2);
        executor_observe(e, OBSERVES_TIMES, (executor_observer){t, before_op, after_op, NULL});
    }
    return t;
}

static double play_with_stamps(bench_times *t, double *seconds)
{
    t->next = 0;
    t->on = true;
    executor_op_by_op(t->executor, true);
    executor_launch(t->executor, t->program);
    int end = stamp_boundary(t);
    share_among_deferred(t, end);
    t->on = false;
    executor_finish(t->executor);
    executor_op_by_op(t->executor, false);
    for (int i = 0; i < t->program->list.count; i++)
        seconds[i] +=
            t->span[i].share * t->interface->times.seconds(t->device, CLOCK_TRACE, t->span[i].from, t->span[i].to);
    return t->interface->times.seconds(t->device, CLOCK_TRACE, 0, end);
}

double bench_times_play(bench_times *t, double *seconds)
{
    if (t->interface->times.stamps)
        return play_with_stamps(t, seconds);
    executor_time_ops(t->executor, seconds);
    double begun = clock_seconds();
    executor_play(t->executor, t->program);
    double took = clock_seconds() - begun;
    executor_time_ops(t->executor, NULL);
    return took;
}

void bench_times_close(bench_times *t)
{
    if (!t)
        return;
    if (t->interface->times.stamps) {
        executor_observe(t->executor, OBSERVES_TIMES, (executor_observer){0});
        t->interface->times.stamps(t->device, CLOCK_TRACE, 0);
    }
    free(t->span);
    free(t->deferred);
    free(t);
}
