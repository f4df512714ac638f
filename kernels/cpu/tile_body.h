/* The loops of tile.h for one storage type, included by isa_body.h with
 *   T, LOAD(p, n), STORE(p, v, n) the storage type as in rows_body.h,
 *   E the compute type, P of it in a step, PUT(p, v, n) a row of E, PUT_LANES(p, v, w, n) P rows into lanes,
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
        EACH(j, w, n)
        {
            vf v = LOAD(x + j, (int)w), next = vf_set(0);
            if (P == 2 && i + 1 < k)
                next = LOAD(x + pitch + j, (int)w);
            PUT_LANES(b + j * P, v, next);
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
                PUT_LANES(b + (r + i) * ldb + c * P, v[i], v[i + P - 1]);
        }
    }
}

/* ---- softmax --------------------------------------------------------------------------------------------------- */

static bool NAME(softmax)(void *p_, float *s, float *top, float *sum, float *fade, const tile_mask *mask, int64_t keys,
                          float scale)
{
    E *p = p_;
    bool fades = false;
    vf factor = vf_set(scale), none = vf_set(-INFINITY);
    for (int q = 0; q < TILE_QUERIES; q += LANES) {
        vf low = vf_load(mask->low + q), high = vf_load(mask->high + q), largest = none;
        for (int64_t k = 0; k < keys; k++) {
            vf v = vf_load(s + k * TILE_QUERIES + q);
            if (mask->partial) {
                v = vf_between(v, vf_set(mask->first_key + (float)k), low, high, none);
                vf_store(s + k * TILE_QUERIES + q, v);
            }
            largest = vf_max(largest, v);
        }
        vf before = vf_load(top + q), now = vf_max(before, largest * factor), total = vf_set(0);
        for (int64_t k = 0; k < keys; k += P) {
            vf v = vf_exp(vf_fma(vf_load(s + k * TILE_QUERIES + q), factor, vf_set(0) - now)), next = vf_set(0);
            if (P == 2 && k + 1 < keys)
                next = vf_exp(vf_fma(vf_load(s + (k + 1) * TILE_QUERIES + q), factor, vf_set(0) - now));
            total = total + v;
            if (P == 2)
                total = total + next;
            PUT_LANES(p + (k * TILE_QUERIES) + q * P, v, next);
        }
        vf f = vf_exp(before - now);
        vf_store(fade + q, f);
        vf_store(top + q, now);
        vf_store(sum + q, vf_fma(vf_load(sum + q), f, total));
        for (int i = q; i < q + LANES; i++)
            fades |= fade[i] != 1.0f;
    }
    return fades;
}

static void NAME(softmax_grad)(void *p_, void *ds_, void *ds_lanes_, const float *s, const float *dp, const float *lse,
                               const float *delta, const tile_mask *mask, int64_t keys, float scale)
{
    E *p = p_, *ds = ds_, *ds_lanes = ds_lanes_;
    vf factor = vf_set(scale), zero = vf_set(0);
    for (int q = 0; q < TILE_QUERIES; q += LANES) {
        vf low = vf_load(mask->low + q), high = vf_load(mask->high + q);
        vf shift = zero - vf_load(lse + q), mean = vf_load(delta + q);
        for (int64_t k = 0; k < keys; k += P) {
            vf d[2] = {zero, zero};
            UNROLL for (int i = 0; i < P; i++)
            {
                int64_t at = (k + i) * TILE_QUERIES + q;
                if (k + i >= keys)
                    break;
                vf v = vf_exp(vf_fma(vf_load(s + at), factor, shift));
                if (mask->partial)
                    v = vf_between(v, vf_set(mask->first_key + (float)(k + i)), low, high, zero);
                d[i] = v * (vf_load(dp + at) - mean) * factor;
                PUT(p + at, v, LANES);
                PUT(ds + at, d[i], LANES);
            }
            PUT_LANES(ds_lanes + k * TILE_QUERIES + q * P, d[0], d[1]);
        }
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
    .softmax = NAME(softmax),
    .softmax_grad = NAME(softmax_grad),
    .transposed_out = NAME(transposed_out),
    .dot = NAME(dot),
};
#undef EACH
