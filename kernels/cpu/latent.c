/* Multi-head latent attention: keys joined and split, and decoding over a cache of latents. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/attention.h"

void cpu_join_keys(const op *o, const run_context *r)
{
    const tensor *kn = o->in[0], *kr = o->in[1], *k = o->out[0];
    size_t element = (size_t)dtype_bytes((dtype)kn->type);
    size_t nope = (size_t)o->at.heads.size * element, rope = (size_t)kr->shape[1] * element;
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(k))) schedule(static)
    for (int64_t t = 0; t < k->shape[0]; t++) {
        const char *own = row_at(kn, r, t), *shared = row_at(kr, r, t);
        char *to = row_at(k, r, t);
        for (int h = 0; h < o->at.heads.q; h++, own += nope, to += nope + rope) {
            memcpy(to, own, nope);
            memcpy(to + nope, shared, rope);
        }
    }
}

enum { SUMMED = 64 }; /* elements of dkr that are summed at a time */

/* Sums dkr of one token over all heads' rows, which begin `head` bytes apart. */
static void sum_heads(const row_loops *loops, char *dkr, const char *dk, int64_t rope, int heads, int64_t head,
                      int64_t element)
{
    for (int64_t first = 0; first < rope; first += SUMMED) {
        int64_t n = rope - first < SUMMED ? rope - first : SUMMED;
        float sum[SUMMED] = {0};
        for (int h = 0; h < heads; h++)
            loops->accumulate(sum, dk + h * head + first * element, n);
        loops->from_float(dkr + first * element, sum, n);
    }
}

void cpu_split_keys(const op *o, const run_context *r)
{
    const tensor *dk = o->in[0], *dkn = o->out[0], *dkr = o->out[1];
    int64_t element = dtype_bytes((dtype)dk->type), nope = o->at.heads.size * element;
    int64_t head = nope + dkr->shape[1] * element;
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(dk))) schedule(static)
    for (int64_t t = 0; t < dk->shape[0]; t++) {
        const char *from = row_at(dk, r, t);
        for (int h = 0; h < o->at.heads.q; h++)
            memcpy(row_at(dkn, r, t) + h * nope, from + h * head, (size_t)nope);
        sum_heads(isa_of(r)->rows[dk->type], row_at(dkr, r, t), from + nope, dkr->shape[1], o->at.heads.q, head,
                  element);
    }
}

/* ---- one new token --------------------------------------------------------------------------------------------- */

/* One thread's working memory, fp32. */
typedef struct decode_memory {
    float *scores; /* [positions] */
    float *query;  /* [rank + rope]: the vector multiplied with a row of the cache */
    float *met;    /* [rank + rope]: a row of the cache, or of w */
    float *sum;    /* [rank]: of latents by their probabilities */
    float *head;   /* [nope], then [v_head_size]: of q, then of y */
} decode_memory;

/* Bytes of it, a multiple of 64. */
static int64_t decode_bytes(const op *o)
{
    const latent_sizes s = latent_sizes_of(o);
    const int64_t head = s.nope > s.v_head_size ? s.nope : s.v_head_size;
    return ((o->in[5]->shape[1] + 2 * s.width + s.rank + head) * 4 + 63) / 64 * 64;
}

CPU_SCRATCH(latent_decode, (threads > 1 ? threads : 1) * decode_bytes(o))

/* to[n] = factor from, or += where it is not the first of a sum's terms. */
static void add_multiple(const isa *set, float *to, const float *from, float factor, int64_t n, bool first)
{
    set->rows[DTYPE_FP32]->weighted_sum(to, first ? NULL : to, (const void *const[]){from}, &factor, 1, n);
}

/* The head's query of latents, Wk^T q_nope, then its rotated part. */
static void absorb_query(const op *o, const run_context *r, const latent_sizes *s, const decode_memory *m, int64_t b,
                         int64_t head)
{
    const isa *set = isa_of(r);
    const row_loops *loops = set->rows[o->in[0]->type];
    const char *q = row_at(o->in[0], r, b) + head * (s->nope + s->rope) * dtype_bytes((dtype)o->in[0]->type);
    loops->to_float(m->head, q, s->nope);
    loops->to_float(m->query + s->rank, q + s->nope * dtype_bytes((dtype)o->in[0]->type), s->rope);
    for (int64_t i = 0; i < s->nope; i++) {
        loops->to_float(m->met, row_at(o->in[3], r, head * s->nope + i), s->rank);
        add_multiple(set, m->query, m->met, m->head[i], s->rank, i == 0);
    }
}

/* m->sum = the mean of the latents of rows 0..position, weighted by the softmax of their scores. */
static void attend_latents(const op *o, const run_context *r, const latent_sizes *s, const decode_memory *m, int64_t b,
                           int64_t position)
{
    const isa *set = isa_of(r);
    const row_loops *loops = set->rows[o->in[0]->type];
    int64_t row = s->width * dtype_bytes((dtype)o->in[0]->type);
    const char *cache = row_at(o->in[5], r, b);
    float top = -INFINITY, total = 0;
    for (int64_t i = 0; i <= position; i++) {
        loops->to_float(m->met, cache + i * row, s->width);
        m->scores[i] = o->at.attention.scale * set->tiles[DTYPE_FP32]->dot(m->query, m->met, s->width);
        top = m->scores[i] > top ? m->scores[i] : top;
    }
    for (int64_t i = 0; i <= position; i++) {
        float p = expf(m->scores[i] - top);
        total += p;
        loops->to_float(m->met, cache + i * row, s->rank);
        add_multiple(set, m->sum, m->met, p, s->rank, i == 0);
    }
    for (int64_t i = 0; i < s->rank; i++)
        m->sum[i] /= total;
}

static void latent_head(const op *o, const run_context *r, const decode_memory *m, int64_t b, int64_t head)
{
    const isa *set = isa_of(r);
    const latent_sizes s = latent_sizes_of(o);
    const row_loops *loops = set->rows[o->in[0]->type];
    absorb_query(o, r, &s, m, b, head);
    attend_latents(o, r, &s, m, b, ((const int32_t *)tensor_at(o->in[4], r->arena))[b]);
    for (int64_t j = 0; j < s.v_head_size; j++) {
        loops->to_float(m->met, row_at(o->in[3], r, s.heads * s.nope + head * s.v_head_size + j), s.rank);
        m->head[j] = set->tiles[DTYPE_FP32]->dot(m->met, m->sum, s.rank);
    }
    int64_t bytes = s.v_head_size * dtype_bytes((dtype)o->out[0]->type);
    loops->from_float(row_at(o->out[0], r, b) + head * bytes, m->head, s.v_head_size);
}

void cpu_latent_decode(const op *o, const run_context *r)
{
    const tensor *q = o->in[0], *cache = o->in[5];
    const latent_sizes s = latent_sizes_of(o);
    const int32_t *positions = tensor_at(o->in[4], r->arena);
    int64_t element = dtype_bytes((dtype)q->type), latent = s.rank * element, rope = s.rope * element;
    for (int64_t b = 0; b < q->shape[0]; b++) {
        char *to = row_at(cache, r, b) + positions[b] * (latent + rope);
        memcpy(to, row_at(o->in[1], r, b), (size_t)latent);
        memcpy(to + latent, row_at(o->in[2], r, b), (size_t)rope);
    }
    int64_t each = decode_bytes(o);
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(cache))) schedule(static)
    for (int64_t i = 0; i < q->shape[0] * s.heads; i++) {
        float *scores = (float *)(void *)((char *)tensor_at(o->scratch, r->arena) + omp_get_thread_num() * each);
        float *query = scores + cache->shape[1], *met = query + s.width, *sum = met + s.width;
        const decode_memory m = {.scores = scores, .query = query, .met = met, .sum = sum, .head = sum + s.rank};
        latent_head(o, r, &m, i / s.heads, i % s.heads);
    }
}
