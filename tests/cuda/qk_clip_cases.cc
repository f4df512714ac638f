/* QK-clip: the largest of rows, and the factors of weights' rows that follow from the largest scores of heads. */
#include "tests/cuda/check.h"

namespace
{
void largest()
{
    for (int64_t columns : {1, 7, 32, 255, 256, 1030})
        for (int64_t rows : {1, 5})
            for (bool accumulate : {false, true}) {
                const int64_t pitch = columns + 3;
                array x(DTYPE_FP32, randoms((size_t)(rows * pitch), 8)), y(DTYPE_FP32, randoms((size_t)rows, 8));
                vector<double> want = y.value;
                for (int64_t i = 0; i < rows; i++) {
                    double most = accumulate ? want[(size_t)i] : -INFINITY;
                    for (int64_t j = 0; j < columns; j++)
                        most = fmax(most, x.value[(size_t)(i * pitch + j)]);
                    want[(size_t)i] = most;
                }
                call c({rows_in(x, rows, columns, pitch)}, {all_of(y)});
                c.o.at.accumulate = accumulate;
                RUN(max_logit, c);
                compare("largest", y, want, 0);
            }
}

void one(op_qk_clip of, int64_t layers, int64_t layer, int64_t ranks, int64_t behind)
{
    constexpr double THRESHOLD = 3;
    of.threshold = (float)THRESHOLD;
    const int64_t rows = (int64_t)of.blocks * of.size + behind, max_logit_rows = ranks * layers;
    vector<double> scores = randoms((size_t)(max_logit_rows * of.heads), 6), want;
    if (of.heads > 1) /* a step with such a score is skipped, and nothing scales by its factor */
        scores[(size_t)(layer * of.heads + 1)] = INFINITY;
    array max_logits(DTYPE_FP32, scores), factors(DTYPE_FP32, (size_t)rows);
    for (int64_t row = 0; row < rows; row++) {
        const int64_t block = row / of.size;
        double most = 0;
        for (int64_t rank = 0; rank < ranks && block < of.blocks; rank++)
            most = fmax(most, scores[(size_t)((rank * layers + layer) * of.heads + block % of.heads)]);
        const double gamma = most > THRESHOLD && std::isfinite(most) ? THRESHOLD / most : 1;
        want.push_back(row % of.size >= of.size - of.whole ? gamma : sqrt(gamma));
    }
    call c({rows_in(max_logits, max_logit_rows, of.heads)}, {all_of(factors)});
    c.o.at.qk = of;
    c.o.at.qk.layers = layers;
    c.o.at.qk.layer = layer;
    RUN(qk_factors, c);
    compare("factors", factors, want, 4e-7);
}

void factors()
{
    one({1, 1, 1, 0, 0, 0, 0}, 1, 0, 1, 0);       /* one row */
    one({4, 8, 6, 0, 0, 0, 0}, 3, 1, 2, 24);      /* keys behind queries, and values behind them */
    one({5, 5, 48, 16, 0, 0, 0}, 3, 2, 3, 0);     /* elements that do not rotate, then those that do */
    one({6, 6, 40, 40, 0, 0, 0}, 2, 0, 37, 1000); /* queries that share keys; more ranks than a warp has lanes */
}
} // namespace

const vector<test_case> qk_clip_cases = {{"qk_clip/largest", largest}, {"qk_clip/factors", factors}};
