/* Causal attention in tiles, after FlashAttention (2205.14135, 2307.08691), transposed: the lanes of a vector are
 * queries.
 *
 *   S^T[keys, queries] = K Q^T          rows K, lanes Q^T
 *   P^T = 2^(scale S^T - top)            lane by lane: no horizontal maximum or sum
 *   O^T[d, queries] += V^T P^T          rows V^T, lanes P^T
 *
 * A thread takes one (sample, kv head) at a time, or a share of its query tiles where there are fewer of those than
 * threads; K and V^T are packed once for all the query heads that share them. Tiles that the causal mask, the window or
 * the documents hide altogether are skipped. Each query tile's result depends on nothing but its inputs.
 */
#include <math.h>
#include <string.h>

#include "kernels/attention_work.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/heads.h"
#include "kernels/latent.h"
#include "kernels/token.h"

static int64_t to_lanes(int64_t size)
{
    return (size + 15) / 16 * 16;
}

attention_shape attention_shape_of(const op *o, const tensor *q, const tensor *v)
{
    const op_attributes *at = &o->at;
    int64_t d = at->head_size, e = attention_v_head_size(o, v), s = at->sequence, rows = q->shape[0];
    int64_t run = attention_run(o), run_tiles = (run + TILE_QUERIES - 1) / TILE_QUERIES;
    return (attention_shape){
        .heads = at->heads,
        .kv_heads = at->kv_heads,
        .group = heads_sharing(at->heads, at->kv_heads),
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

bool attention_tile_of(attention_tile *out, const attention_shape *a, const int32_t *places, int64_t sample, int64_t i)
{
    const int32_t sequence = (int32_t)a->sequence;
    int64_t of = i / a->run_tiles, first = i % a->run_tiles * TILE_QUERIES, row = places ? 0 : sample * sequence;
    for (; places && row < a->rows; row += a->run)
        if (token_sample(places[row], sequence) == sample && of-- == 0)
            break;
    if (row >= a->rows || i >= a->tiles)
        return false;
    *out = (attention_tile){.row = row + first,
                            .position = (places ? token_position(places[row], sequence) : 0) + first,
                            .count = a->run - first < TILE_QUERIES ? a->run - first : TILE_QUERIES};
    return true;
}

void attention_range_of(attention_range *out, const attention_shape *a, const int32_t *document_start,
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

bool attention_visible(tile_mask *mask, const attention_range *range, int64_t first_key, int64_t keys)
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
    attention_shape a = attention_shape_of(o, o->in[0], o->in[2]);
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
    attention_range_of(&range, a, document_start, tile);
    t->lanes_transposed(m->q, TILE_QUERIES, row_at(o->in[0], r, token) + head * a->d * bytes, o->in[0]->pitch, count,
                        a->d);
    float sink = o->in[5] ? sink_of(o->in[5], r, head) * (float)ATTENTION_LOG2_E : NO_SINK;
    for (int i = 0; i < TILE_QUERIES; i++) {
        top[i] = sink > NO_SINK ? sink : NO_SINK; /* finite, so that a hidden pair's 2^(-inf - top) is 0 */
        sum[i] = o->in[5] ? 1 : 0;
    }
    bool begun = false;
    for (int64_t key = 0; key <= token_last_key((int32_t)(tile->position + count - 1)); key += TILE_KEYS) {
        int64_t keys = a->sequence - key < TILE_KEYS ? a->sequence - key : TILE_KEYS;
        if (!attention_visible(&mask, &range, key, keys))
            continue;
        t->product(m->s, TILE_QUERIES, m->k + key * a->d_even * t->bytes, a->d_even, t->pair, m->q, TILE_QUERIES, keys,
                   TILE_QUERIES, a->d, false);
        if (a->cap > 0)
            t->cap(m->s, keys, a->scale / a->cap);
        if (t->softmax(m->p, m->s, top, sum, fade, &mask, keys, (float)((double)a->exponent * ATTENTION_LOG2_E)) &&
            begun)
            t->fade(m->y, fade, a->e);
        t->product(m->y, TILE_QUERIES, m->v + key * t->bytes, a->key_tiles * TILE_KEYS, t->pair, m->p, TILE_QUERIES,
                   a->e, TILE_QUERIES, keys, begun);
        begun = true;
    }
    int64_t run = o->out[1]->shape[1];
    float *lse = (float *)(void *)row_at(o->out[1], r, token / run * o->at.heads + head) + token % run;
    float *largest = o->out[2] ? (float *)(void *)row_at(o->out[2], r, head) + token : NULL;
    for (int64_t i = 0; i < count; i++) {
        lse[i] = top[i] * (float)ATTENTION_LN_2 + logf(sum[i]);
        if (largest)
            largest[i] = top[i] * (float)ATTENTION_LN_2;
        fade[i] = 1 / sum[i];
    }
    t->transposed_out(row_at(o->out[0], r, token) + head * a->e * bytes, o->out[0]->pitch, m->y, TILE_QUERIES, fade,
                      a->e, count);
}

void cpu_attention(const op *o, const run_context *r)
{
    const tensor *q = o->in[0], *k = o->in[1], *v = o->in[2];
    const attention_shape a = attention_shape_of(o, q, v);
    const int32_t *places = o->in[4] ? tensor_at(o->in[4], r->arena) : NULL;
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
                for (int64_t n = i % parts; attention_tile_of(&tile, &a, places, sample, n); n += parts)
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

int64_t attention_decode_scratch_bytes(const op *o, int threads)
{
    return (threads > 1 ? threads : 1) * decode_bytes(o);
}

static void decode_head(const op *o, const run_context *r, float *scores, int64_t b, int64_t head)
{
    const isa *set = isa_of(r);
    const tensor *q = o->in[0], *k_cache = o->in[4], *v_cache = o->in[5];
    int64_t d = o->at.head_size, e = attention_v_head_size(o, o->in[2]);
    int64_t kv = heads_read((int32_t)head, o->at.heads, o->at.kv_heads);
    int64_t bytes = dtype_bytes((dtype)q->type), k_row = k_cache->shape[2] * bytes, v_row = v_cache->shape[2] * bytes;
    int32_t position = ((const int32_t *)tensor_at(o->in[3], r->arena))[b];
    int64_t from = token_first_key(position, o->at.window, 0), last = token_last_key(position);
    const char *k = row_at(k_cache, r, b) + kv * d * bytes, *v = row_at(v_cache, r, b) + kv * e * bytes;
    float *sum_v = scores + k_cache->shape[1], *value = sum_v + e;
    float top = o->in[6] ? sink_of(o->in[6], r, head) : -INFINITY, sink = top;
    for (int64_t i = from; i <= last; i++) {
        scores[i] = o->at.scale * set->tiles[q->type]->dot(row_at(q, r, b) + head * d * bytes, k + i * k_row, d);
        if (o->at.cap > 0)
            scores[i] = o->at.cap * tanhf(scores[i] / o->at.cap);
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
    int64_t heads = o->at.heads;
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
    int64_t front = which ? 0 : latent_unrotated(o), heads = which ? latent_key_heads(o) : o->at.heads;
    int64_t element = dtype_bytes((dtype)x->type), bytes = x->shape[1] / heads * element, before = front * element;
    int32_t position = ((const int32_t *)tensor_at(o->in[2], r->arena))[t];
    const float *row = (const float *)(const void *)row_at(o->in[3], r, position);
    int64_t rotated = o->in[3]->shape[1], behind = before + rotated * element;
    const float *sines = row + rotated / 2, sign = o->at.inverse ? -1.0f : 1.0f;
    for (int64_t h = 0; h < heads; h++) {
        char *to = row_at(y, r, t) + h * bytes;
        const char *from = row_at(x, r, t) + h * bytes;
        if (o->at.interleaved)
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
