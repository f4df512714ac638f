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
                array x(LAUNCH_FP32, randoms((size_t)(rows * pitch), 8)), y(LAUNCH_FP32, randoms((size_t)rows, 8));
                vector<double> want = y.value;
                for (int64_t i = 0; i < rows; i++) {
                    double most = accumulate ? want[(size_t)i] : -INFINITY;
                    for (int64_t j = 0; j < columns; j++)
                        most = fmax(most, x.value[(size_t)(i * pitch + j)]);
                    want[(size_t)i] = most;
                }
                run_ok("launch_largest", launch_largest(nullptr, y.to<float>(), columns_from(x, 0, pitch),
                                                        {rows, columns}, accumulate));
                compare("largest", y, want, 0);
            }
}

void one(const launch_qk_factors &like, int64_t ranks, int64_t behind)
{
    constexpr double THRESHOLD = 3;
    launch_qk_factors of = like;
    of.peak_rows = ranks * of.layers;
    of.threshold = (float)THRESHOLD;
    const int64_t rows = (int64_t)of.blocks * of.size + behind;
    vector<double> scores = randoms((size_t)(of.peak_rows * of.heads), 6), want;
    if (of.heads > 1) /* a step with such a score is skipped, and nothing scales by its factor */
        scores[(size_t)(of.layer * of.heads + 1)] = INFINITY;
    array peaks(LAUNCH_FP32, scores), factors(LAUNCH_FP32, (size_t)rows);
    of.peaks = peaks.to<float>();
    for (int64_t row = 0; row < rows; row++) {
        const int64_t block = row / of.size;
        double most = 0;
        for (int64_t rank = 0; rank < ranks && block < of.blocks; rank++)
            most = fmax(most, scores[(size_t)((rank * of.layers + of.layer) * of.heads + block % of.heads)]);
        const double gamma = most > THRESHOLD && std::isfinite(most) ? THRESHOLD / most : 1;
        want.push_back(row % of.size >= of.size - of.whole ? gamma : sqrt(gamma));
    }
    run_ok("launch_qk_clip", launch_qk_clip(nullptr, factors.to<float>(), rows, &of));
    compare("factors", factors, want, 4e-7);
}

void factors()
{
    one({nullptr, 0, 1, 0, 1, 1, 1, 0, 0}, 1, 0);       /* one row */
    one({nullptr, 0, 3, 1, 4, 8, 6, 0, 0}, 2, 24);      /* keys behind queries, and values behind them */
    one({nullptr, 0, 3, 2, 5, 5, 48, 16, 0}, 3, 0);     /* elements that do not rotate, then those that do */
    one({nullptr, 0, 2, 0, 6, 6, 40, 40, 0}, 37, 1000); /* queries that share keys; more ranks than a warp has lanes */
}
} // namespace

const vector<test_case> qk_clip_cases = {{"qk_clip/largest", largest}, {"qk_clip/factors", factors}};
