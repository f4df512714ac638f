#include "tests/kernels/workbench.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cpu/products.h"
#include "kernels/philox.h"

enum { BENCH_BYTES = 16 << 20 };

workbench workbench_open(int threads, const isa *set)
{
    workbench b = {.arena = aligned_alloc(64, BENCH_BYTES), .r = {.threads = threads}, .seed = 1};
    union {
        const isa *set;
        void *device;
    } which = {set};
    assert_non_null(b.arena);
    memset(b.arena, 0xff, BENCH_BYTES); /* NaN: what is read before it is written shows */
    b.r.arena = b.arena;
    b.r.device = which.device;
    return b;
}

static int64_t take(workbench *b, int64_t bytes)
{
    int64_t at = b->used;
    b->used += (bytes + 127) / 64 * 64;
    assert_true(b->used <= BENCH_BYTES);
    return at;
}

tensor workbench_tensor(workbench *b, dtype type, int64_t rows, int64_t columns)
{
    tensor t;
    int64_t shape[2] = {rows, columns};
    tensor_describe(&t, "t", CLASS_TEMPORARY, type, columns ? 2 : 1, shape);
    t.address = take(b, tensor_bytes(&t));
    return t;
}

double workbench_uniform(workbench *b)
{
    uint32_t draws[4];
    philox_draws(draws, 7, 3, 0, 0, b->seed++);
    return (double)draws[0] / 4294967296.0;
}

double workbench_get(const workbench *b, const tensor *t, int64_t i, int64_t j)
{
    float value;
    const char *at = (const char *)tensor_at(t, b->arena) + (i * t->pitch + j) * dtype_bytes((dtype)t->type);
    dtype_convert(&value, DTYPE_FP32, at, (dtype)t->type, 1);
    return (double)value;
}

void workbench_put(const workbench *b, const tensor *t, int64_t i, int64_t j, double value)
{
    float narrow = (float)value;
    char *at = (char *)tensor_at(t, b->arena) + (i * t->pitch + j) * dtype_bytes((dtype)t->type);
    dtype_convert(at, (dtype)t->type, &narrow, DTYPE_FP32, 1);
}

tensor workbench_random(workbench *b, dtype type, int64_t rows, int64_t columns, double size)
{
    tensor t = workbench_tensor(b, type, rows, columns);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < (columns ? columns : 1); j++)
            workbench_put(b, &t, i, j, size * (2 * workbench_uniform(b) - 1));
    return t;
}

void workbench_run(workbench *b, op *o, bool prepared)
{
    int64_t wanted = cpu_backend.scratch_bytes(o, b->r.threads), tiles = tile_gemm_scratch(b->r.threads);
    int64_t before = b->used, size = wanted > tiles ? wanted : tiles;
    tensor_describe(&b->scratch, "scratch", CLASS_SCRATCH, DTYPE_UINT8, 1, &size);
    b->scratch.address = take(b, size);
    o->scratch = &b->scratch;
    if (prepared)
        assert_int_equal(cpu_backend.prepare(o, b->r.threads), STATUS_OK);
    cpu_backend.kernels[o->kind](o, &b->r);
    b->used = before;
}

double workbench_worst(const workbench *b, const tensor *t, const double *want, int64_t rows, int64_t columns)
{
    double error = 0, largest = 1e-30;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            double e = fabs(workbench_get(b, t, i, j) - want[i * columns + j]), w = fabs(want[i * columns + j]);
            error = e > error || isnan(e) ? e : error;
            largest = w > largest ? w : largest;
        }
    return error / largest;
}

const isa *const workbench_sets[] = {&isa_base, &isa_avx2, &isa_avx512, &isa_avx512_bf16};

int workbench_sets_here(void)
{
    for (int i = 0; i < 4; i++)
        if (workbench_sets[i] == isa_detect())
            return i + 1;
    return 0;
}
