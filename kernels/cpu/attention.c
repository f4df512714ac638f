/* Causal attention in tiles, after FlashAttention (2205.14135, 2307.08691), transposed: the lanes of a vector are
 * queries.
 *
 *   S^T[keys, queries] = K Q^T          rows K, lanes Q^T
 *   P^T = 2^(scale S^T - top)            lane by lane: no horizontal maximum or sum
 *   O^T[d, queries] += V^T P^T          rows V^T, lanes P^T
 *
 * A thread takes one (sample, kv head) at a time, or a share of its query tiles where there are fewer pairs than
 * threads; K and V^T are packed once for all the query heads that share them. Tiles that the causal mask, the window or
 * the documents hide altogether are skipped. Each query tile's result depends on its inputs only.
 */
#include <math.h>
#include <string.h>

#include "kernels/attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/heads.h"
#include "kernels/token.h"

/* ---- sizes of an op, and the masks of its tiles: of forward and backward ----------------------------------------- */

#define LOG2_E 1.44269504088896341
#define LN_2   0.693147180559945309

typedef struct attention_shape {
    int32_t heads, kv_heads, group; /* query heads to a kv head */
    int64_t d, d_even, d_lanes;     /* head_size of q and k; padded to pairs; padded to vectors */
    int64_t e, e_even, e_lanes;     /* head_size of v and y */
    int64_t sequence, samples;      /* keys of a sample; samples of the keys */
    int64_t key_tiles;              /* tiles of a sample's keys */
    int64_t rows, run;              /* queries; a run of queries has neighbouring positions in one sample */
    int64_t run_tiles, tiles;       /* tiles of a run; the most tiles of one sample's runs */
    float scale, cap;
    float exponent; /* factor of scores in the softmax: scale, or cap where it reads their tanh */
    int32_t window;
} attention_shape;

static int64_t to_lanes(int64_t size)
{
    return (size + 15) / 16 * 16;
}

static attention_shape shape_of(const op *o, const tensor *q, const tensor *v)
{
    const op_attention *at = &o->at.attention;
    int64_t d = o->at.heads.size, e = attention_v_head_size(o, v), s = at->sequence, rows = q->shape[0];
    int64_t run = attention_run(o), run_tiles = (run + TILE_QUERIES - 1) / TILE_QUERIES;
    return (attention_shape){
        .heads = o->at.heads.q,
        .kv_heads = o->at.heads.kv,
        .group = heads_sharing(o->at.heads.q, o->at.heads.kv),
        .d = d,
        .d_even = d + d % 2,
        .d_lanes = to_lanes(d),
        .e = e,
        .e_even = e + e % 2,
        .e_lanes = to_lanes(e),
        .sequence = s,
        .samples = v->shape[0] / s,
        .key_tiles = (s + TILE_KEYS - 1) / TILE_KEYS,
        .rows = rows,
        .run = run,
        .run_tiles = run_tiles,
        .tiles = (rows < s ? rows : s) / run * run_tiles,
        .scale = at->scale,
        .cap = at->cap,
        .exponent = at->cap > 0 ? at->cap : at->scale,
        .window = at->window,
    };
}

static float least(float a, float b)
{
    return a < b ? a : b;
}

static float most(float a, float b)
{
    return a > b ? a : b;
}

/* A tile of queries: rows [row, row + count) of q, from `position` in their sample on. */
typedef struct attention_tile {
    int64_t row, position, count;
} attention_tile;

/* Finds the `i`-th tile of the queries of a sample, in ascending rows; false: there are fewer. `token_positions`: the
 * queries' token positions, as the op attention has them; NULL: samples lie end to end. */
static bool tile_of(attention_tile *out, const attention_shape *a, const int32_t *token_positions, int64_t sample,
                    int64_t i)
{
    const int32_t sequence = (int32_t)a->sequence;
    int64_t of = i / a->run_tiles, first = i % a->run_tiles * TILE_QUERIES,
            row = token_positions ? 0 : sample * sequence;
    for (; token_positions && row < a->rows; row += a->run)
        if (token_sample(token_positions[row], sequence) == sample && of-- == 0)
            break;
    if (row >= a->rows || i >= a->tiles)
        return false;
    *out = (attention_tile){.row = row + first,
                            .position = (token_positions ? token_position(token_positions[row], sequence) : 0) + first,
                            .count = a->run - first < TILE_QUERIES ? a->run - first : TILE_QUERIES};
    return true;
}

/* Keys that the queries of a tile see: low and high of each (tile.h), and their bounds over the tile. */
typedef struct attention_range {
    float low[TILE_QUERIES], high[TILE_QUERIES];
    float least_low, most_low, least_high, most_high;
} attention_range;

/* Computes the ranges of a tile's queries; padding rows see no key. document_start: one for each row of q, or NULL */
static void range_of(attention_range *out, const attention_shape *a, const int32_t *document_start,
                     const attention_tile *tile)
{
    out->least_low = out->least_high = INFINITY;
    out->most_low = out->most_high = -INFINITY;
    for (int64_t i = 0; i < TILE_QUERIES; i++) {
        const int32_t q = (int32_t)(tile->position + i),
                      start = i < tile->count && document_start ? document_start[tile->row + i] : 0,
                      from = token_first_key(q, a->window, start);
        out->low[i] = i < tile->count ? (float)from : INFINITY;
        out->high[i] = i < tile->count ? (float)token_last_key(q) : -1;
        out->least_low = least(out->least_low, out->low[i]);
        out->most_low = most(out->most_low, out->low[i]);
        out->least_high = least(out->least_high, out->high[i]);
        out->most_high = most(out->most_high, out->high[i]);
    }
}

/* The mask of a tile of keys; false where it surely hides every pair. */
static bool is_visible(tile_mask *mask, const attention_range *range, int64_t first_key, int64_t keys)
{
    float first = (float)first_key, last = (float)(first_key + keys - 1);
    *mask = (tile_mask){range->low, range->high, first, !(range->most_low <= first && range->least_high >= last)};
    return range->least_low <= last && range->most_high >= first;
}

/* ---- forward --------------------------------------------------------------------------------------------------- */

/* One thread's working memory: sizes in bytes, multiples of 64. */
typedef struct forward_memory {
    char *k;  /* rows [sequence][d_even] */
    char *v;  /* rows [e][key tiles 64]: V^T */
    char *q;  /* lanes [d][64] */
    char *p;  /* lanes [64][64] */
    float *s; /* [64][64] */
    float *y; /* [e][64] */
} forward_memory;

static int64_t align(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static int64_t forward_layout(forward_memory *m, char *at, const attention_shape *a, int64_t bytes)
{
    char *start = at;
    int64_t padded = a->key_tiles * TILE_KEYS;
    m->k = at, at += align(padded * a->d_even * bytes);
    m->v = at, at += align(padded * a->e * bytes);
    m->q = at, at += align(TILE_QUERIES * a->d_even * bytes);
    m->p = at, at += align(TILE_QUERIES * TILE_KEYS * bytes);
    m->s = (float *)(void *)at, at += align(TILE_QUERIES * TILE_KEYS * 4);
    m->y = (float *)(void *)at, at += align(TILE_QUERIES * a->e * 4);
    return at - start;
}

int64_t attention_scratch_bytes(const op *o, int threads)
{
    forward_memory m;
    attention_shape a = shape_of(o, o->in[0], o->in[2]);
    return (threads > 1 ? threads : 1) * forward_layout(&m, NULL, &a, 4);
}

/* Below any score. */
#define NO_SINK (-1e30f)

static float sink_of(const tensor *sinks, const run_context *r, int64_t head)
{
    float sink;
    int64_t bytes = dtype_bytes((dtype)sinks->type);
    isa_of(r)->rows[sinks->type]->to_float(&sink, (const char *)tensor_at(sinks, r->arena) + head * bytes, 1);
    return sink;
}

/* The sink is a score that has been seen before all keys, and has no value. */
static void forward_tile(const op *o, const run_context *r, const tile_loops *t, const attention_shape *a,
                         const forward_memory *m, int64_t head, const attention_tile *tile)
{
    int64_t token = tile->row, count = tile->count, bytes = dtype_bytes((dtype)o->in[0]->type);
    const int32_t *document_start = o->in[3] ? tensor_at(o->in[3], r->arena) : NULL;
    attention_range range;
    float top[TILE_QUERIES], sum[TILE_QUERIES], fade[TILE_QUERIES];
    tile_mask mask;
    range_of(&range, a, document_start, tile);
    t->lanes_transposed(m->q, TILE_QUERIES, row_at(o->in[0], r, token) + head * a->d * bytes, o->in[0]->pitch, count,
                        a->d);
    float sink = o->in[5] ? sink_of(o->in[5], r, head) * (float)LOG2_E : NO_SINK;
    for (int i = 0; i < TILE_QUERIES; i++) {
        top[i] = sink > NO_SINK ? sink : NO_SINK; /* finite, so that a hidden pair's 2^(-inf - top) is 0 */
        sum[i] = o->in[5] ? 1 : 0;
    }
    bool begun = false;
    for (int64_t key = 0; key <= token_last_key((int32_t)(tile->position + count - 1)); key += TILE_KEYS) {
        int64_t keys = a->sequence - key < TILE_KEYS ? a->sequence - key : TILE_KEYS;
        if (!is_visible(&mask, &range, key, keys))
            continue;
        t->product(m->s, TILE_QUERIES, m->k + key * a->d_even * t->bytes, a->d_even, t->pair, m->q, TILE_QUERIES, keys,
                   TILE_QUERIES, a->d, false);
        if (a->cap > 0)
            t->cap(m->s, keys, a->scale / a->cap);
        if (t->softmax(m->p, m->s, top, sum, fade, &mask, keys, (float)((double)a->exponent * LOG2_E)) && begun)
            t->fade(m->y, fade, a->e);
        t->product(m->y, TILE_QUERIES, m->v + key * t->bytes, a->key_tiles * TILE_KEYS, t->pair, m->p, TILE_QUERIES,
                   a->e, TILE_QUERIES, keys, begun);
        begun = true;
    }
    int64_t run = o->out[1]->shape[1];
    float *lse = (float *)(void *)row_at(o->out[1], r, token / run * o->at.heads.q + head) + token % run;
    float *largest = o->out[2] ? (float *)(void *)row_at(o->out[2], r, head) + token : NULL;
    for (int64_t i = 0; i < count; i++) {
        lse[i] = top[i] * (float)LN_2 + logf(sum[i]);
        if (largest)
            largest[i] = top[i] * (float)LN_2;
        fade[i] = 1 / sum[i];
    }
    t->transposed_out(row_at(o->out[0], r, token) + head * a->e * bytes, o->out[0]->pitch, m->y, TILE_QUERIES, fade,
                      a->e, count);
}

void cpu_attention(const op *o, const run_context *r)
{
    const tensor *q = o->in[0], *k = o->in[1], *v = o->in[2];
    const attention_shape a = shape_of(o, q, v);
    const int32_t *token_positions = o->in[4] ? tensor_at(o->in[4], r->arena) : NULL;
    const tile_loops *t = isa_of(r)->tiles[q->type];
    int64_t bytes = dtype_bytes((dtype)q->type), tasks = a.samples * a.kv_heads;
    int threads = parallel_threads(r, operand_elements(o, 0, 3) * 8);
    int64_t parts = tasks >= threads ? 1 : (threads + tasks - 1) / tasks;
    forward_memory none;
    int64_t each = forward_layout(&none, NULL, &a, 4);
#pragma omp parallel num_threads(threads)
    {
        forward_memory m;
        forward_layout(&m, (char *)tensor_at(o->scratch, r->arena) + omp_get_thread_num() * each, &a, t->bytes);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < tasks * parts; i++) {
            int64_t sample = i / parts / a.kv_heads, kv = i / parts % a.kv_heads;
            int64_t token = sample * a.sequence;
            t->rows(m.k, a.d_even, row_at(k, r, token) + kv * a.d * bytes, k->pitch, a.sequence, a.d);
            t->rows_transposed(m.v, a.key_tiles * TILE_KEYS, row_at(v, r, token) + kv * a.e * bytes, v->pitch,
                               a.sequence, a.e);
            attention_tile tile;
            const int64_t first = heads_first((int32_t)kv, a.heads, a.kv_heads);
            for (int64_t head = first; head < first + a.group; head++)
                for (int64_t n = i % parts; tile_of(&tile, &a, token_positions, sample, n); n += parts)
                    forward_tile(o, r, t, &a, &m, head, &tile);
        }
    }
}

/* ---- one new token --------------------------------------------------------------------------------------------- */

/* One head's scores fp32 [positions], and twice a value, fp32, for each thread. */
static int64_t decode_bytes(const op *o)
{
    return align((o->in[4]->shape[1] + 2 * attention_v_head_size(o, o->in[2])) * 4);
}

CPU_SCRATCH(attention_decode, (threads > 1 ? threads : 1) * decode_bytes(o))

static void decode_head(const op *o, const run_context *r, float *scores, int64_t b, int64_t head)
{
    const isa *set = isa_of(r);
    const tensor *q = o->in[0], *k_cache = o->in[4], *v_cache = o->in[5];
    int64_t d = o->at.heads.size, e = attention_v_head_size(o, o->in[2]);
    int64_t kv = heads_read((int32_t)head, o->at.heads.q, o->at.heads.kv);
    int64_t bytes = dtype_bytes((dtype)q->type), k_row = k_cache->shape[2] * bytes, v_row = v_cache->shape[2] * bytes;
    int32_t position = ((const int32_t *)tensor_at(o->in[3], r->arena))[b];
    int64_t from = token_first_key(position, o->at.attention.window, 0), last = token_last_key(position);
    const char *k = row_at(k_cache, r, b) + kv * d * bytes, *v = row_at(v_cache, r, b) + kv * e * bytes;
    float *sum_v = scores + k_cache->shape[1], *value = sum_v + e;
    float top = o->in[6] ? sink_of(o->in[6], r, head) : -INFINITY, sink = top;
    for (int64_t i = from; i <= last; i++) {
        scores[i] =
            o->at.attention.scale * set->tiles[q->type]->dot(row_at(q, r, b) + head * d * bytes, k + i * k_row, d);
        if (o->at.attention.cap > 0)
            scores[i] = o->at.attention.cap * tanhf(scores[i] / o->at.attention.cap);
        top = scores[i] > top ? scores[i] : top;
    }
    memset(sum_v, 0, (size_t)e * sizeof *sum_v);
    float sum = o->in[6] ? expf(sink - top) : 0;
    for (int64_t i = from; i <= last; i++) {
        float p = expf(scores[i] - top);
        sum += p;
        set->rows[q->type]->to_float(value, v + i * v_row, e);
        for (int64_t j = 0; j < e; j++)
            sum_v[j] += p * value[j];
    }
    for (int64_t j = 0; j < e; j++)
        sum_v[j] /= sum;
    set->rows[q->type]->from_float(row_at(o->out[0], r, b) + head * e * bytes, sum_v, e);
}

void cpu_attention_decode(const op *o, const run_context *r)
{
    const tensor *q = o->in[0];
    const int32_t *positions = tensor_at(o->in[3], r->arena);
    int64_t heads = o->at.heads.q;
    for (int64_t b = 0; b < q->shape[0]; b++)
        for (int i = 0; i < 2; i++) {
            int64_t row = o->in[4 + i]->shape[2] * dtype_bytes((dtype)q->type);
            memcpy(row_at(o->in[4 + i], r, b) + positions[b] * row, row_at(o->in[1 + i], r, b), (size_t)row);
        }
    int64_t each = decode_bytes(o);
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(o->in[4]))) schedule(static)
    for (int64_t i = 0; i < q->shape[0] * heads; i++) {
        char *scratch = (char *)tensor_at(o->scratch, r->arena) + omp_get_thread_num() * each;
        decode_head(o, r, (float *)(void *)scratch, i / heads, i % heads);
    }
}

/* ---- rotary embedding ------------------------------------------------------------------------------------------ */

/* Token t's heads of one operand. */
static void rotate_heads(const op *o, const run_context *r, int which, int64_t t)
{
    const tensor *x = o->in[which], *y = o->out[which];
    const row_loops *loops = isa_of(r)->rows[x->type];
    int64_t front = which ? 0 : latent_unrotated(o), heads = which ? latent_key_heads(o) : o->at.heads.q;
    int64_t element = dtype_bytes((dtype)x->type), bytes = x->shape[1] / heads * element, before = front * element;
    int32_t position = ((const int32_t *)tensor_at(o->in[2], r->arena))[t];
    const float *row = (const float *)(const void *)row_at(o->in[3], r, position);
    int64_t rotated = o->in[3]->shape[1], behind = before + rotated * element;
    const float *sines = row + rotated / 2, sign = o->at.rotation.inverse ? -1.0f : 1.0f;
    for (int64_t h = 0; h < heads; h++) {
        char *to = row_at(y, r, t) + h * bytes;
        const char *from = row_at(x, r, t) + h * bytes;
        if (o->at.rotation.interleaved)
            loops->rotate_interleaved(to + before, from + before, row, sines, rotated / 2, sign);
        else
            loops->rotate(to + before, from + before, row, sines, rotated / 2, sign);
        if (to == from)
            continue;
        memcpy(to, from, (size_t)before);
        memcpy(to + behind, from + behind, (size_t)(bytes - behind));
    }
}

void cpu_rope(const op *o, const run_context *r)
{
#pragma omp parallel for num_threads(parallel_threads(r, operand_elements(o, 0, 2))) schedule(static)
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++)
        for (int which = 0; which < 2; which++)
            rotate_heads(o, r, which, t);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Backward attention, queries in the lanes as above. With P^T = exp(scale K Q^T - lse), delta = sum_d dy y:
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

static char *take_bytes(char **at, int64_t bytes)
{
    char *start = *at;
    *at += align(bytes);
    return start;
}

static int64_t backward_layout(backward_memory *m, char *start, const attention_shape *a, int64_t bytes)
{
    char *at = start;
    int64_t n = a->tiles * TILE_QUERIES, tile = TILE_QUERIES * TILE_KEYS;
    m->n = n;
    m->q_lanes = take_bytes(&at, a->group * n * a->d_lanes * bytes);
    m->dy_lanes = take_bytes(&at, a->group * n * a->e_lanes * bytes);
    m->q_across = take_bytes(&at, a->group * n * a->d_even * bytes);
    m->dy_across = take_bytes(&at, a->group * n * a->e_even * bytes);
    m->dq = (float *)(void *)take_bytes(&at, a->group * n * a->d_even * 4);
    m->lse = (float *)(void *)take_bytes(&at, a->group * n * 4);
    m->delta = (float *)(void *)take_bytes(&at, a->group * n * 4);
    m->ranges = (attention_range *)(void *)take_bytes(&at, a->tiles * (int64_t)sizeof *m->ranges);
    m->of = (attention_tile *)(void *)take_bytes(&at, a->tiles * (int64_t)sizeof *m->of);
    m->k = take_bytes(&at, TILE_KEYS * a->d_even * bytes);
    m->v = take_bytes(&at, TILE_KEYS * a->e_even * bytes);
    m->k_across = take_bytes(&at, TILE_KEYS * a->d * bytes);
    m->dk = (float *)(void *)take_bytes(&at, TILE_KEYS * a->d_lanes * 4);
    m->dv = (float *)(void *)take_bytes(&at, TILE_KEYS * a->e_lanes * 4);
    m->s = (float *)(void *)take_bytes(&at, tile * 4);
    m->dp = (float *)(void *)take_bytes(&at, tile * 4);
    m->p = take_bytes(&at, tile * bytes);
    m->ds = take_bytes(&at, tile * bytes);
    m->ds_lanes = take_bytes(&at, tile * bytes);
    return at - start;
}

int64_t attention_grad_scratch_bytes(const op *o, int threads)
{
    backward_memory m;
    attention_shape a = shape_of(o, o->in[1], o->in[3]);
    return (threads > 1 ? threads : 1) * backward_layout(&m, NULL, &a, 4);
}

/* Packs head `head`'s elements of a sample's query rows of `of` in both layouts: lanes[n / P][wide][P],
 * across[tiles][even / P][64][P]. Padding rows of a tile are zeros: lanes are products' k there, and the mask leaves
 * zeros as they are. */
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
        (const float *)(const void *)row_at(o->in[5], r, q->row / run * o->at.heads.q + head) + q->row % run;
    for (int64_t i = 0; i < TILE_QUERIES; i++) {
        bool is = i < q->count;
        own_lse[i] = is ? lse[i] * (float)LOG2_E : 0;
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
    int64_t at = g * m->n + first; /* row within the group */
    float *dq = m->dq + at * a->d_even;
    t->product(m->s, TILE_QUERIES, m->k, a->d_even, t->pair, m->q_across + at * a->d_even * t->bytes, TILE_QUERIES,
               keys, TILE_QUERIES, a->d, false);
    t->product(m->dp, TILE_QUERIES, m->v, a->e_even, t->pair, m->dy_across + at * a->e_even * t->bytes, TILE_QUERIES,
               keys, TILE_QUERIES, a->e, false);
    static _Alignas(64) const float none[TILE_QUERIES] = {0};
    if (a->cap > 0)
        t->cap_grad(m->s, m->dp, m->delta + at, keys, a->scale / a->cap);
    t->softmax_grad(m->p, m->ds, m->ds_lanes, m->s, m->dp, m->lse + at, a->cap > 0 ? none : m->delta + at, mask, keys,
                    (float)((double)a->exponent * LOG2_E), a->scale);
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
            if (is_visible(&mask, &m->ranges[tile], key, keys))
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
    const int32_t *token_positions = o->in[7] ? tensor_at(o->in[7], r->arena) : NULL;
    const tensor *dq = o->out[0];
    const int64_t first = heads_first((int32_t)kv, a->heads, a->kv_heads);
    float ones[TILE_QUERIES];
    for (m->count = 0; tile_of(&m->of[m->count], a, token_positions, sample, m->count); m->count++)
        range_of(&m->ranges[m->count], a, document_start, &m->of[m->count]);
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
    int64_t heads = o->at.heads.q, run = lse->shape[1], e = dy->shape[1] / heads, bytes = dtype_bytes((dtype)dy->type);
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
    const attention_shape a = shape_of(o, q, v);
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
