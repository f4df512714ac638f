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

/* One thread's working memory. [n]: the padded sequence. */
typedef struct backward_memory {
    char *q_lanes;                                      /* group x [n / P][d_lanes][P]: Q */
    char *q_across;                                     /* group x tiles x [d / P][64][P]: Q^T */
    char *dy_lanes;                                     /* as q_lanes */
    char *dy_across;                                    /* as q_across */
    float *dq;                                          /* group x tiles x [d][64] */
    float *lse, *delta;                                 /* group x [n]; lse to base 2 */
    attention_range *ranges;                            /* [tiles] */
    char *k, *v;                                        /* rows [64][d_even] */
    char *k_across;                                     /* rows [d][64]: K^T */
    float *dk, *dv;                                     /* [64][d_lanes] */
    float *s, *dp;                                      /* [64][64] */
    char *p, *ds;                                       /* rows [64][64] */
    char *ds_lanes;                                     /* lanes [64][64] */
    int64_t head_lanes, head_across, head_dq, head_row; /* elements from one head of the group to the next */
} backward_memory;

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
    m->head_lanes = n * a->d_lanes;
    m->head_across = m->head_dq = n * a->d_even;
    m->head_row = n;
    m->q_lanes = take(&at, a->group * m->head_lanes * bytes);
    m->dy_lanes = take(&at, a->group * m->head_lanes * bytes);
    m->q_across = take(&at, a->group * m->head_across * bytes);
    m->dy_across = take(&at, a->group * m->head_across * bytes);
    m->dq = (float *)(void *)take(&at, a->group * m->head_dq * 4);
    m->lse = (float *)(void *)take(&at, a->group * n * 4);
    m->delta = (float *)(void *)take(&at, a->group * n * 4);
    m->ranges = (attention_range *)(void *)take(&at, a->tiles * (int64_t)sizeof *m->ranges);
    m->k = take(&at, TILE_KEYS * a->d_even * bytes);
    m->v = take(&at, TILE_KEYS * a->d_even * bytes);
    m->k_across = take(&at, TILE_KEYS * a->d * bytes);
    m->dk = (float *)(void *)take(&at, TILE_KEYS * a->d_lanes * 4);
    m->dv = (float *)(void *)take(&at, TILE_KEYS * a->d_lanes * 4);
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
    attention_shape a = attention_shape_of(o, o->in[1]);
    return (threads > 1 ? threads : 1) * backward_layout(&m, NULL, &a, 4);
}

/* Everything that stays the same along the key tiles: Q, dY, lse, delta of head g of the group. */
static void pack_head(const op *o, const run_context *r, const tile_loops *t, const attention_shape *a,
                      const backward_memory *m, int64_t sample, int64_t head, int64_t g)
{
    const tensor *dy = o->in[0], *qkv = o->in[1], *y = o->in[2];
    int64_t token = sample * a->sequence, n = a->tiles * TILE_QUERIES, bytes = dtype_bytes((dtype)qkv->type);
    const char *q = row_at(qkv, r, token) + head * a->d * bytes, *dy_row = row_at(dy, r, token) + head * a->d * bytes;
    const float *lse = (const float *)(const void *)row_at(o->in[3], r, head) + token;
    float *own_lse = m->lse + g * m->head_row, *delta = m->delta + g * m->head_row;
    char *q_lanes = m->q_lanes + g * m->head_lanes * t->bytes, *dy_lanes = m->dy_lanes + g * m->head_lanes * t->bytes;
    /* queries beyond the sequence: lanes are products' k there, so that they must be zeros */
    int64_t whole = (a->sequence + a->sequence % t->pair) * a->d_lanes;
    memset(q_lanes + whole * t->bytes, 0, (size_t)((m->head_lanes - whole) * t->bytes));
    memset(dy_lanes + whole * t->bytes, 0, (size_t)((m->head_lanes - whole) * t->bytes));
    t->lanes(q_lanes, a->d_lanes, q, qkv->pitch, a->sequence, a->d);
    t->lanes(dy_lanes, a->d_lanes, dy_row, dy->pitch, a->sequence, a->d);
    for (int64_t tile = 0; tile < a->tiles; tile++) {
        int64_t first = tile * TILE_QUERIES,
                count = a->sequence - first < TILE_QUERIES ? a->sequence - first : TILE_QUERIES;
        int64_t at = (g * m->head_across + first * a->d_even) * t->bytes;
        if (count < TILE_QUERIES) { /* queries beyond the sequence: zeros, which the mask leaves zeros */
            memset(m->q_across + at, 0, (size_t)(TILE_QUERIES * a->d_even * t->bytes));
            memset(m->dy_across + at, 0, (size_t)(TILE_QUERIES * a->d_even * t->bytes));
        }
        t->lanes_transposed(m->q_across + at, TILE_QUERIES, q + first * qkv->pitch * bytes, qkv->pitch, count, a->d);
        t->lanes_transposed(m->dy_across + at, TILE_QUERIES, dy_row + first * dy->pitch * bytes, dy->pitch, count,
                            a->d);
    }
    for (int64_t i = 0; i < n; i++) {
        own_lse[i] = i < a->sequence ? lse[i] * (float)ATTENTION_LOG2_E : 0;
        delta[i] = i < a->sequence
                       ? t->dot(dy_row + i * dy->pitch * bytes, row_at(y, r, token + i) + head * a->d * bytes, a->d)
                       : 0;
    }
    memset(m->dq + g * m->head_dq, 0, (size_t)m->head_dq * 4);
}

static void backward_tile(const tile_loops *t, const attention_shape *a, const backward_memory *m,
                          const tile_mask *mask, int64_t g, int64_t first, int64_t keys)
{
    int64_t across = (g * m->head_across + first * a->d_even) * t->bytes,
            lanes = (g * m->head_lanes + first * a->d_lanes) * t->bytes;
    float *dq = m->dq + g * m->head_dq + first * a->d_even;
    t->product(m->s, TILE_QUERIES, m->k, a->d_even, t->pair, m->q_across + across, TILE_QUERIES, keys, TILE_QUERIES,
               a->d, false);
    t->product(m->dp, TILE_QUERIES, m->v, a->d_even, t->pair, m->dy_across + across, TILE_QUERIES, keys, TILE_QUERIES,
               a->d, false);
    t->softmax_grad(m->p, m->ds, m->ds_lanes, m->s, m->dp, m->lse + g * m->head_row + first,
                    m->delta + g * m->head_row + first, mask, keys, (float)((double)a->scale * ATTENTION_LOG2_E),
                    a->scale);
    t->product(m->dv, a->d_lanes, m->p, TILE_QUERIES, t->pair, m->dy_lanes + lanes, a->d_lanes, keys, a->d_lanes,
               TILE_QUERIES, true);
    t->product(m->dk, a->d_lanes, m->ds, TILE_QUERIES, t->pair, m->q_lanes + lanes, a->d_lanes, keys, a->d_lanes,
               TILE_QUERIES, true);
    t->product(dq, TILE_QUERIES, m->k_across, TILE_KEYS, t->pair, m->ds_lanes, TILE_QUERIES, a->d, TILE_QUERIES, keys,
               true);
}

static void backward_keys(const op *o, const run_context *r, const tile_loops *t, const attention_shape *a,
                          const backward_memory *m, int64_t sample, int64_t kv, int64_t key)
{
    const tensor *qkv = o->in[1], *dqkv = o->out[0];
    const row_loops *loops = isa_of(r)->rows[qkv->type];
    int64_t keys = a->sequence - key < TILE_KEYS ? a->sequence - key : TILE_KEYS, bytes = dtype_bytes((dtype)qkv->type);
    int64_t token = sample * a->sequence + key, k_at = (a->heads + kv) * a->d * bytes,
            v_at = k_at + a->kv_heads * a->d * bytes;
    const char *row = row_at(qkv, r, token);
    t->rows(m->k, a->d_even, row + k_at, qkv->pitch, keys, a->d);
    t->rows(m->v, a->d_even, row + v_at, qkv->pitch, keys, a->d);
    t->rows_transposed(m->k_across, TILE_KEYS, row + k_at, qkv->pitch, keys, a->d);
    memset(m->dk, 0, (size_t)(TILE_KEYS * a->d_lanes) * 4);
    memset(m->dv, 0, (size_t)(TILE_KEYS * a->d_lanes) * 4);
    for (int64_t g = 0; g < a->group; g++)
        for (int64_t first = key; first < a->sequence; first += TILE_QUERIES) {
            tile_mask mask;
            if (attention_visible(&mask, m->ranges + first / TILE_QUERIES, key, keys))
                backward_tile(t, a, m, &mask, g, first, keys);
        }
    for (int64_t i = 0; i < keys; i++) {
        loops->from_float(row_at(dqkv, r, token + i) + k_at, m->dk + i * a->d_lanes, a->d);
        loops->from_float(row_at(dqkv, r, token + i) + v_at, m->dv + i * a->d_lanes, a->d);
    }
}

static void backward_head(const op *o, const run_context *r, const tile_loops *t, const attention_shape *a,
                          const backward_memory *m, int64_t sample, int64_t kv)
{
    const int32_t *document_start =
        o->in[4] ? (const int32_t *)tensor_at(o->in[4], r->arena) + sample * a->sequence : NULL;
    const tensor *dqkv = o->out[0];
    float ones[TILE_QUERIES];
    for (int64_t first = 0; first < a->sequence; first += TILE_QUERIES)
        attention_range_of(m->ranges + first / TILE_QUERIES, a, document_start, first);
    for (int64_t g = 0; g < a->group; g++)
        pack_head(o, r, t, a, m, sample, kv * a->group + g, g);
    for (int64_t key = 0; key < a->sequence; key += TILE_KEYS)
        backward_keys(o, r, t, a, m, sample, kv, key);
    for (int i = 0; i < TILE_QUERIES; i++)
        ones[i] = 1;
    for (int64_t g = 0; g < a->group; g++)
        for (int64_t first = 0; first < a->sequence; first += TILE_QUERIES) {
            int64_t count = a->sequence - first < TILE_QUERIES ? a->sequence - first : TILE_QUERIES;
            char *dq = row_at(dqkv, r, sample * a->sequence + first) +
                       (kv * a->group + g) * a->d * dtype_bytes((dtype)dqkv->type);
            t->transposed_out(dq, dqkv->pitch, m->dq + g * m->head_dq + first * a->d_even, TILE_QUERIES, ones, a->d,
                              count);
        }
}

void cpu_attention_grad(const op *o, const run_context *r)
{
    const tensor *qkv = o->in[1];
    const attention_shape a = attention_shape_of(o, qkv);
    const tile_loops *t = isa_of(r)->tiles[qkv->type];
    backward_memory none;
    int64_t each = backward_layout(&none, NULL, &a, 4);
#pragma omp parallel num_threads(parallel_threads(r, tensor_elements(qkv) * 8))
    {
        backward_memory m;
        backward_layout(&m, (char *)tensor_at(o->scratch, r->arena) + omp_get_thread_num() * each, &a, t->bytes);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < a.samples * a.kv_heads; i++)
            backward_head(o, r, t, &a, &m, i / a.kv_heads, i % a.kv_heads);
    }
}
