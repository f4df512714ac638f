/* The micro-kernels of a tile product for one compute type, included by isa_body.h with
 *   E the compute type, P of it in a step, STEP(acc, a, b) one step from a's broadcast and b's vector, NAME(f).
 * A block of up to TILE_ROWS rows by TILE_VECTORS vectors of C stays in registers along all of k. */

#define MICRO(M, W, V)                                                                                                 \
    static void NAME(micro_##M##_##W)(float *c, int64_t ldc, const E *a, int64_t a_row, int64_t a_step, const E *b,    \
                                      int64_t ldb, int64_t steps, bool accumulate)                                     \
    {                                                                                                                  \
        NAME(micro)(M, V, c, ldc, a, a_row, a_step, b, ldb, steps, accumulate);                                        \
    }

INLINE void NAME(micro)(const int rows, const int vectors, float *c, int64_t ldc, const E *a, int64_t a_row,
                        int64_t a_step, const E *b, int64_t ldb, int64_t steps, bool accumulate)
{
    vf acc[TILE_ROWS][TILE_VECTORS];
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < vectors; j++) acc[i][j] =
        accumulate ? vf_load(c + i * ldc + j * LANES) : vf_set(0);
    for (int64_t k = 0; k < steps; k++) {
        UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < vectors; j++) acc[i][j] =
            STEP(acc[i][j], a + i * a_row + k * a_step, b + (k * ldb + j * LANES) * P);
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < vectors; j++)
        vf_store(c + i * ldc + j * LANES, acc[i][j]);
}

MICRO(6, wide, TILE_VECTORS)
MICRO(4, wide, TILE_VECTORS)
MICRO(2, wide, TILE_VECTORS)
MICRO(1, wide, TILE_VECTORS)
MICRO(6, narrow, 1)
MICRO(4, narrow, 1)
MICRO(2, narrow, 1)
MICRO(1, narrow, 1)
#undef MICRO

static void NAME(product)(float *c, int64_t ldc, const void *a_, int64_t a_row, int64_t a_step, const void *b_,
                          int64_t ldb, int64_t m, int64_t n, int64_t k, bool accumulate)
{
    typedef void micro(float *, int64_t, const E *, int64_t, int64_t, const E *, int64_t, int64_t, bool);
    static const struct {
        int rows;
        micro *wide, *narrow;
    } kernels[] = {{6, NAME(micro_6_wide), NAME(micro_6_narrow)},
                   {4, NAME(micro_4_wide), NAME(micro_4_narrow)},
                   {2, NAME(micro_2_wide), NAME(micro_2_narrow)},
                   {1, NAME(micro_1_wide), NAME(micro_1_narrow)}};
    const E *a = a_, *b = b_;
    int64_t steps = (k + P - 1) / P;
    for (int64_t j = 0; j < n;) {
        bool wide = n - j >= TILE_VECTORS * LANES;
        int64_t i = 0;
        for (int kind = 0; kind < 4; kind++)
            for (; m - i >= kernels[kind].rows; i += kernels[kind].rows)
                (wide ? kernels[kind].wide : kernels[kind].narrow)(c + i * ldc + j, ldc, a + i * a_row, a_row, a_step,
                                                                   b + j * P, ldb, steps, accumulate);
        j += wide ? TILE_VECTORS * LANES : LANES;
    }
}
