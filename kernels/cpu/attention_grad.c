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
    char *q_lanes;           /* group x [n / P][d_lanes][P]: Q */
    char *q_across;          /* group x tiles x [d / P][64][P]: Q^T */
    char *dy_lanes;          /* group x [n / P][e_lanes][P]: dY */
    char *dy_across;         /* group x tiles x [e / P][64][P]: dY^T */
    float *dq;               /* group x tiles x [d][64] */
    float *lse, *delta;      /* group x [n]; lse to base 2 */
    attention_range *ranges; /* [tiles] */
    char *k, *v;             /* rows [64][d_even], [64][e_even] */
    char *k_across;          /* rows [d][64]: K^T */
    float *dk, *dv;          /* [64][d_lanes], [64][e_lanes] */
    float *s, *dp;           /* [64][64] */
    char *p, *ds;            /* rows [64][64] */
    char *ds_lanes;          /* lanes [64][64] */
    int64_t n;               /* the padded sequence */
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
    m->n = n;
    m->q_lanes = take(&at, a->group * n * a->d_lanes * bytes);
    m->dy_lanes = take(&at, a->group * n * a->e_lanes * bytes);
    m->q_across = take(&at, a->group * n * a->d_even * bytes);
    m->dy_across = take(&at, a->group * n * a->e_even * bytes);
    m->dq = (float *)(void *)take(&at, a->group * n * a->d_even * 4);
    m->lse = (float *)(void *)take(&at, a->group * n * 4);
    m->delta = (float *)(void *)take(&at, a->group * n * 4);
    m->ranges = (attention_range *)(void *)take(&at, a->tiles * (int64_t)sizeof *m->ranges);
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

/* Packs one head's rows of `of`, which begin at x, in both layouts: lanes[n / P][wide][P], across[tiles][even /
 * P][64][P]. Queries beyond the sequence are zeros: lanes are products' k there, and the mask leaves zeros as they
 * are. */
static void pack_rows(const tile_loops *t, const attention_shape *a, char *lanes, char *across, const char *x,
                      const tensor *of, bool value)
{
    int64_t size = value ? a->e : a->d, even = value ? a->e_even : a->d_even, wide = value ? a->e_lanes : a->d_lanes;
    int64_t n = a->tiles * TILE_QUERIES, whole = (a->sequence + a->sequence % t->pair) * wide;
    int64_t row = of->pitch * dtype_bytes((dtype)of->type);
    memset(lanes + whole * t->bytes, 0, (size_t)((n * wide - whole) * t->bytes));
    t->lanes(lanes, wide, x, of->pitch, a->sequence, size);
    for (int64_t tile = 0; tile < a->tiles; tile++) {
        int64_t first = tile * TILE_QUERIES,
                count = a->sequence - first < TILE_QUERIES ? a->sequence - first : TILE_QUERIES;
        char *to = across + first * even * t->bytes;
        if (count < TILE_QUERIES)
            memset(to, 0, (size_t)(TILE_QUERIES * even * t->bytes));
        t->lanes_transposed(to, TILE_QUERIES, x + first * row, of->pitch, count, size);
    }
}

/* Everything that stays the same along the key tiles: Q, dY, lse, delta of head g of the group. */
static void pack_head(const op *o, const run_context *r, const tile_loops *t, const attention_shape *a,
                      const backward_memory *m, int64_t sample, int64_t head, int64_t g)
{
    const tensor *dy = o->in[0], *q = o->in[1], *y = o->in[4];
    int64_t token = sample * a->sequence, n = m->n, bytes = dtype_bytes((dtype)q->type);
    const char *q_row = row_at(q, r, token) + head * a->d * bytes, *dy_row = row_at(dy, r, token) + head * a->e * bytes;
    const float *lse = (const float *)(const void *)row_at(o->in[5], r, head) + token;
    float *own_lse = m->lse + g * n, *delta = m->delta + g * n;
    pack_rows(t, a, m->q_lanes + g * n * a->d_lanes * t->bytes, m->q_across + g * n * a->d_even * t->bytes, q_row, q,
              false);
    pack_rows(t, a, m->dy_lanes + g * n * a->e_lanes * t->bytes, m->dy_across + g * n * a->e_even * t->bytes, dy_row,
              dy, true);
    for (int64_t i = 0; i < n; i++) {
        own_lse[i] = i < a->sequence ? lse[i] * (float)ATTENTION_LOG2_E : 0;
        delta[i] = i < a->sequence
                       ? t->dot(dy_row + i * dy->pitch * bytes, row_at(y, r, token + i) + head * a->e * bytes, a->e)
                       : 0;
    }
    memset(m->dq + g * n * a->d_even, 0, (size_t)(n * a->d_even) * 4);
}

static void backward_tile(const tile_loops *t, const attention_shape *a, const backward_memory *m,
                          const tile_mask *mask, int64_t g, int64_t first, int64_t keys)
{
    int64_t at = g * m->n + first; /* in rows of the group */
    float *dq = m->dq + at * a->d_even;
    t->product(m->s, TILE_QUERIES, m->k, a->d_even, t->pair, m->q_across + at * a->d_even * t->bytes, TILE_QUERIES,
               keys, TILE_QUERIES, a->d, false);
    t->product(m->dp, TILE_QUERIES, m->v, a->e_even, t->pair, m->dy_across + at * a->e_even * t->bytes, TILE_QUERIES,
               keys, TILE_QUERIES, a->e, false);
    t->softmax_grad(m->p, m->ds, m->ds_lanes, m->s, m->dp, m->lse + at, m->delta + at, mask, keys,
                    (float)((double)a->scale * ATTENTION_LOG2_E), a->scale);
    t->product(m->dv, a->e_lanes, m->p, TILE_QUERIES, t->pair, m->dy_lanes + at * a->e_lanes * t->bytes, a->e_lanes,
               keys, a->e_lanes, TILE_QUERIES, true);
    t->product(m->dk, a->d_lanes, m->ds, TILE_QUERIES, t->pair, m->q_lanes + at * a->d_lanes * t->bytes, a->d_lanes,
               keys, a->d_lanes, TILE_QUERIES, true);
    t->product(dq, TILE_QUERIES, m->k_across, TILE_KEYS, t->pair, m->ds_lanes, TILE_QUERIES, a->d, TILE_QUERIES, keys,
               true);
}

static void backward_keys(const op *o, const run_context *r, const tile_loops *t, const attention_shape *a,
                          const backward_memory *m, int64_t sample, int64_t kv, int64_t key)
{
    const tensor *k = o->in[2], *v = o->in[3], *dk = o->out[1], *dv = o->out[2];
    const row_loops *loops = isa_of(r)->rows[k->type];
    int64_t keys = a->sequence - key < TILE_KEYS ? a->sequence - key : TILE_KEYS, bytes = dtype_bytes((dtype)k->type);
    int64_t token = sample * a->sequence + key, k_at = kv * a->d * bytes, v_at = kv * a->e * bytes;
    t->rows(m->k, a->d_even, row_at(k, r, token) + k_at, k->pitch, keys, a->d);
    t->rows(m->v, a->e_even, row_at(v, r, token) + v_at, v->pitch, keys, a->e);
    t->rows_transposed(m->k_across, TILE_KEYS, row_at(k, r, token) + k_at, k->pitch, keys, a->d);
    memset(m->dk, 0, (size_t)(TILE_KEYS * a->d_lanes) * 4);
    memset(m->dv, 0, (size_t)(TILE_KEYS * a->e_lanes) * 4);
    for (int64_t g = 0; g < a->group; g++)
        for (int64_t first = key; first < a->sequence; first += TILE_QUERIES) {
            tile_mask mask;
            if (attention_visible(&mask, m->ranges + first / TILE_QUERIES, key, keys))
                backward_tile(t, a, m, &mask, g, first, keys);
        }
    for (int64_t i = 0; i < keys; i++) {
        loops->from_float(row_at(dk, r, token + i) + k_at, m->dk + i * a->d_lanes, a->d);
        loops->from_float(row_at(dv, r, token + i) + v_at, m->dv + i * a->e_lanes, a->e);
    }
}

static void backward_head(const op *o, const run_context *r, const tile_loops *t, const attention_shape *a,
                          const backward_memory *m, int64_t sample, int64_t kv)
{
    const int32_t *document_start =
        o->in[6] ? (const int32_t *)tensor_at(o->in[6], r->arena) + sample * a->sequence : NULL;
    const tensor *dq = o->out[0];
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
            char *to =
                row_at(dq, r, sample * a->sequence + first) + (kv * a->group + g) * a->d * dtype_bytes((dtype)dq->type);
            t->transposed_out(to, dq->pitch, m->dq + (g * m->n + first) * a->d_even, TILE_QUERIES, ones, a->d, count);
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
        backward_layout(&m, (char *)tensor_at(o->scratch, r->arena) + omp_get_thread_num() * each, &a, t->bytes);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < a.samples * a.kv_heads; i++)
            backward_head(o, r, t, &a, &m, i / a.kv_heads, i % a.kv_heads);
    }
}
