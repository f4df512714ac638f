/* The loops of tile.h for one storage type, included by isa_body.h with
 *   T, LOAD(p, n), STORE(p, v, n) the storage type as in rows_body.h,
 *   E the compute type, P of it in a step, PUT(p, v, n) a row of E, MAKE_PAIR(v, next) P rows as a PAIR, which
 *   PUT_ROWS(p, below, pair) and PUT_LANES(p, pair) store,
 *   PRODUCT the product of E, NAME(f), and SAME_PAIRS where T is E and P is 2. */

#define EACH(i, m, n) for (int64_t i = 0, m; i < (n) && ((m = (n)-i < LANES ? (n)-i : LANES), 1); i += LANES)

static void NAME(rows)(void *a_, int64_t lda, const void *x_, int64_t pitch, int64_t m, int64_t k)
{
    for (int64_t i = 0; i < m; i++) {
        E *a = (E *)a_ + i * lda;
        const T *x = (const T *)x_ + i * pitch;
        EACH(j, w, k) PUT(a + j, LOAD(x + j, (int)w), (int)w);
        for (int64_t j = k; j % P; j++)
            a[j] = 0;
    }
}

static void NAME(rows_transposed)(void *a_, int64_t lda, const void *x_, int64_t pitch, int64_t k, int64_t m)
{
    E *a = a_;
    const T *x = x_;
    EACH(r, height, k)
    EACH(c, width, m)
    {
        vf v[LANES];
        for (int i = 0; i < LANES; i++)
            v[i] = LOAD(x + (r + (i < height ? i : 0)) * pitch + c, (int)width);
        for (int i = (int)height; i < LANES; i++)
            v[i] = vf_set(0);
        vf_transpose(v);
        int w = (int)(height + height % P); /* an odd k is padded: the rows beyond are 0 */
        for (int i = 0; i < width; i++)
            PUT(a + (c + i) * lda + r, v[i], w);
    }
}

static void NAME(lanes)(void *b_, int64_t ldb, const void *x_, int64_t pitch, int64_t k, int64_t n)
{
    for (int64_t i = 0; i < k; i += P) {
        E *b = (E *)b_ + i * ldb;
        const T *x = (const T *)x_ + i * pitch;
        int64_t done = 0;
#ifdef SAME_PAIRS
        if (i + 1 < k)
            for (; done + 2 * LANES <= n; done += 2 * LANES)
                bf16_interleave(b + done * P, x + done, x + pitch + done);
#endif
        EACH(j, w, n - done)
        {
            vf v = LOAD(x + done + j, (int)w), next = vf_set(0);
            if (P == 2 && i + 1 < k)
                next = LOAD(x + pitch + done + j, (int)w);
            PUT_LANES(b + (done + j) * P, MAKE_PAIR(v, next));
        }
    }
}

static void NAME(lanes_transposed)(void *b_, int64_t ldb, const void *x_, int64_t pitch, int64_t n, int64_t k)
{
    E *b = b_;
    const T *x = x_;
    EACH(c, width, n)
    {
        int64_t r = 0;
#ifdef SAME_PAIRS /* pairs are 32 bits wide and stay together: a transpose of words */
        if (width == LANES)
            for (; r + 2 * LANES <= k; r += 2 * LANES) {
                vf v[LANES];
                UNROLL for (int i = 0; i < LANES; i++) memcpy(v + i, x + (c + i) * pitch + r, sizeof *v);
                vf_transpose(v);
                UNROLL for (int i = 0; i < LANES; i++) memcpy(b + (r / 2 + i) * ldb * 2 + c * 2, v + i, sizeof *v);
            }
#endif
        for (; r < k; r += LANES) {
            vf v[LANES + 1];
            int height = k - r < LANES ? (int)(k - r) : LANES;
            for (int i = 0; i < LANES; i++)
                v[i] = LOAD(x + (c + (i < width ? i : 0)) * pitch + r, height);
            for (int i = (int)width; i < LANES; i++)
                v[i] = vf_set(0);
            vf_transpose(v);
            v[LANES] = vf_set(0);
            for (int i = 0; i < height; i += P)
                PUT_LANES(b + (r + i) * ldb + c * P, MAKE_PAIR(v[i], v[i + P - 1]));
        }
    }
}

/* ---- softmax --------------------------------------------------------------------------------------------------- */

static void NAME(cap)(float *s, int64_t keys, float factor)
{
    for (int64_t i = 0; i < keys * TILE_QUERIES; i += LANES)
        vf_store(s + i, vf_tanh(vf_load(s + i) * vf_set(factor)));
}

static void NAME(cap_grad)(float *s, float *dp, const float *delta, int64_t keys, float factor)
{
    NAME(cap)(s, keys, factor);
    for (int64_t k = 0; k < keys; k++)
        for (int q = 0; q < TILE_QUERIES; q += LANES) {
            vf t = vf_load(s + k * TILE_QUERIES + q), d = vf_load(dp + k * TILE_QUERIES + q) - vf_load(delta + q);
            vf_store(dp + k * TILE_QUERIES + q, d * (vf_set(1) - t * t));
        }
}

static bool NAME(softmax)(void *p_, float *s, float *top, float *sum, float *fade, const tile_mask *mask, int64_t keys,
                          float scale)
{
    E *p = p_;
    bool fades = false;
    vf factor = vf_set(scale), none = vf_set(-INFINITY), zero = vf_set(0);
    for (int q = 0; q < TILE_QUERIES; q += LANES) {
        float *column = s + q;
        vf low = vf_load(mask->low + q), high = vf_load(mask->high + q), largest = none;
        if (mask->partial)
            for (int64_t k = 0; k < keys; k++) {
                vf v = vf_load(column + k * TILE_QUERIES);
                vf_store(column + k * TILE_QUERIES, vf_between(v, vf_set(mask->first_key + (float)k), low, high, none));
            }
        for (int64_t k = 0; k < keys; k++)
            largest = vf_max(largest, vf_load(column + k * TILE_QUERIES));
        vf before = vf_load(top + q), now = vf_max(before, largest * factor), shift = zero - now, total = zero;
        for (int64_t k = 0; k < keys; k += P) {
            vf v = vf_exp2(vf_fma(vf_load(column + k * TILE_QUERIES), factor, shift)), next = zero;
            if (P == 2 && k + 1 < keys)
                next = vf_exp2(vf_fma(vf_load(column + (k + 1) * TILE_QUERIES), factor, shift));
            total = total + v;
            if (P == 2)
                total = total + next;
            PUT_LANES(p + k * TILE_QUERIES + q * P, MAKE_PAIR(v, next));
        }
        vf f = vf_exp2(before - now);
        vf_store(fade + q, f);
        vf_store(top + q, now);
        vf_store(sum + q, vf_fma(vf_load(sum + q), f, total));
        fades |= vf_smallest(f) < 1.0f;
    }
    return fades;
}

/* Row k of a tile: *p = 2^(s scale - lse), *ds = p (dp - delta) grad. */
INLINE void NAME(softmax_grad_row)(vf *p, vf *ds, const float *s, const float *dp, float key, const tile_mask *mask,
                                   int q, vf scale, vf grad, vf shift, vf delta)
{
    vf v = vf_exp2(vf_fma(vf_load(s), scale, shift));
    if (mask->partial)
        v = vf_between(v, vf_set(key), vf_load(mask->low + q), vf_load(mask->high + q), vf_set(0));
    *p = v;
    *ds = v * (vf_load(dp) - delta) * grad;
}

static void NAME(softmax_grad)(void *p_, void *ds_, void *ds_lanes_, const float *s, const float *dp, const float *lse,
                               const float *delta, const tile_mask *mask, int64_t keys, float scale, float grad_scale)
{
    E *p = p_, *ds = ds_, *ds_lanes = ds_lanes_;
    vf factor = vf_set(scale), grad = vf_set(grad_scale), zero = vf_set(0);
    for (int q = 0; q < TILE_QUERIES; q += LANES) {
        vf shift = zero - vf_load(lse + q), mean = vf_load(delta + q);
        for (int64_t k = 0; k < keys; k += P) {
            int64_t at = k * TILE_QUERIES + q, below = at + (P == 2) * TILE_QUERIES;
            float key = mask->first_key + (float)k;
            vf v[2] = {zero, zero}, d[2] = {zero, zero};
            NAME(softmax_grad_row)(v, d, s + at, dp + at, key, mask, q, factor, grad, shift, mean);
            if (P == 2 && k + 1 < keys)
                NAME(softmax_grad_row)
            (v + 1, d + 1, s + below, dp + below, key + 1, mask, q, factor, grad, shift, mean);
            PAIR pair = MAKE_PAIR(v[0], v[1]), grads = MAKE_PAIR(d[0], d[1]);
            PUT_ROWS(p + at, p + below, pair);
            PUT_ROWS(ds + at, ds + below, grads);
            PUT_LANES(ds_lanes + k * TILE_QUERIES + q * P, grads);
        }
    }
}

static void NAME(fade)(float *c, const float *factor, int64_t m)
{
    for (int q = 0; q < TILE_QUERIES; q += LANES) {
        vf f = vf_load(factor + q);
        if (vf_smallest(f) < 1.0f)
            for (int64_t i = 0; i < m; i++)
                vf_store(c + i * TILE_QUERIES + q, vf_load(c + i * TILE_QUERIES + q) * f);
    }
}

/* ---- out ------------------------------------------------------------------------------------------------------- */

static void NAME(transposed_out)(void *y_, int64_t pitch, const float *c, int64_t ldc, const float *factor, int64_t m,
                                 int64_t n)
{
    T *y = y_;
    EACH(i, height, m)
    EACH(j, width, n)
    {
        vf v[LANES], f = load_fp32(factor + j, (int)width);
        for (int k = 0; k < LANES; k++)
            v[k] = load_fp32(c + (i + (k < height ? k : 0)) * ldc + j, (int)width) * f;
        vf_transpose(v);
        for (int k = 0; k < width; k++)
            STORE(y + (j + k) * pitch + i, v[k], (int)height);
    }
}

static float NAME(dot)(const void *a_, const void *b_, int64_t n)
{
    const T *a = a_, *b = b_;
    vf sum = vf_set(0);
    EACH(i, m, n) sum = vf_fma(LOAD(a + i, (int)m), LOAD(b + i, (int)m), sum);
    return vf_sum(sum);
}

static const tile_loops NAME(tiles) = {
    .bytes = sizeof(E),
    .pair = P,
    .rows = NAME(rows),
    .rows_transposed = NAME(rows_transposed),
    .lanes = NAME(lanes),
    .lanes_transposed = NAME(lanes_transposed),
    .product = PRODUCT,
    .cap = NAME(cap),
    .cap_grad = NAME(cap_grad),
    .softmax = NAME(softmax),
    .softmax_grad = NAME(softmax_grad),
    .fade = NAME(fade),
    .transposed_out = NAME(transposed_out),
    .dot = NAME(dot),
};
#undef EACH
