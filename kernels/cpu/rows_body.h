/* The row loops of isa.h for one element type, included once a type by isa_body.h with
 *   T the storage type, SIGMOID(x) as exact as T, LOAD(p, n) and STORE(p, v, n) between it and vf, NAME(f) the
 *   function's name for the type.
 * READ and WRITE are these from element i on. Everything is computed in fp32 and rounded once when stored. (No include
 * guard: it is a body.) */

#define READ(p, i, n)     LOAD((const T *)(p) + (i), (int)(n))
#define WRITE(p, i, v, n) STORE((T *)(p) + (i), v, (int)(n))
#define EACH(i, m, n)     for (int64_t i = 0, m; i < (n) && ((m = (n)-i < LANES ? (n)-i : LANES), 1); i += LANES)

static void NAME(to_float)(float *y, const void *x, int64_t n)
{
    EACH(i, m, n) store_fp32(y + i, READ(x, i, m), (int)m);
}

static void NAME(from_float)(void *y, const float *x, int64_t n)
{
    EACH(i, m, n) WRITE(y, i, load_fp32(x + i, (int)m), m);
}

static void NAME(accumulate)(float *total, const void *x, int64_t n)
{
    EACH(i, m, n) store_fp32(total + i, load_fp32(total + i, (int)m) + READ(x, i, m), (int)m);
}

static void NAME(add)(void *y, const void *a, const void *b, int64_t n)
{
    EACH(i, m, n) WRITE(y, i, READ(a, i, m) + READ(b, i, m), m);
}

static void NAME(scale)(void *y, const void *x, float factor, int64_t n)
{
    EACH(i, m, n) WRITE(y, i, READ(x, i, m) * vf_set(factor), m);
}

static void NAME(mask)(void *y, const void *x, const float *factor, int64_t n)
{
    /* the product with 0 of an infinity must be 0: a dropped element has no value */
    EACH(i, m, n)
    {
        vf f = load_fp32(factor + i, (int)m), zero = vf_set(0), v = READ(x, i, m) * f;
        WRITE(y, i, vf_between(zero, f, zero, zero, v), m);
    }
}

static void NAME(soft_cap)(void *y, const void *x, float cap, int64_t n)
{
    EACH(i, m, n) WRITE(y, i, vf_set(cap) * vf_tanh(READ(x, i, m) / vf_set(cap)), m);
}

/* 1 - tanh(u)^2 = 4 s (1 - s), s = sigmoid(-2 |u|), which keeps its relative accuracy in the tails */
static void NAME(soft_cap_grad)(void *dx, const void *dy, const void *x, float cap, int64_t n)
{
    EACH(i, m, n)
    {
        vf u = READ(x, i, m) / vf_set(cap), s = SIGMOID(vf_set(-2) * vf_max(u, vf_set(0) - u));
        WRITE(dx, i, READ(dy, i, m) * vf_set(4) * s * (vf_set(1) - s), m);
    }
}

/* ---- activations ----------------------------------------------------------------------------------------------- */

/* 0.5 (1 + tanh(u)) = sigmoid(2u): gelu(x) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3), which keeps its relative
 * accuracy in the negative tail. */
static void NAME(gelu)(void *y, const void *x, int64_t n)
{
    EACH(i, m, n)
    {
        vf v = READ(x, i, m);
        vf twice = v * vf_fma(v * v, vf_set(GELU_TWICE * GELU_CUBIC), vf_set(GELU_TWICE));
        WRITE(y, i, v * SIGMOID(twice), m);
    }
}

/* s + x s (1 - s) d(2u)/dx */
static void NAME(gelu_grad)(void *dx, const void *dy, const void *x, int64_t n)
{
    EACH(i, m, n)
    {
        vf v = READ(x, i, m), square = v * v;
        vf s = SIGMOID(v * vf_fma(square, vf_set(GELU_TWICE * GELU_CUBIC), vf_set(GELU_TWICE)));
        vf inner = vf_fma(square, vf_set(3 * GELU_TWICE * GELU_CUBIC), vf_set(GELU_TWICE));
        vf slope = vf_fma(v * s * (vf_set(1) - s), inner, s);
        WRITE(dx, i, READ(dy, i, m) * slope, m);
    }
}

static void NAME(gelu_exact)(void *y, const void *x, int64_t n)
{
    EACH(i, m, n)
    {
        vf v = READ(x, i, m);
        WRITE(y, i, v * vf_normal_integral(v), m);
    }
}

/* Phi(x) + x phi(x) */
static void NAME(gelu_exact_grad)(void *dx, const void *dy, const void *x, int64_t n)
{
    EACH(i, m, n)
    {
        vf v = READ(x, i, m), density = vf_set(INVERSE_ROOT_2_PI) * vf_exp(vf_set(-0.5f) * v * v);
        WRITE(dx, i, READ(dy, i, m) * vf_fma(v, density, vf_normal_integral(v)), m);
    }
}

static void NAME(swiglu)(void *y, const void *gate, const void *up, int64_t n)
{
    EACH(i, m, n)
    {
        vf g = READ(gate, i, m);
        WRITE(y, i, g * SIGMOID(g) * READ(up, i, m), m);
    }
}

/* silu'(g) = s + g s (1 - s) */
static void NAME(swiglu_grad)(void *dgate, void *dup, const void *dy, const void *gate, const void *up, int64_t n)
{
    EACH(i, m, n)
    {
        vf g = READ(gate, i, m), d = READ(dy, i, m), u = READ(up, i, m), s = SIGMOID(g);
        vf silu = g * s;
        WRITE(dgate, i, d * u * vf_fma(silu, vf_set(1) - s, s), m);
        WRITE(dup, i, d * silu, m);
    }
}

static void NAME(geglu)(void *y, const void *gate, const void *up, int64_t n)
{
    EACH(i, m, n)
    {
        vf g = READ(gate, i, m);
        vf twice = g * vf_fma(g * g, vf_set(GELU_TWICE * GELU_CUBIC), vf_set(GELU_TWICE));
        WRITE(y, i, g * SIGMOID(twice) * READ(up, i, m), m);
    }
}

static void NAME(geglu_grad)(void *dgate, void *dup, const void *dy, const void *gate, const void *up, int64_t n)
{
    EACH(i, m, n)
    {
        vf g = READ(gate, i, m), d = READ(dy, i, m), u = READ(up, i, m), square = g * g;
        vf s = SIGMOID(g * vf_fma(square, vf_set(GELU_TWICE * GELU_CUBIC), vf_set(GELU_TWICE)));
        vf inner = vf_fma(square, vf_set(3 * GELU_TWICE * GELU_CUBIC), vf_set(GELU_TWICE));
        WRITE(dgate, i, d * u * vf_fma(g * s * (vf_set(1) - s), inner, s), m);
        WRITE(dup, i, d * g * s, m);
    }
}

/* n pairs of a gate and an up, apart. */
INLINE void NAME(split_pairs)(vf *gate, vf *up, const T *x, int n)
{
    float both[2 * LANES], parts[2][LANES];
    vf_store(both, LOAD(x, 2 * n < LANES ? 2 * n : LANES));
    if (2 * n > LANES)
        vf_store(both + LANES, READ(x, LANES, 2 * n - LANES));
    for (int i = 0; i < LANES; i++) {
        parts[0][i] = i < n ? both[2 * i] : 0;
        parts[1][i] = i < n ? both[2 * i + 1] : 0;
    }
    *gate = vf_load(parts[0]);
    *up = vf_load(parts[1]);
}

INLINE void NAME(join_pairs)(T *x, vf gate, vf up, int n)
{
    float both[2 * LANES], parts[2][LANES];
    vf_store(parts[0], gate);
    vf_store(parts[1], up);
    for (int i = 0; i < 2 * LANES; i++)
        both[i] = parts[i % 2][i / 2];
    STORE(x, vf_load(both), 2 * n < LANES ? 2 * n : LANES);
    if (2 * n > LANES)
        WRITE(x, LANES, vf_load(both + LANES), 2 * n - LANES);
}

/* The second operand of vf_min and vf_max is the result where one is NaN. */
static void NAME(swiglu_clamped)(void *y_, const void *x_, int64_t n, float limit, float slope)
{
    T *y = y_;
    const T *x = x_;
    vf high = vf_set(limit), low = vf_set(-limit);
    EACH(i, m, n)
    {
        vf gate, up;
        NAME(split_pairs)(&gate, &up, x + 2 * i, (int)m);
        vf g = vf_min(high, gate), u = vf_max(low, vf_min(high, up));
        WRITE(y, i, g * SIGMOID(g * vf_set(slope)) * (u + vf_set(1)), m);
    }
}

/* (g s)' = s + slope g s (1 - s), s = sigmoid(slope g) */
static void NAME(swiglu_clamped_grad)(void *dx_, const void *dy_, const void *x_, int64_t n, float limit, float slope)
{
    T *dx = dx_;
    const T *dy = dy_, *x = x_;
    vf high = vf_set(limit), low = vf_set(-limit), zero = vf_set(0);
    EACH(i, m, n)
    {
        vf gate, up, d = READ(dy, i, m);
        NAME(split_pairs)(&gate, &up, x + 2 * i, (int)m);
        vf g = vf_min(high, gate), u = vf_max(low, vf_min(high, up)), s = SIGMOID(g * vf_set(slope)), product = g * s;
        vf of_gate = d * (u + vf_set(1)) * vf_fma(vf_set(slope) * product, vf_set(1) - s, s);
        of_gate = vf_between(of_gate, gate, vf_set(-INFINITY), high, zero);
        NAME(join_pairs)(dx + 2 * i, of_gate, vf_between(d * product, up, low, high, zero), (int)m);
    }
}

/* ---- norms ----------------------------------------------------------------------------------------------------- */

/* s = x + residual, as it will be read back: rounded to T. Without a residual, x. */
static const T *NAME(norm_sum)(T *s, const T *x, const T *residual, int64_t n)
{
    if (!residual)
        return x;
    NAME(add)(s, x, residual, n);
    return s;
}

static float NAME(squares)(const void *x, int64_t n)
{
    vf squares = vf_set(0);
    EACH(i, m, n)
    {
        vf v = READ(x, i, m);
        squares = vf_fma(v, v, squares);
    }
    return vf_sum(squares);
}

static void NAME(normalise)(void *y, const void *s, const void *w, int64_t n, float rstd, float offset)
{
    vf r = vf_set(rstd), more = vf_set(offset);
    EACH(i, m, n) WRITE(y, i, READ(s, i, m) * r * (READ(w, i, m) + more), m);
}

static float NAME(rmsnorm)(void *y_, void *s_, const void *x_, const void *w_, const void *residual, int64_t n,
                           float epsilon, float offset)
{
    const T *s = NAME(norm_sum)(s_, x_, residual, n);
    float rstd = 1.0f / sqrtf(NAME(squares)(s, n) / (float)n + epsilon);
    NAME(normalise)(y_, s, w_, n, rstd, offset);
    return rstd;
}

static float NAME(layernorm)(void *y, void *s_, float *mean_, const void *x_, const void *w_, const void *b_,
                             const void *residual, int64_t n, float epsilon)
{
    const T *s = NAME(norm_sum)(s_, x_, residual, n), *w = w_, *b = b_;
    vf sum = vf_set(0), squares = vf_set(0);
    EACH(i, m, n) sum = sum + READ(s, i, m);
    vf mean = vf_set(vf_sum(sum) / (float)n);
    EACH(i, m, n)
    {
        vf v = vf_pad(READ(s, i, m) - mean, 0, (int)m);
        squares = vf_fma(v, v, squares);
    }
    float rstd = 1.0f / sqrtf(vf_sum(squares) / (float)n + epsilon);
    vf r = vf_set(rstd);
    EACH(i, m, n)
    {
        vf v = (READ(s, i, m) - mean) * r;
        WRITE(y, i, vf_fma(v, READ(w, i, m), READ(b, i, m)), m);
    }
    *mean_ = vf_sum(sum) / (float)n;
    return rstd;
}

/* Adds dy h to dw, where h = s rstd; returns the sum of w dy h. */
static float NAME(norm_dot)(float *dw, const void *dy, const void *s, const void *w, int64_t n, float rstd,
                            float offset)
{
    vf r = vf_set(rstd), dot = vf_set(0), more = vf_set(offset);
    EACH(i, m, n)
    {
        vf d = READ(dy, i, m), h = READ(s, i, m) * r;
        store_fp32(dw + i, vf_fma(d, h, load_fp32(dw + i, (int)m)), (int)m);
        dot = vf_fma(d * (READ(w, i, m) + more), h, dot); /* beyond the end d reads as 0 */
    }
    return vf_sum(dot);
}

/* dx = rstd (w dy - h mean) + addend */
static void NAME(norm_slope)(void *dx, const void *dy, const void *s, const void *w, const void *addend, int64_t n,
                             float rstd, float offset, float mean)
{
    vf r = vf_set(rstd), c = vf_set(-mean), more = vf_set(offset);
    EACH(i, m, n)
    {
        vf weight = READ(w, i, m) + more;
        vf g = vf_fma(READ(s, i, m) * r, c, READ(dy, i, m) * weight) * r;
        if (addend)
            g = g + READ(addend, i, m);
        WRITE(dx, i, g, m);
    }
}

static void NAME(rmsnorm_grad)(void *dx, float *dw, const void *dy, const void *s, const void *w, const void *addend,
                               int64_t n, float rstd, float offset)
{
    float mean = NAME(norm_dot)(dw, dy, s, w, n, rstd, offset) / (float)n;
    NAME(norm_slope)(dx, dy, s, w, addend, n, rstd, offset, mean);
}

/* h = (s - mean) rstd; dx = rstd (w dy - mean(w dy) - h mean(w dy h)) + addend, dw += dy h, db += dy. */
static void NAME(layernorm_grad)(void *dx, float *dw, float *db, const void *dy, const void *s, const void *w,
                                 const void *addend, int64_t n, float mean, float rstd)
{
    vf r = vf_set(rstd), centre = vf_set(mean), dot = vf_set(0), sum = vf_set(0);
    EACH(i, m, n)
    {
        vf d = READ(dy, i, m), h = (READ(s, i, m) - centre) * r, wd = d * READ(w, i, m);
        store_fp32(dw + i, vf_fma(d, h, load_fp32(dw + i, (int)m)), (int)m);
        store_fp32(db + i, d + load_fp32(db + i, (int)m), (int)m);
        sum = sum + wd; /* beyond the end dy and w read as 0 */
        dot = vf_fma(wd, h, dot);
    }
    vf c = vf_set(-vf_sum(dot) / (float)n), average = vf_set(vf_sum(sum) / (float)n);
    EACH(i, m, n)
    {
        vf wd = READ(dy, i, m) * READ(w, i, m) - average;
        vf g = vf_fma((READ(s, i, m) - centre) * r, c, wd) * r;
        if (addend)
            g = g + READ(addend, i, m);
        WRITE(dx, i, g, m);
    }
}

/* ---- rotary embedding ------------------------------------------------------------------------------------------ */

static void NAME(rotate)(void *y, const void *x, const float *cos_, const float *sin_, int64_t half, float sign)
{
    EACH(i, m, half)
    {
        vf a = READ(x, i, m), b = READ(x, half + i, m);
        vf c = load_fp32(cos_ + i, (int)m), s = load_fp32(sin_ + i, (int)m) * vf_set(sign);
        vf first = vf_fma(a, c, vf_set(0) - b * s), second = vf_fma(b, c, a * s);
        WRITE(y, i, first, m);
        WRITE(y, half + i, second, m);
    }
}

/* The pairs are parted into two vectors on the stack, and joined there. */
static void NAME(rotate_interleaved)(void *y_, const void *x_, const float *cos_, const float *sin_, int64_t half,
                                     float sign)
{
    T *y = y_;
    const T *x = x_;
    float both[2 * LANES] = {0}, first[LANES], second[LANES];
    EACH(i, m, half)
    {
        NAME(to_float)(both, x + 2 * i, 2 * m);
        UNROLL for (int j = 0; j < LANES; j++) first[j] = both[2 * j], second[j] = both[2 * j + 1];
        vf a = vf_load(first), b = vf_load(second);
        vf c = load_fp32(cos_ + i, (int)m), s = load_fp32(sin_ + i, (int)m) * vf_set(sign);
        vf_store(first, vf_fma(a, c, vf_set(0) - b * s));
        vf_store(second, vf_fma(b, c, a * s));
        UNROLL for (int j = 0; j < LANES; j++) both[2 * j] = first[j], both[2 * j + 1] = second[j];
        NAME(from_float)(y + 2 * i, both, 2 * m);
    }
}

/* ---- sums over rows -------------------------------------------------------------------------------------------- */

enum { NAME(SUM_BLOCK) = 64, NAME(SUM_VECTORS) = 8 };

/* Rows are summed 64 at a time and the blocks' sums added up, so that rounding grows with the number of blocks. */
static void NAME(column_sums)(float *out, const void *x_, int64_t pitch, int64_t rows, int64_t columns, int accumulate)
{
    for (int64_t c = 0; c < columns; c += NAME(SUM_VECTORS) * LANES) {
        int64_t width = columns - c < NAME(SUM_VECTORS) * LANES ? columns - c : NAME(SUM_VECTORS) * LANES;
        vf total[NAME(SUM_VECTORS)], block[NAME(SUM_VECTORS)];
        for (int j = 0; j < NAME(SUM_VECTORS); j++)
            total[j] = vf_set(0);
        for (int64_t r = 0; r < rows; r += NAME(SUM_BLOCK)) {
            int64_t end = r + NAME(SUM_BLOCK) < rows ? r + NAME(SUM_BLOCK) : rows;
            UNROLL for (int j = 0; j < NAME(SUM_VECTORS); j++) block[j] = vf_set(0);
            if (width == NAME(SUM_VECTORS) * LANES)
                for (int64_t i = r; i < end; i++) {
                    const T *x = (const T *)x_ + i * pitch + c;
                    UNROLL for (int j = 0; j < NAME(SUM_VECTORS); j++) block[j] = block[j] + LOAD(x + j * LANES, LANES);
                }
            else
                for (int64_t i = r; i < end; i++) {
                    const T *x = (const T *)x_ + i * pitch + c;
                    EACH(j, m, width) block[j / LANES] = block[j / LANES] + READ(x, j, m);
                }
            UNROLL for (int j = 0; j < NAME(SUM_VECTORS); j++) total[j] = total[j] + block[j];
        }
        EACH(j, m, width)
        {
            vf sum = total[j / LANES];
            if (accumulate)
                sum = sum + load_fp32(out + c + j, (int)m);
            store_fp32(out + c + j, sum, (int)m);
        }
    }
}

/* ---- loss ------------------------------------------------------------------------------------------------------ */

static void NAME(logits_stats)(float *largest, float *sum, const void *logits, int64_t n)
{
    vf top = vf_set(-INFINITY), total = vf_set(0);
    EACH(i, m, n) top = vf_max(top, vf_pad(READ(logits, i, m), -INFINITY, (int)m));
    *largest = vf_largest(top);
    /* exp of -inf where all logits are -inf would be NaN: a rank may have no real columns */
    vf shift = vf_set(*largest > -INFINITY ? *largest : 0);
    EACH(i, m, n)
    {
        vf v = vf_exp2((READ(logits, i, m) - shift) * vf_set(LOG2_E));
        total = total + vf_pad(v, 0, (int)m);
    }
    *sum = vf_sum(total);
}

static void NAME(logits_grad)(void *dlogits, const void *logits, int64_t n, float largest, float factor)
{
    vf shift = vf_set(largest), f = vf_set(factor);
    EACH(i, m, n) WRITE(dlogits, i, vf_exp2((READ(logits, i, m) - shift) * vf_set(LOG2_E)) * f, m);
}

/* ---- experts --------------------------------------------------------------------------------------------------- */

static void NAME(sigmoids)(float *y, const void *x, int64_t n)
{
    EACH(i, m, n) store_fp32(y + i, vf_sigmoid(READ(x, i, m)), (int)m);
}

static void NAME(probabilities)(float *y, const void *x, int64_t n)
{
    vf top = vf_set(-INFINITY), total = vf_set(0);
    EACH(i, m, n) top = vf_max(top, vf_pad(READ(x, i, m), -INFINITY, (int)m));
    vf shift = vf_set(vf_largest(top));
    EACH(i, m, n)
    {
        vf v = vf_exp(READ(x, i, m) - shift);
        total = total + vf_pad(v, 0, (int)m);
        store_fp32(y + i, v, (int)m);
    }
    vf factor = vf_set(1 / vf_sum(total));
    EACH(i, m, n) store_fp32(y + i, load_fp32(y + i, (int)m) * factor, (int)m);
}

static void NAME(weighted_sum)(void *y, const void *addend, const void *const *rows, const float *weights, int count,
                               int64_t n)
{
    EACH(i, m, n)
    {
        vf sum = addend ? READ(addend, i, m) : vf_set(0);
        for (int j = 0; j < count; j++)
            sum = vf_fma(READ(rows[j], i, m), vf_set(weights[j]), sum);
        WRITE(y, i, sum, m);
    }
}

/* ---- optimizer: T is the weight's type ------------------------------------------------------------------------- */

static void NAME(adamw)(void *const out[4], const float *gradient, int64_t n, const update_factors *f)
{
    T *weight = out[0];
    float *master = out[1], *m_ = out[2], *v_ = out[3];
    vf beta1 = vf_set(f->beta1), rest1 = vf_set(1 - f->beta1), beta2 = vf_set(f->beta2), rest2 = vf_set(1 - f->beta2);
    vf factor = vf_set(f->gradient), rate = vf_set(-f->rate), root = vf_set(f->root), epsilon = vf_set(f->epsilon);
    vf keep = vf_set(f->keep);
    EACH(i, k, n)
    {
        int c = (int)k;
        vf g = load_fp32(gradient + i, c) * factor;
        vf m = vf_fma(rest1, g, beta1 * load_fp32(m_ + i, c));
        vf v = vf_fma(rest2 * g, g, beta2 * load_fp32(v_ + i, c));
        vf step = m / (vf_sqrt(v * root) + epsilon);
        vf w = vf_fma(rate, step, keep * load_fp32(master + i, c));
        store_fp32(m_ + i, m, c);
        store_fp32(v_ + i, v, c);
        store_fp32(master + i, w, c);
        if (weight)
            WRITE(weight, i, w, c);
    }
}

static void NAME(lion)(void *const out[4], const float *gradient, int64_t n, const update_factors *f)
{
    T *weight = out[0];
    float *master = out[1], *m_ = out[2];
    vf beta1 = vf_set(f->beta1), rest1 = vf_set(1 - f->beta1), beta2 = vf_set(f->beta2), rest2 = vf_set(1 - f->beta2);
    vf factor = vf_set(f->gradient), rate = vf_set(-f->rate), keep = vf_set(f->keep);
    EACH(i, k, n)
    {
        int c = (int)k;
        vf g = load_fp32(gradient + i, c) * factor, m = load_fp32(m_ + i, c);
        vf step = vf_sign(vf_fma(rest1, g, beta1 * m));
        vf w = vf_fma(rate, step, keep * load_fp32(master + i, c));
        store_fp32(m_ + i, vf_fma(rest2, g, beta2 * m), c);
        store_fp32(master + i, w, c);
        if (weight)
            WRITE(weight, i, w, c);
    }
}

static void NAME(sgd)(void *const out[4], const float *gradient, int64_t n, const update_factors *f)
{
    T *weight = out[0];
    float *master = out[1], *m_ = out[2];
    vf beta1 = vf_set(f->beta1), own = vf_set(f->own), mean = vf_set(f->mean);
    vf factor = vf_set(f->gradient), rate = vf_set(-f->rate);
    EACH(i, k, n)
    {
        int c = (int)k;
        vf g = load_fp32(gradient + i, c) * factor, m = vf_fma(beta1, load_fp32(m_ + i, c), g);
        vf w = vf_fma(rate, vf_fma(own, g, mean * m), load_fp32(master + i, c));
        store_fp32(m_ + i, m, c);
        store_fp32(master + i, w, c);
        if (weight)
            WRITE(weight, i, w, c);
    }
}

static void NAME(muon_momentum)(void *const out[4], const float *gradient, int64_t n, const update_factors *f)
{
    float *x = out[0], *m_ = out[1];
    vf beta1 = vf_set(f->beta1), rest1 = vf_set(1 - f->beta1), own = vf_set(f->own), mean = vf_set(f->mean);
    vf factor = vf_set(f->gradient);
    EACH(i, k, n)
    {
        int c = (int)k;
        vf g = load_fp32(gradient + i, c) * factor, m = vf_fma(rest1, g, beta1 * load_fp32(m_ + i, c));
        store_fp32(m_ + i, m, c);
        store_fp32(x + i, vf_fma(own, g, mean * m), c);
    }
}

static void NAME(muon)(void *const out[4], const float *x, int64_t n, const update_factors *f)
{
    T *weight = out[0];
    float *master = out[1];
    vf rate = vf_set(-f->rate), keep = vf_set(f->keep);
    EACH(i, k, n)
    {
        int c = (int)k;
        vf w = vf_fma(rate, load_fp32(x + i, c), keep * load_fp32(master + i, c));
        store_fp32(master + i, w, c);
        if (weight)
            WRITE(weight, i, w, c);
    }
}

/* ---- layout ---------------------------------------------------------------------------------------------------- */

static void NAME(transpose)(void *y_, int64_t y_pitch, const void *x_, int64_t x_pitch, int64_t rows, int64_t columns)
{
    T *y = y_;
    const T *x = x_;
    for (int64_t r = 0; r < rows; r += LANES)
        for (int64_t c = 0; c < columns; c += LANES) {
            int height = rows - r < LANES ? (int)(rows - r) : LANES;
            int width = columns - c < LANES ? (int)(columns - c) : LANES;
            vf v[LANES];
            if (height == LANES && width == LANES) {
                UNROLL for (int i = 0; i < LANES; i++) v[i] = LOAD(x + (r + i) * x_pitch + c, LANES);
                vf_transpose(v);
                UNROLL for (int i = 0; i < LANES; i++) STORE(y + (c + i) * y_pitch + r, v[i], LANES);
            } else {
                for (int i = 0; i < height; i++)
                    for (int j = 0; j < width; j++)
                        y[(c + j) * y_pitch + r + i] = x[(r + i) * x_pitch + c + j];
            }
        }
}

static const row_loops NAME(loops) = {
    NAME(to_float),
    NAME(from_float),
    NAME(accumulate),
    NAME(add),
    NAME(scale),
    NAME(soft_cap),
    NAME(soft_cap_grad),
    NAME(gelu),
    NAME(gelu_grad),
    NAME(gelu_exact),
    NAME(gelu_exact_grad),
    NAME(swiglu),
    NAME(swiglu_grad),
    NAME(geglu),
    NAME(geglu_grad),
    NAME(swiglu_clamped),
    NAME(swiglu_clamped_grad),
    NAME(rmsnorm),
    NAME(squares),
    NAME(normalise),
    NAME(norm_dot),
    NAME(norm_slope),
    NAME(layernorm),
    NAME(rmsnorm_grad),
    NAME(layernorm_grad),
    NAME(rotate),
    NAME(rotate_interleaved),
    NAME(column_sums),
    NAME(logits_stats),
    NAME(logits_grad),
    NAME(mask),
    NAME(sigmoids),
    NAME(probabilities),
    NAME(weighted_sum),
    {
#define UPDATE(name) NAME(name),
#include "kernels/table/updates.def"
    },
    NAME(transpose),
};
#undef EACH
#undef WRITE
#undef READ
