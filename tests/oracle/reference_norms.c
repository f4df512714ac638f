/* Norms and attention in float64: see reference.h. */
#include "tests/oracle/reference.h"

#include <math.h>
#include <stdlib.h>

#include "memory/log.h"

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
        double rstd = 1 / sqrt(squares / (double)hidden + (double)o->at.epsilon);
        *reference_row(o->out[1], r, t) = rstd;
        for (int64_t h = 0; h < hidden; h++)
            reference_row(y, r, t)[h] = s[h] * rstd * *reference_row(o->in[1], r, h);
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
        double rstd = 1 / sqrt(variance + (double)o->at.epsilon);
        *reference_row(o->out[1], r, t) = rstd;
        *reference_row(o->out[2], r, t) = mean;
        for (int64_t h = 0; h < hidden; h++)
            reference_row(y, r, t)[h] =
                (s[h] - mean) * rstd * *reference_row(o->in[1], r, h) + *reference_row(o->in[2], r, h);
    }
}

/* The gradient of n normalised values u_i = (s_i - mean) rstd, y_i = u_i w_i, at element i: with g = w dy,
 * ds_i = rstd (g_i - u_i mean(g u) - mean(g)), the last term where a mean was taken away. */
typedef struct norm_row {
    const double *dy, *s;
    const double *w; /* [n] */
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
        a->g_u += a->w[i] * a->dy[i] * normalised(a, i) / (double)a->n;
        if (a->centred)
            a->g += a->w[i] * a->dy[i] / (double)a->n;
    }
}

static double norm_row_gradient(const norm_row *a, int64_t i)
{
    return a->rstd * (a->w[i] * a->dy[i] - normalised(a, i) * a->g_u - a->g);
}

static void norm_gradient(const op *o, const run_context *r, const tensor *mean, const tensor *addend, const tensor *db)
{
    const tensor *dx = o->out[0], *dw = o->out[1];
    for (int64_t t = 0; t < dx->shape[0]; t++) {
        norm_row a = {.dy = reference_row(o->in[0], r, t),
                      .s = reference_row(o->in[1], r, t),
                      .w = reference_row(o->in[2], r, 0),
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

/* The weight of head `head` of a fused row, or NULL for a head of v. */
static const tensor *head_weight(const op *o, int head, const tensor *wq, const tensor *wk)
{
    return head < o->at.heads ? wq : head < o->at.heads + o->at.kv_heads ? wk : NULL;
}

void reference_head_norm(const op *o, const run_context *r)
{
    int d = o->at.head_size, all = o->at.heads + 2 * o->at.kv_heads;
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++)
        for (int head = 0; head < all; head++) {
            const double *x = reference_row(o->in[0], r, t) + head * d;
            double *y = reference_row(o->out[0], r, t) + head * d, squares = 0, rstd = 1;
            const tensor *w = head_weight(o, head, o->in[1], o->in[2]);
            for (int i = 0; i < d; i++)
                squares += x[i] * x[i];
            if (w)
                rstd = reference_row(o->out[1], r, t)[head] = 1 / sqrt(squares / d + (double)o->at.epsilon);
            for (int i = 0; i < d; i++)
                y[i] = x[i] * rstd * (w ? *reference_row(w, r, i) : 1);
        }
}

void reference_head_norm_grad(const op *o, const run_context *r)
{
    int d = o->at.head_size, all = o->at.heads + 2 * o->at.kv_heads;
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++)
        for (int head = 0; head < all; head++) {
            const double *dy = reference_row(o->in[0], r, t) + head * d;
            double *dx = reference_row(o->out[0], r, t) + head * d;
            const tensor *w = head_weight(o, head, o->in[2], o->in[3]);
            norm_row a = {.dy = dy, .s = reference_row(o->in[1], r, t) + head * d, .n = d};
            if (w) {
                a.w = reference_row(w, r, 0);
                a.rstd = reference_row(o->in[4], r, t)[head];
                norm_row_means(&a);
            }
            const tensor *dw = head < o->at.heads ? o->out[1] : o->out[2];
            bool add = t > 0 || o->at.accumulate || (head != 0 && head != o->at.heads);
            for (int i = 0; i < d; i++) {
                if (w)
                    add_to(reference_row(dw, r, i), add, dy[i] * normalised(&a, i));
                dx[i] = w ? norm_row_gradient(&a, i) : dy[i];
            }
        }
}

/* ---- attention ----------------------------------------------------------------------------------------------- */

void reference_rope(const op *o, const run_context *r)
{
    const int32_t *positions = tensor_at(o->in[1], r->arena);
    int d = o->at.head_size, turned = o->at.heads + o->at.kv_heads, all = turned + o->at.kv_heads;
    for (int64_t t = 0; t < o->in[0]->shape[0]; t++)
        for (int head = 0; head < all; head++)
            for (int i = 0; i < d / 2; i++) {
                const double *x = reference_row(o->in[0], r, t) + head * d;
                const double *table = reference_row(o->in[2], r, positions[t]);
                double *y = reference_row(o->out[0], r, t) + head * d;
                double c = head < turned ? table[i] : 1, s = head < turned ? table[d / 2 + i] : 0;
                double a = x[i], b = x[i + d / 2];
                s = o->at.inverse ? -s : s;
                y[i] = a * c - b * s;
                y[i + d / 2] = b * c + a * s;
            }
}

/* The first key that token t may attend to. */
static int64_t first_key(const op *o, const run_context *r, const tensor *document_start, int64_t t)
{
    int64_t sample = t / o->at.sequence * o->at.sequence, first = sample;
    if (document_start)
        first = sample + ((const int32_t *)tensor_at(document_start, r->arena))[t];
    if (o->at.window > 0 && t - o->at.window + 1 > first)
        first = t - o->at.window + 1;
    return first;
}

static int kv_head(const op *o, int head)
{
    return head / (o->at.heads / o->at.kv_heads);
}

static const double *q_of(const op *o, const run_context *r, const tensor *qkv, int64_t t, int head)
{
    return reference_row(qkv, r, t) + head * o->at.head_size;
}

static const double *k_of(const op *o, const run_context *r, const tensor *qkv, int64_t t, int head)
{
    return reference_row(qkv, r, t) + (o->at.heads + kv_head(o, head)) * o->at.head_size;
}

static const double *v_of(const op *o, const run_context *r, const tensor *qkv, int64_t t, int head)
{
    return reference_row(qkv, r, t) + (o->at.heads + o->at.kv_heads + kv_head(o, head)) * o->at.head_size;
}

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* log sum exp of `count` scores */
static double log_sum_exp(const double *score, int64_t count)
{
    double largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < count; j++)
        largest = fmax(largest, score[j]);
    for (int64_t j = 0; j < count; j++)
        sum += exp(score[j] - largest);
    return largest + log(sum);
}

void reference_attention(const op *o, const run_context *r)
{
    const tensor *qkv = o->in[0];
    int d = o->at.head_size;
    double *score = must_alloc((unsigned long)o->at.sequence * sizeof *score);
    for (int64_t t = 0; t < qkv->shape[0]; t++)
        for (int head = 0; head < o->at.heads; head++) {
            int64_t first = first_key(o, r, o->in[1], t), keys = t - first + 1;
            for (int64_t j = 0; j < keys; j++)
                score[j] = dot(q_of(o, r, qkv, t, head), k_of(o, r, qkv, first + j, head), d) * (double)o->at.scale;
            double lse = log_sum_exp(score, keys);
            reference_row(o->out[1], r, head)[t] = lse;
            double *y = reference_row(o->out[0], r, t) + head * d;
            for (int i = 0; i < d; i++) {
                y[i] = 0;
                for (int64_t j = 0; j < keys; j++)
                    y[i] += exp(score[j] - lse) * v_of(o, r, qkv, first + j, head)[i];
            }
        }
    free(score);
}

/* With p = exp(score - lse), dp_j = dy . v_j, ds_j = p_j (dp_j - dy . y): dq += scale ds_j k_j, dk_j += scale ds_j q,
 * dv_j += p_j dy. */
static void attention_gradient_of(const op *o, const run_context *r, int64_t t, int head)
{
    const tensor *qkv = o->in[1], *dqkv = o->out[0];
    int d = o->at.head_size, group = kv_head(o, head);
    double scale = o->at.scale, lse = reference_row(o->in[3], r, head)[t];
    const double *dy = reference_row(o->in[0], r, t) + head * d, *y = reference_row(o->in[2], r, t) + head * d;
    const double *q = q_of(o, r, qkv, t, head);
    double *dq = reference_row(dqkv, r, t) + head * d, delta = dot(dy, y, d);
    for (int64_t j = first_key(o, r, o->in[4], t); j <= t; j++) {
        const double *k = k_of(o, r, qkv, j, head), *v = v_of(o, r, qkv, j, head);
        double *dk = reference_row(dqkv, r, j) + (o->at.heads + group) * d;
        double *dv = dk + o->at.kv_heads * d;
        double p = exp(dot(q, k, d) * scale - lse), ds = p * (dot(dy, v, d) - delta) * scale;
        for (int i = 0; i < d; i++) {
            dq[i] += ds * k[i];
            dk[i] += ds * q[i];
            dv[i] += p * dy[i];
        }
    }
}

void reference_attention_grad(const op *o, const run_context *r)
{
    const tensor *dqkv = o->out[0];
    for (int64_t t = 0; t < dqkv->shape[0]; t++)
        for (int64_t i = 0; i < dqkv->shape[1]; i++)
            reference_row(dqkv, r, t)[i] = 0;
    for (int64_t t = 0; t < dqkv->shape[0]; t++)
        for (int head = 0; head < o->at.heads; head++)
            attention_gradient_of(o, r, t, head);
}

static double *cache_at(const op *o, const run_context *r, const tensor *cache, int64_t sample, int64_t position,
                        int group)
{
    return reference_row(cache, r, sample) + position * cache->shape[2] + group * o->at.head_size;
}

void reference_attention_decode(const op *o, const run_context *r)
{
    const tensor *qkv = o->in[0], *caches[2] = {o->in[2], o->in[3]};
    const int32_t *positions = tensor_at(o->in[1], r->arena);
    int d = o->at.head_size, share = o->at.heads / o->at.kv_heads;
    double *score = must_alloc((unsigned long)caches[0]->shape[1] * sizeof *score);
    for (int64_t b = 0; b < qkv->shape[0]; b++) {
        int64_t last = positions[b], first = o->at.window > 0 && last + 1 > o->at.window ? last + 1 - o->at.window : 0;
        for (int which = 0; which < 2; which++)
            for (int group = 0; group < o->at.kv_heads; group++)
                for (int i = 0; i < d; i++)
                    cache_at(o, r, caches[which], b, last, group)[i] =
                        (which ? v_of(o, r, qkv, b, group * share) : k_of(o, r, qkv, b, group * share))[i];
        for (int head = 0; head < o->at.heads; head++) {
            for (int64_t j = first; j <= last; j++)
                score[j - first] = dot(q_of(o, r, qkv, b, head), cache_at(o, r, caches[0], b, j, kv_head(o, head)), d) *
                                   (double)o->at.scale;
            double lse = log_sum_exp(score, last - first + 1), *y = reference_row(o->out[0], r, b) + head * d;
            for (int i = 0; i < d; i++) {
                y[i] = 0;
                for (int64_t j = first; j <= last; j++)
                    y[i] += exp(score[j - first] - lse) * cache_at(o, r, caches[1], b, j, kv_head(o, head))[i];
            }
        }
    }
    free(score);
}
