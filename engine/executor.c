#include "engine/executor.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/collective.h"
#include "memory/arena.h"
#include "memory/clock.h"
#include "memory/log.h"

struct executor {
    compiled *compiled;
    comm *world;
    const op_backend *backend;
    arena *arena;
    run_context context;
    comm_group *group[AXIS_COUNT];
    comm_request *requests;
    watchdog *watchdog;
    double *seconds;
    _Atomic(int64_t) step;
    _Atomic(const op *) current;
};

/* ---- groups ---------------------------------------------------------------------------------------------------- */

static status open_group(executor *e, axis a)
{
    const grid *g = &e->compiled->options.grid;
    static const grid_group groups[AXIS_COUNT] = {
        [AXIS_TENSOR] = GRID_GROUP_TENSOR,   [AXIS_DATA] = GRID_GROUP_DATA_CONTEXT,
        [AXIS_CONTEXT] = GRID_GROUP_CONTEXT, [AXIS_PIPELINE] = GRID_GROUP_PIPELINE,
        [AXIS_TIE] = GRID_GROUP_TIED,        [AXIS_GRID] = GRID_GROUP_WORLD,
    };
    int *members = must_alloc((unsigned long)g->ranks * sizeof(int));
    int count, rank;
    if (a == AXIS_KV) {
        compile_axis(&count, &rank, g, &e->compiled->options.shape, a);
        for (int i = 0; i < count; i++)
            members[i] = g->rank - rank + i;
    } else {
        count = grid_members(members, g, groups[a]);
    }
    status s = count > 1 ? comm_group_open(&e->group[a], e->world, members, count) : STATUS_OK;
    free(members);
    return s;
}

/* Groups open in the same order on every rank. */
static status open_groups(executor *e)
{
    for (int a = 0; a < AXIS_COUNT; a++)
        TRY(open_group(e, (axis)a));
    return STATUS_OK;
}

/* ---- preparation ------------------------------------------------------------------------------------------------ */

static int member_of(const comm_group *g, int rank)
{
    for (int i = 0; i < comm_group_ranks(g); i++)
        if (comm_group_member(g, i) == rank)
            return i;
    MUST(0, "rank %d is no member of the group", rank);
}

static void prepare_collective(executor *e, op *o)
{
    compiled *c = e->compiled;
    comm_group *g = e->group[o->at.axis];
    MUST(g, "%s: no group along the %s axis", o->label, axis_name((axis)o->at.axis));
    comm_call *call = pool_alloc(&c->pool, sizeof *call);
    o->prepared = call;
    o->at.group_size = comm_group_ranks(g);
    o->at.group_rank = comm_group_me(g);
    int64_t *counts = NULL;
    if (collective_has_parts(o)) {
        counts = pool_alloc(&c->pool, (size_t)o->at.group_size * sizeof *counts);
        collective_counts(counts, o);
    }
    comm_shape s = collective_shape(o, counts);
    *call = (comm_call){.kind = s.kind, .group = g, .type = s.type, .count = s.count, .counts = counts};
    call->send = tensor_at(o->in[0], e->context.arena);
    call->receive = tensor_at(o->out[0], e->context.arena);
    call->scratch = tensor_at(o->scratch, e->context.arena);
    if (o->kind == OP_send)
        call->peer = member_of(g, o->at.peer);
    if (o->kind == OP_receive)
        call->source = member_of(g, o->at.peer);
}

static status prepare(executor *e, compiled_program *p)
{
    for (int i = 0; i < p->list.count; i++) {
        op *o = p->list.ops[i];
        if (op_row_of(o)->flags & COMM)
            prepare_collective(e, o);
        else if (o->kind != OP_wait && e->backend->prepare)
            TRY(e->backend->prepare(o, e->context.threads));
    }
    return STATUS_OK;
}

static void describe_where(char *out, int bytes, void *context)
{
    executor_describe(out, bytes, executor_where(context));
}

/* Have the kernel hand over every page now, on all threads: its zeroing would else fall into the first step, on one. */
static void touch_pages(executor *e)
{
    enum { PAGE = 4096 };
    char *base = arena_base(e->arena);
    int64_t pages = (arena_bytes(e->arena) + PAGE - 1) / PAGE;
#pragma omp parallel for num_threads(e->context.threads) schedule(static)
    for (int64_t i = 0; i < pages; i++)
        *(volatile char *)(base + i * PAGE) = 0;
}

status executor_open(executor **out, compiled *c, comm *world, const op_backend *backend, int threads)
{
    executor *e = must_calloc(1, sizeof *e);
    e->compiled = c;
    e->world = world;
    e->backend = backend;
    e->context.threads = threads;
    status s = arena_open(&e->arena, c->arena_bytes);
    if (s == STATUS_OK) {
        e->context.arena = arena_base(e->arena);
        touch_pages(e);
        s = open_groups(e);
    }
    compiled_program *programs[] = {&c->training, &c->evaluation, &c->decoding};
    int requests = 1;
    for (int i = 0; s == STATUS_OK && i < 3; i++) {
        s = prepare(e, programs[i]);
        if (programs[i]->requests > requests)
            requests = programs[i]->requests;
    }
    if (s != STATUS_OK) {
        executor_close(e);
        return s;
    }
    e->requests = must_calloc((unsigned long)requests, sizeof *e->requests);
    log_set_where(describe_where, e);
    *out = e;
    return STATUS_OK;
}

void executor_close(executor *e)
{
    if (!e)
        return;
    log_set_where(NULL, NULL);
    for (int a = 0; a < AXIS_COUNT; a++)
        comm_group_close(e->group[a]);
    arena_close(e->arena);
    free(e->requests);
    free(e);
}

/* ---- playing ---------------------------------------------------------------------------------------------------- */

static void play_op(executor *e, const op *o)
{
    if (o->kind == OP_wait)
        comm_wait(&e->requests[o->at.request]);
    else if (op_row_of(o)->flags & COMM)
        comm_start(&e->requests[o->at.request], o->prepared);
    else
        e->backend->kernels[o->kind](o, &e->context);
}

void executor_play(executor *e, const compiled_program *p)
{
    bool alone = comm_ranks(e->world) == 1;
    double before = e->seconds ? clock_seconds() : 0;
    for (int i = 0; i < p->list.count; i++) {
        const op *o = p->list.ops[i];
        atomic_store_explicit(&e->current, o, memory_order_relaxed);
        if (e->watchdog)
            watchdog_at(e->watchdog, &(watchdog_position){.step = executor_where(e).step,
                                                          .micro_batch = o->microbatch,
                                                          .action = phase_name((phase)o->phase),
                                                          .op = o->label});
        play_op(e, o);
        if (!alone)
            comm_progress(e->world);
        if (e->seconds) {
            double after = clock_seconds();
            e->seconds[i] += after - before;
            before = after;
        }
    }
    atomic_store_explicit(&e->current, NULL, memory_order_relaxed);
}

void *executor_at(executor *e, const tensor *t)
{
    return tensor_at(t, e->context.arena);
}

run_context *executor_context(executor *e)
{
    return &e->context;
}

void executor_watch(executor *e, watchdog *w)
{
    e->watchdog = w;
}

void executor_set_step(executor *e, int64_t step)
{
    atomic_store_explicit(&e->step, step, memory_order_relaxed);
}

executor_position executor_where(const executor *e)
{
    return (executor_position){.step = atomic_load_explicit(&e->step, memory_order_relaxed),
                               .o = atomic_load_explicit(&e->current, memory_order_relaxed)};
}

const char *executor_describe(char *out, int bytes, executor_position p)
{
    char text[256];
    if (!p.o) {
        snprintf(out, (size_t)bytes, "step %lld, between programs", (long long)p.step);
        return out;
    }
    int used = snprintf(out, (size_t)bytes, "step %lld, %s", (long long)p.step, phase_name((phase)p.o->phase));
    if (p.o->microbatch >= 0 && used < bytes)
        used +=
            snprintf(out + used, (size_t)(bytes - used), " of chunk %d, micro-batch %d", p.o->chunk, p.o->microbatch);
    if (used < bytes)
        snprintf(out + used, (size_t)(bytes - used), ", op %s", op_text(text, sizeof text, p.o));
    return out;
}

void executor_sent(const executor *e, int64_t *bytes, int64_t *messages, axis a)
{
    *bytes = e->group[a] ? comm_bytes_sent(e->group[a]) : 0;
    *messages = e->group[a] ? comm_messages_sent(e->group[a]) : 0;
}

void executor_time_ops(executor *e, double *seconds)
{
    e->seconds = seconds;
}
