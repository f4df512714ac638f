/* The host as a device: one queue, which is the calling thread. */
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "memory/arena.h"
#include "memory/log.h"

struct device {
    arena *arena;
    const op_backend *backend;
    run_context context;
};

static status cpu_available(void)
{
    return STATUS_OK;
}

/* Have the kernel hand over every page now, on all threads: its zeroing would else fall into the first step, on one. */
static void touch_pages(device *d)
{
    enum { PAGE = 4096 };
    char *base = arena_base(d->arena);
    int64_t pages = (arena_bytes(d->arena) + PAGE - 1) / PAGE;
#pragma omp parallel for num_threads(d->context.threads) schedule(static)
    for (int64_t i = 0; i < pages; i++)
        *(volatile char *)(base + i * PAGE) = 0;
}

static status cpu_open(device **out, const device_options *o)
{
    device *d = must_calloc(1, sizeof *d);
    d->backend = o->backend;
    d->context.threads = o->threads;
    *out = d;
    return STATUS_OK;
}

static status cpu_allocate(device *d, int64_t arena_bytes, int64_t host_bytes)
{
    (void)host_bytes;
    TRY(arena_open(&d->arena, arena_bytes));
    d->context.arena = arena_base(d->arena);
    touch_pages(d);
    return STATUS_OK;
}

static void cpu_close(device *d)
{
    if (!d)
        return;
    arena_close(d->arena);
    free(d);
}

static void cpu_facts(device_facts *out, const device *d)
{
    (void)d;
    *out = (device_facts){.name = "cpu"};
}

static run_context *cpu_context(device *d)
{
    return &d->context;
}

static char *cpu_host(device *d)
{
    return d->context.arena;
}

static status cpu_prepare(device *d, op *o)
{
    return d->backend->prepare ? d->backend->prepare(o, d->context.threads) : STATUS_OK;
}

static void cpu_copy_in(device *d, int64_t at, int64_t from, int64_t bytes)
{
    (void)d, (void)at, (void)from, (void)bytes;
}

static void cpu_copy_out(device *d, int64_t at, int64_t bytes)
{
    (void)d, (void)at, (void)bytes;
}

static void cpu_launch(device *d, const op *o)
{
    d->backend->kernels[o->kind](o, &d->context);
}

static void *cpu_start(device *d, const op *o)
{
    (void)d, (void)o;
    return NULL;
}

static void cpu_pass(device *d, const op *o)
{
    (void)d, (void)o;
}

static void cpu_mark(device *d, int mark)
{
    (void)d, (void)mark;
}

static bool cpu_passed(device *d, int mark)
{
    (void)d, (void)mark;
    return true;
}

static void cpu_synchronise(device *d, void (*meanwhile)(void *context), void *context)
{
    (void)d, (void)meanwhile, (void)context;
}

static void *cpu_borrow(device *d, int64_t at, int64_t bytes)
{
    (void)bytes;
    return d->context.arena + at;
}

static void cpu_give_back(device *d, void *copy, int64_t at, int64_t bytes, bool changed)
{
    (void)d, (void)copy, (void)at, (void)bytes, (void)changed;
}

static void cpu_profile(device *d, bool on)
{
    (void)d, (void)on;
}

const device_interface device_cpu = {
    .version = DEVICE_VERSION,
    .name = "cpu",
    .available = cpu_available,
    .open = cpu_open,
    .allocate = cpu_allocate,
    .close = cpu_close,
    .facts = cpu_facts,
    .context = cpu_context,
    .host = cpu_host,
    .prepare = cpu_prepare,
    .copy_in = cpu_copy_in,
    .copy_out = cpu_copy_out,
    .launch = cpu_launch,
    .start = cpu_start,
    .started = cpu_pass,
    .wait = cpu_pass,
    .mark = cpu_mark,
    .passed = cpu_passed,
    .synchronise = cpu_synchronise,
    .borrow = cpu_borrow,
    .give_back = cpu_give_back,
    .profile = cpu_profile,
};
