#include "tests/cuda/gpu/probe.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/philox.h"
#include "memory/log.h"
#include "memory/scope.h"

#define WORD_OF(x) #x
#define WORD(x)    WORD_OF(x)

enum { BOUNDARY = 256, BLOCK = 1 << 16, MOST_TIMES = 200 };

static void nothing(void *context)
{
    (void)context;
}

static int64_t upwards(int64_t bytes)
{
    return (bytes + BOUNDARY - 1) / BOUNDARY * BOUNDARY;
}

bool probe_open(probe *p, bool small)
{
    const device_options options = {.requests = 2, .marks = 1, .threads = 1};
    *p = (probe){.small = small,
                 .arena_bytes = small ? (int64_t)8 << 20 : (int64_t)6 << 30,
                 .workspace_bytes = small ? 1 << 16 : (int64_t)64 << 20};
    if (device_find(&p->on, "cuda") != STATUS_OK)
        return false;
    int64_t host = 2 * PROBE_HOST + 2 * (small ? PROBE_HOST : PROBE_COPIED);
    MUST(p->on->open(&p->d, &options) == STATUS_OK && p->on->allocate(p->d, p->arena_bytes, host) == STATUS_OK, "%s",
         status_message());
    p->on->times.stamps(p->d, CLOCK_TRACE, 2);
    probe_clear(p);
    return true;
}

void probe_close(probe *p)
{
    p->on->close(p->d);
}

void probe_clear(probe *p)
{
    p->count = 0;
    p->used = p->workspace_bytes;
}

tensor *probe_tensor(probe *p, dtype type, int64_t rows, int64_t columns)
{
    MUST(p->count < PROBE_TENSORS, "%d tensors", PROBE_TENSORS);
    tensor *t = &p->tensors[p->count++];
    const int64_t shape[] = {rows, columns};
    tensor_describe(t, "operand", CLASS_INPUT, type, columns ? 2 : 1, shape);
    t->address = p->used;
    p->used += upwards(tensor_bytes(t));
    MUST(p->used <= p->arena_bytes, "a probe of %lld bytes", (long long)p->used);
    return t;
}

void probe_prepare(probe *p, op *o)
{
    int64_t bytes = p->on->backend->scratch_bytes(o, 1);
    o->label = op_row_of(o)->name;
    o->scratch = bytes > 0 ? probe_tensor(p, DTYPE_UINT8, bytes, 0) : NULL;
    MUST(p->on->prepare(p->d, o) == STATUS_OK, "%s", status_message());
}

void probe_finish(probe *p)
{
    const char *key;
    for (; (key = p->on->choices.wanted(p->d, p->wanted)); p->wanted++) {
        device_choice c = {.microseconds = 0};
        snprintf(c.key, sizeof c.key, "%s", key);
        MUST(p->on->choices.find(p->d, &c, 1, true) == STATUS_OK && p->on->choices.choose(p->d, &c) == STATUS_OK,
             "%s: %s", key, status_message());
    }
}

/* A block of random numbers, again and again: a product's power, and so its clock, depends on its operands' bits. */
void probe_fill(probe *p)
{
    AUTO_FREE float *block = must_alloc(BLOCK * sizeof *block);
    for (int i = 0; i < BLOCK; i++) {
        uint32_t draw[4];
        philox_draws(draw, 5, 1, 0, 0, (uint64_t)i);
        block[i] = 2 * philox_uniform(draw[0]) - 1;
    }
    for (int k = 0; k < p->count; k++) {
        const tensor *t = &p->tensors[k];
        int64_t count = tensor_elements(t), bytes = dtype_bytes((dtype)t->type);
        char *to = p->on->borrow(p->d, t->address, tensor_bytes(t));
        bool real = t->type == DTYPE_FP32 || t->type == DTYPE_BF16 || t->type == DTYPE_FP16;
        for (int64_t i = 0; i < count && real; i += BLOCK)
            dtype_convert(to + i * bytes, (dtype)t->type, block, DTYPE_FP32, count - i < BLOCK ? count - i : BLOCK);
        if (!real)
            memset(to, 0, (size_t)tensor_bytes(t));
        p->on->give_back(p->d, to, t->address, tensor_bytes(t), true);
    }
}

void probe_set(probe *p, int64_t at, int64_t bytes, int value)
{
    char *to = p->on->borrow(p->d, at, bytes);
    memset(to, value, (size_t)bytes);
    p->on->give_back(p->d, to, at, bytes, true);
}

void probe_begin(probe *p, const op *o)
{
    p->on->synchronise(p->d, nothing, NULL);
    p->on->times.stamp(p->d, CLOCK_TRACE, 0, o);
}

double probe_end(probe *p, const op *o)
{
    p->on->times.stamp(p->d, CLOCK_TRACE, 1, o);
    p->on->synchronise(p->d, nothing, NULL);
    return p->on->times.seconds(p->d, CLOCK_TRACE, 0, 1);
}

static double seconds_of(probe *p, const op *o, int times)
{
    probe_begin(p, o);
    for (int i = 0; i < times; i++)
        p->on->launch(p->d, o);
    return probe_end(p, o) / times;
}

double probe_seconds(probe *p, const op *o)
{
    (void)seconds_of(p, o, 1);
    double once = seconds_of(p, o, 1);
    int times = p->small ? 2 : once < 1.0 / (3 * MOST_TIMES) ? MOST_TIMES : (int)(1 / (3 * once)) + 1;
    return seconds_of(p, o, times);
}

void *probe_symbol(const char *name)
{
    void *there = dlsym(RTLD_DEFAULT, name);
    void *library = there ? NULL : dlopen("libcublasLt.so." WORD(CUBLAS_VER_MAJOR), RTLD_NOW);
    return there ? there : library ? dlsym(library, name) : NULL;
}
