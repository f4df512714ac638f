/* Norms and attention in float64: see reference.h. */
#include "tests/oracle/reference.h"

#include <math.h>
#include <stdlib.h>

#include "memory/log.h"
#include "memory/scope.h"

static void add_to(double *to, bool add, double value)
{
    *to = (add ? *to : 0) + value;
}

/* ---- norms --------------------------------------------------------------------------------------------------- */

/* s = x + residual, kept in output `out` where that is present; returns row t of it */
static const double *residual_sum(const op *o, const run_context *r, int64_t t, const tensor *residual,
                                  const tensor *out)
{
    const double *x = reference_row(o->in[0], r, t);
    if (!residual)
        return x;
    double *s = reference_row(out, r, t);
    const double *add = reference_row(residual, r, t);
    for (int64_t h = 0; h < out->shape[1]; h++)
        s[h] = x[h] + add[h];
    return s;
}

void reference_rmsnorm(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    int64_t hidden = y->shape[1];
    for (int64_t t = 0; t < y->shape[0]; t++) {
        const double *s = residual_sum(o, r, t, o->in[2], o->out[2]);
        double squares = 0;
        for (int64_t h = 0; h < hidden; h++)
            squares += s[h] * s[h];
        double rstd = 1 / sqrt(squares / (double)hidden + (double)o->at.norm.epsilon);
        *reference_row(o->out[1], r, t) = rstd;
        for (int64_t h = 0; h < hidden; h++)
            reference_row(y, r, t)[h] = s[h] * rstd * (*reference_row(o->in[1], r, h) + (double)o->at.norm.offset);
    }
}

void reference_layernorm(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    int64_t hidden = y->shape[1];
    for (int64_t t = 0; t < y->shape[0]; t++) {
        const double *s = residual_sum(o, r, t, o->in[3], o->out[3]);
        double mean = 0, variance = 0;
        for (int64_t h = 0; h < hidden; h++)
            mean += s[h] / (double)hidden;
        for (int64_t h = 0; h < hidden; h++)
            variance += (s[h] - mean) * (s[h] - mean) / (double)hidden;
        double rstd = 1 / sqrt(variance + (double)o->at.norm.epsilon);
        *reference_row(o->out[1], r, t) = rstd;
        *reference_row(o->out[2], r, t) = mean;
        for (int64_t h = 0; h < hidden; h++)
            reference_row(y, r, t)[h] =
                (s[h] - mean) * rstd * *reference_row(o->in[1], r, h) + *reference_row(o->in[2], r, h);
    }
}

/* The gradient of n normalised values u_i = (s_i - mean) rstd, y_i = u_i (w_i + offset), at element i: with g = (w +
 * offset) dy,
 * ds_i = rstd (g_i - u_i mean(g u) - mean(g)), the last term where a mean was taken away. */
typedef struct norm_row {
    const double *dy, *s;
    const double *w; /* [n] */
    double offset;
    int64_t n;
    double rstd, mean;
    bool centred;
    double g_u, g; /* mean(g u), mean(g) */
} norm_row;

static double normalised(const norm_row *a, int64_t i)
{
    return (a->s[i] - a->mean) * a->rstd;
}

static void norm_row_means(norm_row *a)
{
    a->g_u = a->g = 0;
    for (int64_t i = 0; i < a->n; i++) {
        a->g_u += (a->w[i] + a->offset) * a->dy[i] * normalised(a, i) / (double)a->n;
        if (a->centred)
            a->g += (a->w[i] + a->offset) * a->dy[i] / (double)a->n;
    }
}

static double norm_row_gradient(const norm_row *a, int64_t i)
{
    return a->rstd * ((a->w[i] + a->offset) * a->dy[i] - normalised(a, i) * a->g_u - a->g);
}

static void norm_gradient(const op *o, const run_context *r, const tensor *mean, const tensor *addend, const tensor *db)
{
    const tensor *dx = o->out[0], *dw = o->out[1];
    for (int64_t t = 0; t < dx->shape[0]; t++) {
        norm_row a = {.dy = reference_row(o->in[0], r, t),
                      .s = reference_row(o->in[1], r, t),
                      .w = reference_row(o->in[2], r, 0),
                      .offset = o->at.norm.offset,
                      .n = dx->shape[1],
                      .rstd = *reference_row(o->in[3], r, t),
                      .mean = mean ? *reference_row(mean, r, t) : 0,
                      .centred = mean != NULL};
        norm_row_means(&a);
        for (int64_t h = 0; h < a.n; h++) {
            add_to(reference_row(dw, r, h), t > 0 || o->at.accumulate, a.dy[h] * normalised(&a, h));
            if (db)
                add_to(reference_row(db, r, h), t > 0 || o->at.accumulate, a.dy[h]);
            double add = addend ? reference_row(addend, r, t)[h] : 0;
            reference_row(dx, r, t)[h] = add + norm_row_gradient(&a, h);
        }
    }
}

void reference_rmsnorm_grad(const op *o, const run_context *r)
{
    norm_gradient(o, r, NULL, o->in[4], NULL);
}

void reference_layernorm_grad(const op *o, const run_context *r)
{
    norm_gradient(o, r, o->in[4], o->in[5], o->out[2]);
}

/* Heads [0, heads) are of q, those after them of k: which of the two, and where in its row the head begins. */
static int64_t head_place(int *which, const op *o, int head)
{
    *which = head >= o->at.heads.q;
    return (int64_t)(head - *which * o->at.heads.q) * o->at.heads.size;
}

void reference_head_norm(const op *o, const run_context *r)
{
    int d = o->at.heads.size, all = o->at.heads.q + o->at.heads.kv, which;
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++)
        for (int head = 0; head < all; head++) {
            int64_t at = head_place(&which, o, head);
            const double *x = reference_row(o->in[which], r, t) + at;
            double *y = reference_row(o->out[which], r, t) + at, squares = 0;
            for (int i = 0; i < d; i++)
                squares += x[i] * x[i];
            double rstd = reference_row(o->out[2], r, t)[head] = 1 / sqrt(squares / d + (double)o->at.norm.epsilon);
            for (int i = 0; i < d; i++)
                y[i] = x[i] * rstd * (*reference_row(o->in[2 + which], r, i) + (double)o->at.norm.offset);
        }
}

void reference_head_norm_grad(const op *o, const run_context *r)
{
    int d = o->at.heads.size, all = o->at.heads.q + o->at.heads.kv, which;
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++)
        for (int head = 0; head < all; head++) {
            int64_t at = head_place(&which, o, head);
            norm_row a = {.dy = reference_row(o->in[which], r, t) + at,
                          .s = reference_row(o->in[2 + which], r, t) + at,
                          .w = reference_row(o->in[4 + which], r, 0),
                          .offset = o->at.norm.offset,
                          .n = d,
                          .rstd = reference_row(o->in[6], r, t)[head]};
            norm_row_means(&a);
            bool add = t > 0 || o->at.accumulate || (head != 0 && head != o->at.heads.q);
            for (int i = 0; i < d; i++) {
                add_to(reference_row(o->out[2 + which], r, i), add, a.dy[i] * normalised(&a, i));
                reference_row(o->out[which], r, t)[at + i] = norm_row_gradient(&a, i);
            }
        }
}

static double width_rstd(const op *o, const run_context *r, const tensor *squares, int64_t t, int which)
{
    double width = (double)o->at.norm.width[which];
    return 1 / sqrt(reference_row(squares, r, t)[which] / width + (double)o->at.norm.epsilon);
}

void reference_width_squares(const op *o, const run_context *r)
{
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++)
        for (int which = 0; which < 2; which++) {
            double sum = 0;
            for (int64_t i = 0; i < o->in[which]->shape[1]; i++)
                sum += pow(reference_row(o->in[which], r, t)[i], 2);
            reference_row(o->out[0], r, t)[which] = sum;
        }
}

void reference_width_norm(const op *o, const run_context *r)
{
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++)
        for (int which = 0; which < 2; which++) {
            double rstd = width_rstd(o, r, o->in[4], t, which);
            for (int64_t i = 0; i < o->in[which]->shape[1]; i++)
                reference_row(o->out[which], r, t)[i] =
                    reference_row(o->in[which], r, t)[i] * rstd *
                    (*reference_row(o->in[2 + which], r, i) + (double)o->at.norm.offset);
        }
}

/* Row t of q (which: 0) or k (1) in an op of the gradient. */
static norm_row width_row(const op *o, const run_context *r, int64_t t, int which)
{
    return (norm_row){.dy = reference_row(o->in[which], r, t),
                      .s = reference_row(o->in[2 + which], r, t),
                      .w = reference_row(o->in[4 + which], r, 0),
                      .offset = o->at.norm.offset,
                      .n = o->in[which]->shape[1],
                      .rstd = width_rstd(o, r, o->in[6], t, which)};
}

void reference_width_dots(const op *o, const run_context *r)
{
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++)
        for (int which = 0; which < 2; which++) {
            norm_row a = width_row(o, r, t, which);
            double *dot = reference_row(o->out[0], r, t) + which;
            *dot = 0;
            for (int64_t i = 0; i < a.n; i++) {
                *dot += (a.w[i] + a.offset) * a.dy[i] * normalised(&a, i);
                add_to(reference_row(o->out[1 + which], r, i), t > 0 || o->at.accumulate, a.dy[i] * normalised(&a, i));
            }
        }
}

void reference_width_norm_grad(const op *o, const run_context *r)
{
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++)
        for (int which = 0; which < 2; which++) {
            norm_row a = width_row(o, r, t, which);
            a.g_u = reference_row(o->in[7], r, t)[which] / (double)o->at.norm.width[which];
            for (int64_t i = 0; i < a.n; i++)
                reference_row(o->out[which], r, t)[i] = norm_row_gradient(&a, i);
        }
}

/* ---- attention ----------------------------------------------------------------------------------------------- */

/* One head's elements x of a token, the first `front` and those behind the table's width as they are. */
static void rotate_head(double *y, const double *x, const double *table, int64_t d, int64_t front, int64_t size,
                        const op_attributes *at)
{
    for (int64_t i = 0; i < size; i++)
        if (i < front || i >= front + d)
            y[i] = x[i];
    for (int64_t i = 0; i < d / 2; i++) {
        double c = table[i], s = at->rotation.inverse ? -table[d / 2 + i] : table[d / 2 + i];
        int64_t first = front + (at->rotation.interleaved ? 2 * i : i),
                second = at->rotation.interleaved ? first + 1 : first + d / 2;
        double a = x[first], b = x[second];
        y[first] = a * c - b * s;
        y[second] = b * c + a * s;
    }
}

void reference_rope(const op *o, const run_context *r)
{
    const int32_t *positions = tensor_at(o->in[2], r->arena);
    int heads[2] = {o->at.heads.q, o->at.heads.kv > 0 ? o->at.heads.kv : 1};
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++)
        for (int which = 0; which < 2; which++)
            for (int head = 0; head < heads[which]; head++) {
                int64_t size = o->in[which]->shape[1] / heads[which];
                int64_t front = which == 0 && o->at.heads.kv == 0 ? size - o->in[1]->shape[1] : 0;
                rotate_head(reference_row(o->out[which], r, t) + head * size,
                            reference_row(o->in[which], r, t) + head * size, reference_row(o->in[3], r, positions[t]),
                            o->in[3]->shape[1], front, size, &o->at);
            }
}

/* The keys that token t may attend to: from `first` to `last`, its own. */
typedef struct seen {
    int64_t first, last;
} seen;

static seen keys_of(const op *o, const run_context *r, const tensor *document_start, const tensor *token_positions,
                    int64_t t)
{
    int64_t own = token_positions ? ((const int32_t *)tensor_at(token_positions, r->arena))[t] : t;
    int64_t sample = own / o->at.attention.sequence * o->at.attention.sequence, first = sample;
    if (document_start)
        first = sample + ((const int32_t *)tensor_at(document_start, r->arena))[t];
    if (o->at.attention.window > 0 && own - o->at.attention.window + 1 > first)
        first = own - o->at.attention.window + 1;
    return (seen){first, own};
}

static int kv_head(const op *o, int head)
{
    return head / (o->at.heads.q / o->at.heads.kv);
}

/* A head's elements of token t: of `of`, in which `heads` heads share a row. */
static double *head_of(const run_context *r, const tensor *of, int64_t t, int head, int heads)
{
    return reference_row(of, r, t) + head * (of->shape[1] / heads);
}

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* The score of a product of query and key, between -cap and cap where there is one; *slope: how it grows with the
 * product. */
static double score_of(const op *o, double product, double *slope)
{
    double scale = o->at.attention.scale, cap = o->at.attention.cap, t = cap > 0 ? tanh(product * scale / cap) : 0;
    if (slope)
        *slope = scale * (1 - t * t);
    return cap > 0 ? cap * t : product * scale;
}

/* The largest of `count` scores and of a sink, -INFINITY where there is none. */
static double largest_of(const double *score, int64_t count, double sink)
{
    double largest = sink;
    for (int64_t j = 0; j < count; j++)
        largest = fmax(largest, score[j]);
    return largest;
}

/* log sum exp of the same */
static double log_sum_exp(const double *score, int64_t count, double sink)
{
    double largest = largest_of(score, count, sink), sum = 0;
    for (int64_t j = 0; j < count; j++)
        sum += exp(score[j] - largest);
    sum += exp(sink - largest);
    return largest + log(sum);
}

/* Of a token: head after head of one run of neighbours after another. */
static double *lse_of(const tensor *lse, const run_context *r, int64_t t, int head, int heads)
{
    int64_t run = lse->shape[1];
    return reference_row(lse, r, (int)(t / run * heads + head)) + t % run;
}

static double sink_of(const tensor *sinks, const run_context *r, int head)
{
    return sinks ? reference_row(sinks, r, head)[0] : -INFINITY;
}

void reference_attention(const op *o, const run_context *r)
{
    const tensor *q = o->in[0], *k = o->in[1], *v = o->in[2];
    int d = o->at.heads.size, e = (int)(v->shape[1] / o->at.heads.kv);
    AUTO_FREE double *score = must_alloc((unsigned long)o->at.attention.sequence * sizeof *score);
    for (int64_t t = 0; t < q->shape[0]; t++)
        for (int head = 0; head < o->at.heads.q; head++) {
            seen s = keys_of(o, r, o->in[3], o->in[4], t);
            int64_t first = s.first, keys = s.last - first + 1;
            int group = kv_head(o, head);
            for (int64_t j = 0; j < keys; j++)
                score[j] = score_of(
                    o, dot(head_of(r, q, t, head, o->at.heads.q), head_of(r, k, first + j, group, o->at.heads.kv), d),
                    NULL);
            double lse = log_sum_exp(score, keys, sink_of(o->in[5], r, head));
            *lse_of(o->out[1], r, t, head, o->at.heads.q) = lse;
            if (o->out[2])
                reference_row(o->out[2], r, head)[t] = largest_of(score, keys, -INFINITY);
            double *y = head_of(r, o->out[0], t, head, o->at.heads.q);
            for (int i = 0; i < e; i++) {
                y[i] = 0;
                for (int64_t j = 0; j < keys; j++)
                    y[i] += exp(score[j] - lse) * head_of(r, v, first + j, group, o->at.heads.kv)[i];
            }
        }
}

/* With p = exp(score - lse), dp_j = dy . v_j, ds_j = p_j (dp_j - dy . y) slope_j, slope the scale or, with a
 * cap, scale (1 - (score / cap)^2): dq += ds_j k_j, dk_j += ds_j q, dv_j += p_j dy. */
static void attention_gradient_of(const op *o, const run_context *r, int64_t t, int head)
{
    int heads = o->at.heads.q, kv_heads = o->at.heads.kv, group = kv_head(o, head);
    int d = o->at.heads.size, e = (int)(o->in[3]->shape[1] / kv_heads);
    double slope, lse = *lse_of(o->in[5], r, t, head, heads);
    const double *dy = head_of(r, o->in[0], t, head, heads), *q = head_of(r, o->in[1], t, head, heads);
    double *dq = head_of(r, o->out[0], t, head, heads), delta = dot(dy, head_of(r, o->in[4], t, head, heads), e);
    seen s = keys_of(o, r, o->in[6], o->in[7], t);
    for (int64_t j = s.first; j <= s.last; j++) {
        const double *k = head_of(r, o->in[2], j, group, kv_heads), *v = head_of(r, o->in[3], j, group, kv_heads);
        double *dk = head_of(r, o->out[1], j, group, kv_heads), *dv = head_of(r, o->out[2], j, group, kv_heads);
        double p = exp(score_of(o, dot(q, k, d), &slope) - lse), ds = p * (dot(dy, v, e) - delta) * slope;
        for (int i = 0; i < d; i++) {
            dq[i] += ds * k[i];
            dk[i] += ds * q[i];
        }
        for (int i = 0; i < e; i++)
            dv[i] += p * dy[i];
    }
}

void reference_attention_grad(const op *o, const run_context *r)
{
    for (int which = 0; which < 3; which++)
        for (int64_t t = 0; t < o->out[which]->shape[0]; t++)
            for (int64_t i = 0; i < o->out[which]->shape[1]; i++)
                reference_row(o->out[which], r, t)[i] = 0;
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++)
        for (int head = 0; head < o->at.heads.q; head++)
            attention_gradient_of(o, r, t, head);
}

void reference_attention_sinks_grad(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0];
    int heads = o->at.heads.q, e = (int)(dy->shape[1] / heads);
    for (int head = 0; head < heads; head++) {
        double *to = reference_row(o->out[0], r, head);
        *to = o->at.accumulate ? *to : 0;
        for (int64_t t = 0; t < dy->shape[0]; t++)
            *to -= exp(sink_of(o->in[3], r, head) - *lse_of(o->in[2], r, t, head, heads)) *
                   dot(head_of(r, dy, t, head, heads), head_of(r, o->in[1], t, head, heads), e);
    }
}

static double *cache_at(const op *o, const run_context *r, const tensor *cache, int64_t sample, int64_t position,
                        int group)
{
    return reference_row(cache, r, sample) + position * cache->shape[2] + group * (cache->shape[2] / o->at.heads.kv);
}

/* The new key (which: 4) or value (5) of a sample into its cache. */
static void append_to_cache(const op *o, const run_context *r, int which, int64_t sample, int64_t position)
{
    double *to = cache_at(o, r, o->in[which], sample, position, 0);
    for (int64_t i = 0; i < o->in[which]->shape[2]; i++)
        to[i] = reference_row(o->in[which - 3], r, sample)[i];
}

void reference_attention_decode(const op *o, const run_context *r)
{
    const tensor *q = o->in[0], *k_cache = o->in[4], *v_cache = o->in[5];
    const int32_t *positions = tensor_at(o->in[3], r->arena);
    int d = o->at.heads.size, e = (int)(v_cache->shape[2] / o->at.heads.kv);
    AUTO_FREE double *score = must_alloc((unsigned long)k_cache->shape[1] * sizeof *score);
    for (int64_t b = 0; b < q->shape[0]; b++) {
        int64_t last = positions[b], first = o->at.attention.window > 0 && last + 1 > o->at.attention.window
                                                 ? last + 1 - o->at.attention.window
                                                 : 0;
        append_to_cache(o, r, 4, b, last);
        append_to_cache(o, r, 5, b, last);
        for (int head = 0; head < o->at.heads.q; head++) {
            int group = kv_head(o, head);
            for (int64_t j = first; j <= last; j++)
                score[j - first] = score_of(
                    o, dot(head_of(r, q, b, head, o->at.heads.q), cache_at(o, r, k_cache, b, j, group), d), NULL);
            double lse = log_sum_exp(score, last - first + 1, sink_of(o->in[6], r, head));
            double *y = head_of(r, o->out[0], b, head, o->at.heads.q);
            for (int i = 0; i < e; i++) {
                y[i] = 0;
                for (int64_t j = first; j <= last; j++)
                    y[i] += exp(score[j - first] - lse) * cache_at(o, r, v_cache, b, j, group)[i];
            }
        }
    }
}
