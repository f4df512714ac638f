/* The host as a device: one queue, which is the calling thread. */
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "memory/arena.h"
#include "memory/bits.h"
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
    arena_touch(d->arena, d->context.threads);
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

/* ---- verification ---------------------------------------------------------------------------------------------- */

static uint64_t sum_rows(const device *d, const device_rows *r)
{
    const char *base = d->context.arena + r->at;
    if (r->rows == 1)
        return bits_sum(base, r->bytes, d->context.threads);
    uint64_t sum = 0;
    for (int64_t i = 0; i < r->rows; i++)
        sum = bits_mix(sum, bits_sum(base + i * r->pitch, r->bytes, 1));
    return sum;
}

static uint64_t *word_at(device *d, int64_t at)
{
    return (uint64_t *)(void *)(d->context.arena + at);
}

static void cpu_sum_bits(device *d, int64_t to, const device_rows *of)
{
    *word_at(d, to) = sum_rows(d, of);
}

static void cpu_check_bits(device *d, int64_t with, const device_rows *of, const device_note *note)
{
    uint64_t *noted = word_at(d, note->note);
    if (sum_rows(d, of) == *word_at(d, with) || noted[0])
        return;
    noted[0] = note->what;
    noted[1] = *word_at(d, note->step);
}

static void cpu_keep(device *d, int64_t to, const device_rows *of)
{
    for (int64_t i = 0; i < of->rows; i++)
        memcpy(d->context.arena + to + i * of->bytes, d->context.arena + of->at + i * of->pitch, (size_t)of->bytes);
}

static void cpu_bring_back(device *d, const device_rows *to, int64_t from)
{
    for (int64_t i = 0; i < to->rows; i++)
        memcpy(d->context.arena + to->at + i * to->pitch, d->context.arena + from + i * to->bytes, (size_t)to->bytes);
}

static const devices_row *cpu_row(int local_rank)
{
    (void)local_rank;
    return devices_named(cpu_backend.device);
}

static void cpu_profile(device *d, bool on)
{
    (void)d, (void)on;
}

const device_interface device_cpu = {
    .version = DEVICE_VERSION,
    .name = "cpu",
    .available = cpu_available,
    .row = cpu_row,
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
    .bits.sum = cpu_sum_bits,
    .bits.check = cpu_check_bits,
    .bits.keep = cpu_keep,
    .bits.bring_back = cpu_bring_back,
    .profile = cpu_profile,
};
