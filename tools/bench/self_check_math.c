#include "tools/bench/self_check_math.h"

#include <math.h>
#include <string.h>

void math_multiply(double *c, const double *a, const double *b, const math_product *p)
{
    for (int64_t i = 0; i < p->m * p->n; i++) {
        int64_t row = i / p->n, column = i % p->n;
        double sum = p->adds ? c[i] : 0;
        for (int64_t k = 0; k < p->k; k++)
            sum += (p->a_turned ? a[k * p->m + row] : a[row * p->k + k]) *
                   (p->b_turned ? b[column * p->k + k] : b[k * p->n + column]);
        c[i] = sum;
    }
}

static const double ROOT = 0.79788456080286535588, CUBIC = 0.044715; /* sqrt(2 / pi) */

double math_gelu(double x)
{
    return 0.5 * x * (1 + tanh(ROOT * (x + CUBIC * x * x * x)));
}

double math_gelu_slope(double x)
{
    double t = tanh(ROOT * (x + CUBIC * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * ROOT * (1 + 3 * CUBIC * x * x);
}

/* One query of one head against the keys that it sees: places in q, and of the sample's first key in k and v. */
typedef struct row {
    int64_t query, key, value, first, last, k_pitch, v_pitch;
    double scale;
} row;

static row row_of(const math_attention *a, int64_t token, int64_t head)
{
    int64_t sample = token / a->sequence * a->sequence, i = token - sample, kv = head / (a->heads / a->kv_heads);
    row r = {.k_pitch = a->kv_heads * a->size,
             .v_pitch = a->kv_heads * a->v_size,
             .last = i,
             .scale = 1 / sqrt((double)a->size)};
    r.first = a->window > 0 && i >= a->window ? i - a->window + 1 : 0;
    if (a->starts && (int64_t)a->starts[token] > r.first)
        r.first = (int64_t)a->starts[token];
    r.query = (token * a->heads + head) * a->size;
    r.key = sample * r.k_pitch + kv * a->size;
    r.value = sample * r.v_pitch + kv * a->v_size;
    return r;
}

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

static double score(const math_attention *a, const row *r, int64_t key)
{
    return r->scale * dot(a->q + r->query, a->k + r->key + key * r->k_pitch, a->size);
}

void math_attend(double *y, double *lse, const math_attention *a)
{
    int64_t tokens = a->samples * a->sequence;
    memset(y, 0, (size_t)(tokens * a->heads * a->v_size) * sizeof *y);
    for (int64_t i = 0; i < tokens * a->heads; i++) {
        int64_t token = i / a->heads, head = i % a->heads;
        row r = row_of(a, token, head);
        double most = -INFINITY, sum = 0, *out = y + i * a->v_size;
        for (int64_t k = r.first; k <= r.last; k++)
            most = fmax(most, score(a, &r, k));
        for (int64_t k = r.first; k <= r.last; k++)
            sum += exp(score(a, &r, k) - most);
        lse[head * tokens + token] = most + log(sum);
        for (int64_t k = r.first; k <= r.last; k++) {
            double p = exp(score(a, &r, k) - most) / sum;
            for (int64_t c = 0; c < a->v_size; c++)
                out[c] += p * a->v[r.value + k * r.v_pitch + c];
        }
    }
}

void math_attend_back(double *const gradients[3], const double *dy, const double *y, const double *lse,
                      const math_attention *a)
{
    int64_t tokens = a->samples * a->sequence;
    double *dq = gradients[0], *dk = gradients[1], *dv = gradients[2];
    memset(dq, 0, (size_t)(tokens * a->heads * a->size) * sizeof *dq);
    memset(dk, 0, (size_t)(tokens * a->kv_heads * a->size) * sizeof *dk);
    memset(dv, 0, (size_t)(tokens * a->kv_heads * a->v_size) * sizeof *dv);
    for (int64_t i = 0; i < tokens * a->heads; i++) {
        int64_t token = i / a->heads, head = i % a->heads;
        row r = row_of(a, token, head);
        const double *g = dy + i * a->v_size;
        double delta = dot(g, y + i * a->v_size, a->v_size);
        for (int64_t k = r.first; k <= r.last; k++) {
            int64_t key = r.key + k * r.k_pitch, value = r.value + k * r.v_pitch;
            double p = exp(score(a, &r, k) - lse[head * tokens + token]);
            double ds = r.scale * p * (dot(g, a->v + value, a->v_size) - delta);
            for (int64_t c = 0; c < a->v_size; c++)
                dv[value + c] += p * g[c];
            for (int64_t c = 0; c < a->size; c++) {
                dk[key + c] += ds * a->q[r.query + c];
                dq[r.query + c] += ds * a->k[key + c];
            }
        }
    }
}
