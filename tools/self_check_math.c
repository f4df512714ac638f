#include "tools/self_check_math.h"

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

/* One query of one head against the keys that it sees. */
typedef struct row {
    int64_t query, key, value, first, last, pitch; /* places in qkv; keys of the sample; elements of a token */
    double scale;
} row;

static row row_of(const math_attention *a, int64_t token, int64_t head)
{
    int64_t sample = token / a->sequence * a->sequence, i = token - sample, kv = head / (a->heads / a->kv_heads);
    row r = {.pitch = (a->heads + 2 * a->kv_heads) * a->size, .last = i, .scale = 1 / sqrt((double)a->size)};
    r.first = a->window > 0 && i >= a->window ? i - a->window + 1 : 0;
    if (a->starts && (int64_t)a->starts[token] > r.first)
        r.first = (int64_t)a->starts[token];
    r.query = token * r.pitch + head * a->size;
    r.key = sample * r.pitch + (a->heads + kv) * a->size;
    r.value = r.key + a->kv_heads * a->size;
    return r;
}

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

void math_attend(double *y, double *lse, const double *qkv, const math_attention *a)
{
    int64_t tokens = a->samples * a->sequence;
    memset(y, 0, (size_t)(tokens * a->heads * a->size) * sizeof *y);
    for (int64_t i = 0; i < tokens * a->heads; i++) {
        int64_t token = i / a->heads, head = i % a->heads;
        row r = row_of(a, token, head);
        double most = -INFINITY, sum = 0, *out = y + i * a->size;
        for (int64_t k = r.first; k <= r.last; k++)
            most = fmax(most, r.scale * dot(qkv + r.query, qkv + r.key + k * r.pitch, a->size));
        for (int64_t k = r.first; k <= r.last; k++)
            sum += exp(r.scale * dot(qkv + r.query, qkv + r.key + k * r.pitch, a->size) - most);
        lse[head * tokens + token] = most + log(sum);
        for (int64_t k = r.first; k <= r.last; k++) {
            double p = exp(r.scale * dot(qkv + r.query, qkv + r.key + k * r.pitch, a->size) - most) / sum;
            for (int64_t c = 0; c < a->size; c++)
                out[c] += p * qkv[r.value + k * r.pitch + c];
        }
    }
}

void math_attend_back(double *dqkv, const double *dy, const double *qkv, const double *y, const double *lse,
                      const math_attention *a)
{
    int64_t tokens = a->samples * a->sequence;
    memset(dqkv, 0, (size_t)(tokens * (a->heads + 2 * a->kv_heads) * a->size) * sizeof *dqkv);
    for (int64_t i = 0; i < tokens * a->heads; i++) {
        int64_t token = i / a->heads, head = i % a->heads;
        row r = row_of(a, token, head);
        double delta = dot(dy + i * a->size, y + i * a->size, a->size);
        for (int64_t k = r.first; k <= r.last; k++) {
            int64_t key = r.key + k * r.pitch, value = r.value + k * r.pitch;
            double p = exp(r.scale * dot(qkv + r.query, qkv + key, a->size) - lse[head * tokens + token]);
            double ds = r.scale * p * (dot(dy + i * a->size, qkv + value, a->size) - delta);
            for (int64_t c = 0; c < a->size; c++) {
                dqkv[value + c] += p * dy[i * a->size + c];
                dqkv[key + c] += ds * qkv[r.query + c];
                dqkv[r.query + c] += ds * qkv[key + c];
            }
        }
    }
}
