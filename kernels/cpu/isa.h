/* The inner loops, compiled once for every instruction set, and the table through which the kernels reach them. The
 * tables are constants; which one a run uses is decided by the processor, or by run_context.device in a test that wants
 * another (a pointer to one of them). */
#pragma once

#include <stdint.h>

#include "kernels/cpu/tile.h"
#include "kernels/table/op.h"
#include "kernels/rounding.h"

enum { ISA_TYPES = 3 }; /* DTYPE_FP32, DTYPE_BF16, DTYPE_FP16 index the loops of each type */

/* The scalars of one update: every expression that does not vary with the element. Each rule reads some of them. */
typedef struct update_factors {
    float gradient;     /* factor on the gradient */
    float beta1, beta2; /* shares of the moments that an update keeps */
    float rate;         /* adamw: lr / (1 - beta1^s) */
    float root;         /* 1 / (1 - beta2^s) */
    float epsilon;
    float keep;      /* 1 - lr decay */
    float own, mean; /* the direction is own g + mean m */
} update_factors;

/* n elements of an op of the optimizer: `out` as in the op table, the first one T (muon_momentum: fp32). */
typedef void (*update_loop)(void *const out[4], const float *gradient, int64_t n, const update_factors *f);

enum {
#define UPDATE(name) UPDATE_##name,
#include "kernels/table/updates.def"
    UPDATE_RULES
};

/* Loops over rows of T: fp32, bf16 or fp16. Outputs may be the inputs' own storage where the op table says so. */
typedef struct row_loops {
    void (*to_float)(float *y, const void *x, int64_t n);
    void (*from_float)(void *y, const float *x, int64_t n);
    void (*accumulate)(float *total, const void *x, int64_t n);
    void (*add)(void *y, const void *a, const void *b, int64_t n);
    void (*scale)(void *y, const void *x, float factor, int64_t n);
    void (*soft_cap)(void *y, const void *x, float cap, int64_t n);
    void (*soft_cap_grad)(void *dx, const void *dy, const void *x, float cap, int64_t n);
    void (*gelu)(void *y, const void *x, int64_t n);
    void (*gelu_grad)(void *dx, const void *dy, const void *x, int64_t n);
    void (*gelu_exact)(void *y, const void *x, int64_t n);
    void (*gelu_exact_grad)(void *dx, const void *dy, const void *x, int64_t n);
    void (*swiglu)(void *y, const void *gate, const void *up, int64_t n);
    void (*swiglu_grad)(void *dgate, void *dup, const void *dy, const void *gate, const void *up, int64_t n);
    void (*geglu)(void *y, const void *gate, const void *up, int64_t n);
    void (*geglu_grad)(void *dgate, void *dup, const void *dy, const void *gate, const void *up, int64_t n);
    /* x, dx: n pairs of a gate and an up */
    void (*swiglu_clamped)(void *y, const void *x, int64_t n, float limit, float slope);
    void (*swiglu_clamped_grad)(void *dx, const void *dy, const void *x, int64_t n, float limit, float slope);
    /* s = x + residual where residual is given, s NULL else; returns rstd, *mean too */
    float (*rmsnorm)(void *y, void *s, const void *x, const void *w, const void *residual, int64_t n, float epsilon,
                     float offset);
    /* the steps of an RMS norm: the sum of squares; y = x rstd (w + offset); with h = x rstd, dw[n] += dy h and the sum
     * of dy (w + offset) h; dx = rstd (dy (w + offset) - h mean) + addend, which may be NULL */
    float (*squares)(const void *x, int64_t n);
    void (*normalise)(void *y, const void *x, const void *w, int64_t n, float rstd, float offset);
    float (*norm_dot)(float *dw, const void *dy, const void *x, const void *w, int64_t n, float rstd, float offset);
    void (*norm_slope)(void *dx, const void *dy, const void *x, const void *w, const void *addend, int64_t n,
                       float rstd, float offset, float mean);
    float (*layernorm)(void *y, void *s, float *mean, const void *x, const void *w, const void *b, const void *residual,
                       int64_t n, float epsilon);
    /* dw[n], db[n] are added to */
    void (*rmsnorm_grad)(void *dx, float *dw, const void *dy, const void *s, const void *w, const void *addend,
                         int64_t n, float rstd, float offset);
    void (*layernorm_grad)(void *dx, float *dw, float *db, const void *dy, const void *s, const void *w,
                           const void *addend, int64_t n, float mean, float rstd);
    /* one head: halves of d/2 by cos[d/2], sin[d/2]; sign -1 turns back */
    void (*rotate)(void *y, const void *x, const float *cos, const float *sin, int64_t half, float sign);
    /* the same of elements 2i and 2i + 1 */
    void (*rotate_interleaved)(void *y, const void *x, const float *cos, const float *sin, int64_t half, float sign);
    /* out[columns] (+)= sum over rows */
    void (*column_sums)(float *out, const void *x, int64_t pitch, int64_t rows, int64_t columns, int accumulate);
    void (*logits_stats)(float *largest, float *sum, const void *logits, int64_t n);
    /* dlogits = exp(logits - largest) factor */
    void (*logits_grad)(void *dlogits, const void *logits, int64_t n, float largest, float factor);
    void (*mask)(void *y, const void *x, const float *factor, int64_t n); /* y = x factor */
    void (*sigmoids)(float *y, const void *x, int64_t n);
    void (*probabilities)(float *y, const void *x, int64_t n); /* y = softmax(x) */
    /* y = addend + sum over i < count of weights[i] rows[i]; addend NULL: 0 */
    void (*weighted_sum)(void *y, const void *addend, const void *const *rows, const float *weights, int count,
                         int64_t n);
    update_loop update[UPDATE_RULES];
    /* columns of x[rows, columns] into y[columns, rows], both T */
    void (*transpose)(void *y, int64_t y_pitch, const void *x, int64_t x_pitch, int64_t rows, int64_t columns);
} row_loops;

typedef struct isa {
    const char *name;
    int lanes;
    const row_loops *rows[ISA_TYPES];
    double (*sum_squares)(const float *x, int64_t n);
    /* bf16 of x, rounded stochastically: x[0] is element `first` */
    void (*round)(uint16_t *to, const float *x, int64_t n, const rounding *r, uint64_t first);
    const tile_loops *tiles[ISA_TYPES];
} isa;

extern const isa isa_base, isa_avx2, isa_avx512, isa_avx512_bf16;

/* The best that this processor has. */
const isa *isa_detect(void);
/* The loops of a run. */
const isa *isa_of(const run_context *r);
/* true where the processor multiplies bf16 natively */
bool isa_has_bf16(const isa *i);
