/* Products and attention in float64, as ops.def states them: what a self-check compares with. Row-major, nothing is
 * padded. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* c[m, n] = sum over k of a b + c where `adds`; a [m, k], or [k, m] turned; b [k, n], or [n, k] turned */
typedef struct math_product {
    int64_t m, n, k;
    bool a_turned, b_turned, adds;
} math_product;

void math_multiply(double *c, const double *a, const double *b, const math_product *p);
double math_gelu(double x);
double math_gelu_slope(double x);

typedef struct math_attention {
    int64_t samples, sequence, heads, kv_heads, size, v_size, window; /* window 0: none */
    const double *starts;                                             /* [tokens] or NULL */
    const double *q, *k, *v; /* [tokens, heads size], [tokens, kv_heads size], [tokens, kv_heads v_size] */
} math_attention;

/* y [tokens, heads v_size], lse [heads, tokens] */
void math_attend(double *y, double *lse, const math_attention *a);
/* gradients: dq, dk, dv of dy; y and lse are of the same attention */
void math_attend_back(double *const gradients[3], const double *dy, const double *y, const double *lse,
                      const math_attention *a);
