/* Compressed gradients, naively: what is written is defined in fp32 (scales, levels, thresholds), so that messages must
 * agree to the last bit. Shares nothing with kernels/compress.c but the layout of a message, which it spells out
 * again. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/compress.h"
#include "memory/dtype.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/oracle/reference.h"

enum { MOST = 4096 };

static double narrow(double x) /* to bf16, but not to infinity */
{
    uint16_t bits = float_to_bf16((float)x);
    return bf16_to_float((bits & 0x7fff) == 0x7f80 ? (uint16_t)(bits - 1) : bits);
}

typedef struct bytes {
    uint8_t *at;
    int bit;
} bytes;

static void put(bytes *b, unsigned value, int bits)
{
    for (int i = 0; i < bits; i++, b->bit++) {
        if (b->bit % 8 == 0)
            b->at[b->bit / 8] = 0;
        b->at[b->bit / 8] |= (uint8_t)((value >> i & 1) << b->bit % 8);
    }
}

static unsigned get(bytes *b, int bits)
{
    unsigned value = 0;
    for (int i = 0; i < bits; i++, b->bit++)
        value |= (unsigned)(b->at[b->bit / 8] >> b->bit % 8 & 1) << i;
    return value;
}

static void align(bytes *b)
{
    b->bit = (b->bit + 7) / 8 * 8;
}

static void put_float(bytes *b, double x)
{
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    put(b, bits, 32);
}

static double get_float(bytes *b)
{
    uint32_t bits = get(b, 32);
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

static void put_bf16(bytes *b, double x)
{
    put(b, float_to_bf16((float)narrow(x)), 16);
}

static double get_bf16(bytes *b)
{
    return (double)bf16_to_float((uint16_t)get(b, 16));
}

/* A method's block: how many elements, and how they are written and read. */
typedef struct coder {
    int block;
    void (*write)(bytes *b, const double *x, int n, const op *o);
    void (*read)(double *x, bytes *b, int n, const op *o);
} coder;

static void write_bf16(bytes *b, const double *x, int n, const op *o)
{
    (void)o;
    for (int i = 0; i < n; i++)
        put_bf16(b, x[i]);
}

static void read_bf16(double *x, bytes *b, int n, const op *o)
{
    (void)o;
    for (int i = 0; i < n; i++)
        x[i] = get_bf16(b);
}

static int bits_of(const op *o)
{
    return o->at.compression.kind == COMPRESS_INT8 ? 8 : 4;
}

static void write_integers(bytes *b, const double *x, int n, const op *o)
{
    int bits = bits_of(o), top = bits == 8 ? 127 : 7;
    float largest = 0;
    for (int i = 0; i < n; i++)
        largest = fabs(x[i]) > (double)largest ? (float)fabs(x[i]) : largest;
    float scale = largest / (float)top;
    put_float(b, (double)scale);
    for (int i = 0; i < n; i++) {
        float q = scale > 0 ? rintf((float)x[i] / scale) : 0;
        int whole = q > (float)top ? top : q < (float)-top ? -top : (int)q;
        put(b, (unsigned)(bits == 8 ? whole & 255 : whole + 8), bits);
    }
    if (bits == 4 && n % 2)
        put(b, 8, 4);
    align(b);
}

static void read_integers(double *x, bytes *b, int n, const op *o)
{
    int bits = bits_of(o);
    double scale = get_float(b);
    for (int i = 0; i < n; i++) {
        int q = (int)get(b, bits);
        x[i] = (double)(float)(scale * (bits == 8 ? (q > 127 ? q - 256 : q) : q - 8));
    }
    align(b);
}

/* The k largest by magnitude, of equals the first: their places in ascending order. */
static void largest(int *indices, const double *x, int n, int k)
{
    AUTO_FREE bool *taken = must_calloc((unsigned long)n, sizeof *taken);
    for (int j = 0; j < k; j++) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (!taken[i] && (best < 0 || fabs(x[i]) > fabs(x[best])))
                best = i;
        taken[best] = true;
    }
    for (int i = 0, j = 0; i < n; i++)
        if (taken[i])
            indices[j++] = i;
}

static int share(const op *o, int n)
{
    int k = (int)ceil((double)o->at.compression.density * n);
    return k < 1 ? 1 : k > n ? n : k;
}

static void write_topk(bytes *b, const double *x, int n, const op *o)
{
    int indices[MOST], k = share(o, n);
    double least = INFINITY, most = 0, sum[2] = {0, 0}, count[2] = {0, 0};
    largest(indices, x, n, k);
    for (int j = 0; j < k; j++) {
        least = fmin(least, fabs(x[indices[j]]));
        most = fmax(most, fabs(x[indices[j]]));
    }
    double middle = (double)((float)least + ((float)most - (float)least) / 2);
    for (int j = 0; j < k; j++) {
        bool high = fabs(x[indices[j]]) > middle;
        sum[high] += fabs(x[indices[j]]);
        count[high]++;
    }
    for (int i = 0; i < 2; i++)
        put_bf16(b, count[i] > 0 ? sum[i] / count[i] : 0);
    for (int j = 0; j < k; j++)
        put(b, (unsigned)indices[j], 12);
    align(b);
    for (int j = 0; j < k; j++)
        put(b, (unsigned)((x[indices[j]] < 0) + 2 * (fabs(x[indices[j]]) > middle)), 2);
    align(b);
}

static void read_topk(double *x, bytes *b, int n, const op *o)
{
    int indices[MOST], k = share(o, n);
    double level[2] = {get_bf16(b), 0};
    level[1] = get_bf16(b);
    for (int j = 0; j < k; j++)
        indices[j] = (int)get(b, 12);
    align(b);
    for (int i = 0; i < n; i++)
        x[i] = 0;
    for (int j = 0; j < k; j++) {
        unsigned code = get(b, 2);
        x[indices[j]] = code & 1 ? -level[code >> 1] : level[code >> 1];
    }
    align(b);
}

static double frequency(int k, int i)
{
    return cos(3.14159265358979323846 * (2 * i + 1) * k / 128) * sqrt((k ? 2 : 1) / 64.0);
}

static void write_dct(bytes *b, const double *x, int n, const op *o)
{
    int indices[64], k = share(o, 64);
    double c[64];
    for (int f = 0; f < 64; f++) {
        double sum = 0;
        for (int i = 0; i < n; i++)
            sum += x[i] * frequency(f, i);
        c[f] = (double)(float)sum;
    }
    largest(indices, c, 64, k);
    for (int j = 0; j < k; j++)
        put(b, (unsigned)indices[j], 6);
    align(b);
    for (int j = 0; j < k; j++)
        put_bf16(b, c[indices[j]]);
}

static void read_dct(double *x, bytes *b, int n, const op *o)
{
    int indices[64], k = share(o, 64);
    for (int j = 0; j < k; j++)
        indices[j] = (int)get(b, 6);
    align(b);
    for (int i = 0; i < n; i++)
        x[i] = 0;
    for (int j = 0; j < k; j++) {
        double c = get_bf16(b);
        for (int i = 0; i < n; i++)
            x[i] += c * frequency(indices[j], i);
    }
}

static const coder coders[COMPRESS_KINDS] = {
    [COMPRESS_BF16] = {4096, write_bf16, read_bf16},
    [COMPRESS_INT8] = {256, write_integers, read_integers},
    [COMPRESS_INT4] = {64, write_integers, read_integers},
    [COMPRESS_TOPK] = {4096, write_topk, read_topk},
    [COMPRESS_DCT] = {64, write_dct, read_dct},
};

/* What a part of a message is about: elements of a tensor's rows, and its bytes. */
typedef struct part {
    int64_t first, count; /* elements */
    int parts;
} part;

static part part_of(const op *o, const tensor *t, int i)
{
    part p = {.parts = t->dims == 1 || o->where.owner >= 0 ? 1 : o->where.group_size};
    int64_t row, rows, width = t->dims > 1 ? t->shape[1] : 1;
    shard_rows(&row, &rows, t->shape[0], p.parts, i);
    p.first = row * width;
    p.count = rows * width;
    return p;
}

static double *element(const tensor *t, const run_context *r, int64_t i)
{
    int64_t width = t->dims > 1 ? t->shape[1] : 1;
    return &reference_row(t, r, i / width)[i % width];
}

/* Chunks that are not finite are not written as the method says. */
static bool chunk_is_finite(const double *x, int64_t count, int64_t at)
{
    for (int64_t i = at / MOST * MOST; i < count && i < at / MOST * MOST + MOST; i++)
        if (!isfinite((float)x[i]))
            return false;
    return true;
}

static void write_part(bytes *b, double *x, int64_t count, const op *o)
{
    const coder *c = &coders[o->at.compression.kind];
    double sent[MOST];
    for (int64_t at = 0; at < count; at += c->block) {
        int n = count - at < c->block ? (int)(count - at) : c->block, begin = b->bit / 8;
        bool sound = chunk_is_finite(x, count, at);
        if (sound) {
            c->write(b, x + at, n, o);
        } else {
            double zero[MOST] = {0};
            c->write(b, zero, n, o);
            memset(b->at + begin, 0xff, (size_t)(b->bit / 8 - begin));
        }
        bytes again = {b->at + begin, 0};
        c->read(sent, &again, n, o);
        for (int i = 0; i < n; i++)
            x[at + i] = sound ? (double)(float)(x[at + i] - (double)(float)sent[i]) : x[at + i];
    }
}

void reference_compress(const op *o, const run_context *r)
{
    const tensor *gradient = o->in[0], *message = o->out[0];
    const step_scalars *s = tensor_at(o->in[2], r->arena);
    memset(tensor_at(message, r->arena), 0, (size_t)tensor_bytes(message));
    for (int i = 0; i < part_of(o, gradient, 0).parts; i++) {
        part p = part_of(o, gradient, i);
        AUTO_FREE double *x = must_calloc((unsigned long)p.count + 1, sizeof *x);
        for (int64_t k = 0; k < p.count; k++)
            x[k] = (double)(float)(*element(gradient, r, p.first + k) / (double)s->loss_scale +
                                   *element(o->in[1], r, p.first + k));
        bytes b = {(uint8_t *)tensor_at(message, r->arena) + i * message->shape[1], 0};
        write_part(&b, x, p.count, o);
        for (int64_t k = 0; k < p.count; k++)
            *element(o->out[1], r, p.first + k) = x[k];
    }
}

void reference_decompress(const op *o, const run_context *r)
{
    const tensor *messages = o->in[0], *y = o->out[0];
    const step_scalars *s = tensor_at(o->in[1], r->arena);
    const coder *c = &coders[o->at.compression.kind];
    int parts = part_of(o, y, 0).parts;
    for (int i = 0; i < parts; i++) {
        part p = part_of(o, y, i);
        for (int64_t k = 0; k < p.count; k++)
            *element(y, r, p.first + k) = 0;
        for (int64_t m = 0; m < o->at.compression.messages; m++) {
            bytes b = {(uint8_t *)tensor_at(messages, r->arena) + (m * parts + i) * messages->shape[1], 0};
            for (int64_t at = 0; at < p.count; at += c->block) {
                double x[MOST];
                int n = p.count - at < c->block ? (int)(p.count - at) : c->block;
                c->read(x, &b, n, o);
                for (int k = 0; k < n; k++)
                    *element(y, r, p.first + at + k) += x[k] * (double)s->loss_scale;
            }
        }
    }
}

void reference_store_feedback(const op *o, const run_context *r)
{
    const tensor *kept = o->in[0];
    if (reference_row(o->in[1], r, 0)[CONTROL_SKIP] != 0)
        return;
    for (int64_t i = 0; i < kept->shape[0]; i++)
        memcpy(reference_row(o->out[0], r, i), reference_row(kept, r, i),
               (size_t)reference_width(kept) * sizeof(double));
}
