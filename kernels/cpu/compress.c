/* Compresses gradients in independent chunks of 4096 elements (kernels/compress.h). */
#include "kernels/compress.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/compression.h"

/* A tensor with rows divided into parts, each of which becomes one message. */
typedef struct message_parts {
    const tensor *t;
    compress_method method;
    int parts;
    int64_t width, chunks; /* elements of a row; chunks of the largest part */
} message_parts;

static message_parts divide_into_parts(const op *o, const tensor *t)
{
    message_parts d = {.t = t,
                       .method = {(compress_kind)o->at.compression.kind, (double)o->at.compression.density},
                       .parts = compression_parts(o, t),
                       .width = row_length(t)};
    int64_t first, rows;
    shard_rows(&first, &rows, t->shape[0], d.parts, 0);
    d.chunks = (rows * d.width + COMPRESS_CHUNK - 1) / COMPRESS_CHUNK;
    return d;
}

/* Chunk k of a part is elements [*first, *first + count) of the tensor; returns count, at most COMPRESS_CHUNK. */
static int64_t chunk_range(int64_t *first, const message_parts *d, int part, int64_t k)
{
    int64_t row, rows;
    shard_rows(&row, &rows, d->t->shape[0], d->parts, part);
    int64_t left = rows * d->width - k * COMPRESS_CHUNK;
    *first = row * d->width + k * COMPRESS_CHUNK;
    return left < 0 ? 0 : left < COMPRESS_CHUNK ? left : COMPRESS_CHUNK;
}

/* Returns the byte offset of chunk k in its part's message. */
static int64_t chunk_offset(const message_parts *d, int64_t k)
{
    return k * compress_bytes(&d->method, COMPRESS_CHUNK);
}

static float *element_at(const tensor *t, const run_context *r, int64_t i, int64_t width)
{
    return (float *)(void *)row_at(t, r, i / width) + i % width;
}

/* Returns the number of elements of `t` that are contiguous from `first` on, at most n. */
static int64_t contiguous_count(const tensor *t, int64_t first, int64_t n, int64_t width)
{
    int64_t left = tensor_contiguous(t) ? n : width - first % width;
    return left < n ? left : n;
}

static void write_chunk(const tensor *t, const run_context *r, const float *x, int64_t first, int64_t n, int64_t width)
{
    for (int64_t i = 0, run; i < n; i += run) {
        run = contiguous_count(t, first + i, n - i, width);
        memcpy(element_at(t, r, first + i, width), x + i, (size_t)run * sizeof *x);
    }
}

static void encode_chunk(const op *o, const run_context *r, const message_parts *d, int part, int64_t k)
{
    const step_scalars *s = tensor_at(o->in[2], r->arena);
    float x[COMPRESS_CHUNK], inverse = 1 / s->loss_scale;
    int64_t first, n = chunk_range(&first, d, part, k), bytes = n ? compress_bytes(&d->method, n) : 0;
    uint8_t *message = (uint8_t *)row_at(o->out[0], r, part) + chunk_offset(d, k);
    for (int64_t i = 0, run; i < n; i += run) {
        int64_t there = contiguous_count(o->in[0], first + i, n - i, d->width);
        run = contiguous_count(o->in[1], first + i, there, d->width);
        const float *gradient = element_at(o->in[0], r, first + i, d->width);
        const float *feedback = element_at(o->in[1], r, first + i, d->width);
        for (int64_t j = 0; j < run; j++)
            x[i + j] = gradient[j] * inverse + feedback[j];
    }
    if (!dtype_all_finite(DTYPE_FP32, x, n))
        memset(message, 0xff, (size_t)bytes);
    else if (n > 0)
        compress_encode(message, x, &d->method, n);
    write_chunk(o->out[1], r, x, first, n, d->width);
    /* Zero the rest of the message: a part may have fewer rows than the first. */
    int64_t end = k == d->chunks - 1 ? o->out[0]->shape[1] : chunk_offset(d, k + 1);
    memset(message + bytes, 0, (size_t)(end - chunk_offset(d, k) - bytes));
}

void cpu_compress(const op *o, const run_context *r)
{
    const message_parts d = divide_into_parts(o, o->in[0]);
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(o->in[0]))) schedule(static)
    for (int64_t i = 0; i < d.parts * d.chunks; i++)
        encode_chunk(o, r, &d, (int)(i / d.chunks), i % d.chunks);
}

static void decode_chunk(const op *o, const run_context *r, const message_parts *d, int part, int64_t k)
{
    const step_scalars *s = tensor_at(o->in[1], r->arena);
    float x[COMPRESS_CHUNK], sum[COMPRESS_CHUNK] = {0};
    int64_t first, n = chunk_range(&first, d, part, k);
    for (int64_t m = 0; n > 0 && m < o->at.compression.messages; m++) {
        bool sound = compress_decode(x, row_at(o->in[0], r, m * d->parts + part) + chunk_offset(d, k), &d->method, n);
        for (int64_t i = 0; i < n; i++)
            sum[i] = !sound ? NAN : m == 0 ? x[i] : sum[i] + x[i];
    }
    for (int64_t i = 0; i < n; i++)
        sum[i] *= s->loss_scale;
    write_chunk(o->out[0], r, sum, first, n, d->width);
}

void cpu_decompress(const op *o, const run_context *r)
{
    const message_parts d = divide_into_parts(o, o->out[0]);
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(o->out[0]) * o->at.compression.messages))     \
    schedule(static)
    for (int64_t i = 0; i < d.parts * d.chunks; i++)
        decode_chunk(o, r, &d, (int)(i / d.chunks), i % d.chunks);
}

void cpu_store_feedback(const op *o, const run_context *r)
{
    const float *control = tensor_at(o->in[1], r->arena);
    const tensor *kept = o->in[0];
    if (control[CONTROL_SKIP] != 0)
        return;
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(kept))) schedule(static)
    for (int64_t i = 0; i < kept->shape[0]; i++)
        memcpy(row_at(o->out[0], r, i), row_at(kept, r, i), (size_t)row_length(kept) * sizeof(float));
}
