/* Backward attention, queries in the lanes as in attention.c. With P^T = exp(scale K Q^T - lse), delta = sum_d dy y:
 *
 *   dP^T[keys, queries] = V dY^T                       rows V,   lanes dY^T
 *   dS^T = P^T (dP^T - delta) scale
 *   dV[keys, d] += P^T dY,   dK[keys, d] += dS^T Q     rows P^T, dS^T; lanes dY, Q
 *   dQ^T[d, queries] += K^T dS^T                       rows K^T, lanes dS^T
 *
 * A thread owns a (sample, kv head): key tiles outside, the heads that share them and their query tiles inside, so that
 * dK and dV stay in the cache and every sum has one order. Q and dY are packed once a head, dQ^T collects in working
 * memory [group][d][sequence].
 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/heads.h"

/* One thread's working memory. [n]: the padded queries of a sample. */
typedef struct backward_memory {
    char *q_lanes;           /* group x [n / P][d_lanes][P]: Q */
    char *q_across;          /* group x tiles x [d / P][64][P]: Q^T */
    char *dy_lanes;          /* group x [n / P][e_lanes][P]: dY */
    char *dy_across;         /* group x tiles x [e / P][64][P]: dY^T */
    float *dq;               /* group x tiles x [d][64] */
    float *lse, *delta;      /* group x [n]; lse to base 2 */
    attention_range *ranges; /* [tiles] */
    attention_tile *of;      /* [tiles] */
    char *k, *v;             /* rows [64][d_even], [64][e_even] */
    char *k_across;          /* rows [d][64]: K^T */
    float *dk, *dv;          /* [64][d_lanes], [64][e_lanes] */
    float *s, *dp;           /* [64][64] */
    char *p, *ds;            /* rows [64][64] */
    char *ds_lanes;          /* lanes [64][64] */
    int64_t n;               /* the padded queries of a sample */
    int64_t count;           /* tiles of the sample at hand */
} backward_memory;

/* One thread's work on an op: all its functions read this, and write what `m` points to. */
typedef struct backward_work {
    const op *o;
    const run_context *r;
    const tile_loops *t;
    const attention_shape *a;
    backward_memory *m;
} backward_work;

static char *take(char **at, int64_t bytes)
{
    char *start = *at;
    *at += (bytes + 63) / 64 * 64;
    return start;
}

static int64_t backward_layout(backward_memory *m, char *start, const attention_shape *a, int64_t bytes)
{
    char *at = start;
    int64_t n = a->tiles * TILE_QUERIES, tile = TILE_QUERIES * TILE_KEYS;
    m->n = n;
    m->q_lanes = take(&at, a->group * n * a->d_lanes * bytes);
    m->dy_lanes = take(&at, a->group * n * a->e_lanes * bytes);
    m->q_across = take(&at, a->group * n * a->d_even * bytes);
    m->dy_across = take(&at, a->group * n * a->e_even * bytes);
    m->dq = (float *)(void *)take(&at, a->group * n * a->d_even * 4);
    m->lse = (float *)(void *)take(&at, a->group * n * 4);
    m->delta = (float *)(void *)take(&at, a->group * n * 4);
    m->ranges = (attention_range *)(void *)take(&at, a->tiles * (int64_t)sizeof *m->ranges);
    m->of = (attention_tile *)(void *)take(&at, a->tiles * (int64_t)sizeof *m->of);
    m->k = take(&at, TILE_KEYS * a->d_even * bytes);
    m->v = take(&at, TILE_KEYS * a->e_even * bytes);
    m->k_across = take(&at, TILE_KEYS * a->d * bytes);
    m->dk = (float *)(void *)take(&at, TILE_KEYS * a->d_lanes * 4);
    m->dv = (float *)(void *)take(&at, TILE_KEYS * a->e_lanes * 4);
    m->s = (float *)(void *)take(&at, tile * 4);
    m->dp = (float *)(void *)take(&at, tile * 4);
    m->p = take(&at, tile * bytes);
    m->ds = take(&at, tile * bytes);
    m->ds_lanes = take(&at, tile * bytes);
    return at - start;
}

int64_t attention_grad_scratch_bytes(const op *o, int threads)
{
    backward_memory m;
    attention_shape a = attention_shape_of(o, o->in[1], o->in[3]);
    return (threads > 1 ? threads : 1) * backward_layout(&m, NULL, &a, 4);
}

/* Packs the rows of `of` that are queries of a sample, head `head`'s elements of them, in both layouts: lanes[n /
 * P][wide][P], across[tiles][even / P][64][P]. What is beyond the queries in a tile are zeros: lanes are products' k
 * there, and the mask leaves zeros as they are. */
static void pack_rows(const backward_work *w, char *lanes, char *across, const tensor *of, int64_t head, bool value)
{
    const tile_loops *t = w->t;
    const attention_shape *a = w->a;
    int64_t size = value ? a->e : a->d, even = value ? a->e_even : a->d_even, wide = value ? a->e_lanes : a->d_lanes;
    for (int64_t tile = 0; tile < w->m->count; tile++) {
        const attention_tile *q = &w->m->of[tile];
        int64_t first = tile * TILE_QUERIES, whole = q->count + q->count % t->pair;
        char *to = lanes + first * wide * t->bytes, *to_across = across + first * even * t->bytes;
        const char *x = row_at(of, w->r, q->row) + head * size * dtype_bytes((dtype)of->type);
        memset(to + whole * wide * t->bytes, 0, (size_t)((TILE_QUERIES - whole) * wide * t->bytes));
        t->lanes(to, wide, x, of->pitch, q->count, size);
        if (q->count < TILE_QUERIES)
            memset(to_across, 0, (size_t)(TILE_QUERIES * even * t->bytes));
        t->lanes_transposed(to_across, TILE_QUERIES, x, of->pitch, q->count, size);
    }
}

/* lse, to base 2, and delta of a tile's queries. */
static void pack_statistics(const backward_work *w, float *own_lse, float *delta, int64_t head, const attention_tile *q)
{
    const op *o = w->o;
    const run_context *r = w->r;
    const tensor *dy = o->in[0], *y = o->in[4];
    int64_t at = head * w->a->e * dtype_bytes((dtype)dy->type);
    int64_t run = o->in[5]->shape[1];
    const float *lse =
        (const float *)(const void *)row_at(o->in[5], r, q->row / run * o->at.heads + head) + q->row % run;
    for (int64_t i = 0; i < TILE_QUERIES; i++) {
        bool is = i < q->count;
        own_lse[i] = is ? lse[i] * (float)ATTENTION_LOG2_E : 0;
        delta[i] = is ? w->t->dot(row_at(dy, r, q->row + i) + at, row_at(y, r, q->row + i) + at, w->a->e) : 0;
    }
}

/* Everything that stays the same along the key tiles: Q, dY, lse, delta of head g of the group. */
static void pack_head(const backward_work *w, int64_t head, int64_t g)
{
    const attention_shape *a = w->a;
    const backward_memory *m = w->m;
    int64_t n = m->n, bytes = w->t->bytes;
    pack_rows(w, m->q_lanes + g * n * a->d_lanes * bytes, m->q_across + g * n * a->d_even * bytes, w->o->in[1], head,
              false);
    pack_rows(w, m->dy_lanes + g * n * a->e_lanes * bytes, m->dy_across + g * n * a->e_even * bytes, w->o->in[0], head,
              true);
    for (int64_t tile = 0; tile < m->count; tile++)
        pack_statistics(w, m->lse + g * n + tile * TILE_QUERIES, m->delta + g * n + tile * TILE_QUERIES, head,
                        &m->of[tile]);
    memset(m->dq + g * n * a->d_even, 0, (size_t)(n * a->d_even) * 4);
}

static void backward_tile(const backward_work *w, const tile_mask *mask, int64_t g, int64_t first, int64_t keys)
{
    const tile_loops *t = w->t;
    const attention_shape *a = w->a;
    const backward_memory *m = w->m;
    int64_t at = g * m->n + first; /* in rows of the group */
    float *dq = m->dq + at * a->d_even;
    t->product(m->s, TILE_QUERIES, m->k, a->d_even, t->pair, m->q_across + at * a->d_even * t->bytes, TILE_QUERIES,
               keys, TILE_QUERIES, a->d, false);
    t->product(m->dp, TILE_QUERIES, m->v, a->e_even, t->pair, m->dy_across + at * a->e_even * t->bytes, TILE_QUERIES,
               keys, TILE_QUERIES, a->e, false);
    static _Alignas(64) const float none[TILE_QUERIES] = {0};
    if (a->cap > 0)
        t->cap_grad(m->s, m->dp, m->delta + at, keys, a->scale / a->cap);
    t->softmax_grad(m->p, m->ds, m->ds_lanes, m->s, m->dp, m->lse + at, a->cap > 0 ? none : m->delta + at, mask, keys,
                    (float)((double)a->exponent * ATTENTION_LOG2_E), a->scale);
    t->product(m->dv, a->e_lanes, m->p, TILE_QUERIES, t->pair, m->dy_lanes + at * a->e_lanes * t->bytes, a->e_lanes,
               keys, a->e_lanes, TILE_QUERIES, true);
    t->product(m->dk, a->d_lanes, m->ds, TILE_QUERIES, t->pair, m->q_lanes + at * a->d_lanes * t->bytes, a->d_lanes,
               keys, a->d_lanes, TILE_QUERIES, true);
    t->product(dq, TILE_QUERIES, m->k_across, TILE_KEYS, t->pair, m->ds_lanes, TILE_QUERIES, a->d, TILE_QUERIES, keys,
               true);
}

static void backward_keys(const backward_work *w, int64_t sample, int64_t kv, int64_t key)
{
    const run_context *r = w->r;
    const tile_loops *t = w->t;
    const attention_shape *a = w->a;
    const backward_memory *m = w->m;
    const tensor *k = w->o->in[2], *v = w->o->in[3], *dk = w->o->out[1], *dv = w->o->out[2];
    const row_loops *loops = isa_of(r)->rows[k->type];
    int64_t keys = a->sequence - key < TILE_KEYS ? a->sequence - key : TILE_KEYS, bytes = dtype_bytes((dtype)k->type);
    int64_t token = sample * a->sequence + key, k_at = kv * a->d * bytes, v_at = kv * a->e * bytes;
    t->rows(m->k, a->d_even, row_at(k, r, token) + k_at, k->pitch, keys, a->d);
    t->rows(m->v, a->e_even, row_at(v, r, token) + v_at, v->pitch, keys, a->e);
    t->rows_transposed(m->k_across, TILE_KEYS, row_at(k, r, token) + k_at, k->pitch, keys, a->d);
    memset(m->dk, 0, (size_t)(TILE_KEYS * a->d_lanes) * 4);
    memset(m->dv, 0, (size_t)(TILE_KEYS * a->e_lanes) * 4);
    for (int64_t g = 0; g < a->group; g++)
        for (int64_t tile = 0; tile < m->count; tile++) {
            tile_mask mask;
            if (attention_visible(&mask, &m->ranges[tile], key, keys))
                backward_tile(w, &mask, g, tile * TILE_QUERIES, keys);
        }
    for (int64_t i = 0; i < keys; i++) {
        loops->from_float(row_at(dk, r, token + i) + k_at, m->dk + i * a->d_lanes, a->d);
        loops->from_float(row_at(dv, r, token + i) + v_at, m->dv + i * a->e_lanes, a->e);
    }
}

static void backward_head(const backward_work *w, int64_t sample, int64_t kv)
{
    const op *o = w->o;
    const run_context *r = w->r;
    const attention_shape *a = w->a;
    backward_memory *m = w->m;
    const int32_t *document_start = o->in[6] ? tensor_at(o->in[6], r->arena) : NULL;
    const int32_t *places = o->in[7] ? tensor_at(o->in[7], r->arena) : NULL;
    const tensor *dq = o->out[0];
    const int64_t first = heads_first((int32_t)kv, a->heads, a->kv_heads);
    float ones[TILE_QUERIES];
    for (m->count = 0; attention_tile_of(&m->of[m->count], a, places, sample, m->count); m->count++)
        attention_range_of(&m->ranges[m->count], a, document_start, &m->of[m->count]);
    for (int64_t g = 0; g < a->group; g++)
        pack_head(w, first + g, g);
    for (int64_t key = 0; key < a->sequence; key += TILE_KEYS)
        backward_keys(w, sample, kv, key);
    for (int i = 0; i < TILE_QUERIES; i++)
        ones[i] = 1;
    for (int64_t g = 0; g < a->group; g++)
        for (int64_t tile = 0; tile < m->count; tile++) {
            const attention_tile *q = &m->of[tile];
            char *to = row_at(dq, r, q->row) + (first + g) * a->d * dtype_bytes((dtype)dq->type);
            w->t->transposed_out(to, dq->pitch, m->dq + (g * m->n + tile * TILE_QUERIES) * a->d_even, TILE_QUERIES,
                                 ones, a->d, q->count);
        }
}

/* A head's tokens are summed one after another, in fp64. */
void cpu_attention_sinks_grad(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0], *y = o->in[1], *lse = o->in[2], *sinks = o->in[3];
    const isa *set = isa_of(r);
    int64_t heads = o->at.heads, run = lse->shape[1], e = dy->shape[1] / heads, bytes = dtype_bytes((dtype)dy->type);
    float *to = tensor_at(o->out[0], r->arena);
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(dy))) schedule(static)
    for (int64_t h = 0; h < heads; h++) {
        double sum = 0;
        float sink;
        set->rows[dy->type]->to_float(&sink, (const char *)tensor_at(sinks, r->arena) + h * bytes, 1);
        for (int64_t t = 0; t < dy->shape[0]; t++) {
            const float *own = (const float *)(const void *)row_at(lse, r, t / run * heads + h);
            sum -= (double)(expf(sink - own[t % run]) * set->tiles[dy->type]->dot(row_at(dy, r, t) + h * e * bytes,
                                                                                  row_at(y, r, t) + h * e * bytes, e));
        }
        to[h] = (o->at.accumulate ? to[h] : 0) + (float)sum;
    }
}

void cpu_attention_grad(const op *o, const run_context *r)
{
    const tensor *q = o->in[1], *v = o->in[3];
    const attention_shape a = attention_shape_of(o, q, v);
    const tile_loops *t = isa_of(r)->tiles[q->type];
    backward_memory none;
    int64_t each = backward_layout(&none, NULL, &a, 4);
#pragma omp parallel num_threads(parallel_threads(r, operand_elements(o, 1, 3) * 8))
    {
        backward_memory m;
        const backward_work w = {o, r, t, &a, &m};
        backward_layout(&m, (char *)tensor_at(o->scratch, r->arena) + omp_get_thread_num() * each, &a, t->bytes);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < a.samples * a.kv_heads; i++)
            backward_head(&w, i / a.kv_heads, i % a.kv_heads);
    }
}
