/* The exact sum of squares and the clipping factor against float64. */
#include "tests/cuda/check.h"

#include "kernels/exact_sum.h"

namespace
{
double limbs_value(const vector<double> &bins)
{
    double value = 0;
    for (int i = SUM_LIMBS - 1; i >= 0; i--)
        value += ldexp(bins[(size_t)i], 32 * i - SUM_LOWEST);
    return value;
}

/* [rows, columns] of g, from row `first` on */
void add_squares(array &bins, const array &g, int64_t rows, int64_t columns, int64_t pitch, bool accumulate,
                 int64_t first = 0)
{
    tensor t = rows_in(g, rows, columns, pitch, first * pitch);
    t.dims = columns == 1 ? 1 : 2;
    call c({t}, {all_of(bins)});
    c.o.at.accumulate = accumulate;
    RUN(sum_squares, c);
}

void sum_squares()
{
    struct {
        int64_t rows, columns, pitch;
        double scale;
    } sizes[] = {{1, 1, 1, 1},         {37, 300, 300, 1e-12}, {5, 33, 40, 1e15}, {200, 8, 8, 1},
                 {3, 25600, 25600, 1}, {12288, 1, 1, 1},      {130, 1, 1, 1}};
    array bins(INT64, (size_t)SUM_BINS);
    double want = 0;
    bool first = true;
    for (auto s : sizes) {
        array g(DTYPE_FP32, randoms((size_t)(s.rows * s.pitch), s.scale));
        double own = 0;
        array alone(INT64, (size_t)SUM_BINS);
        for (int64_t r = 0; r < s.rows; r++)
            for (int64_t c = 0; c < s.columns; c++)
                own += pow(g.value[(size_t)(r * s.pitch + c)], 2);
        want += own;
        add_squares(alone, g, s.rows, s.columns, s.pitch, false);
        check("the bins hold one tensor's sum", fabs(limbs_value(alone.get()) - own) <= 1e-12 * own);
        add_squares(bins, g, s.rows, s.columns, s.pitch, !first);
        first = false;
        check("the bins hold the sum", fabs(limbs_value(bins.get()) - want) <= 1e-12 * want);
        check("all is finite", bins.value[SUM_NOT_FINITE] == 0);
    }
}

/* The bins of a sum do not depend on how rows are divided, to the last bit. */
void sum_squares_by_parts()
{
    array g(DTYPE_FP32, randoms(101 * 67)), whole(INT64, (size_t)SUM_BINS), parts(INT64, (size_t)SUM_BINS);
    add_squares(whole, g, 101, 67, 67, false);
    for (int64_t first = 0, rows = 40; first < 101; first += rows) {
        rows = first + rows > 101 ? 101 - first : rows;
        add_squares(parts, g, rows, 67, 67, first > 0, first);
    }
    check("parts add to the same bits",
          limbs_value(whole.get()) == limbs_value(parts.get()) && whole.value == parts.value);
}

void clip()
{
    struct {
        double scale;
        float limit, loss_scale;
    } cases[] = {{1, 1, 1},    {1, 0, 1},     {1e-3, 1, 1},     {1, 2, 65536},
                 {1e18, 1, 1}, {1e-20, 1, 1}, {INFINITY, 1, 1}, {NAN, 1, 1}};
    for (auto c : cases) {
        array g(DTYPE_FP32, randoms(1000)), bins(INT64, (size_t)SUM_BINS), control(DTYPE_FP32, 3);
        bool finite = std::isfinite(c.scale);
        double squares = 0;
        for (size_t i = 0; i < g.value.size(); i++)
            g.value[i] = finite ? g.value[i] * c.scale : i == 700 ? c.scale : g.value[i];
        g.put();
        for (double v : g.value)
            squares += v * v;
        step_scalars s = {};
        s.clip = c.limit;
        s.loss_scale = c.loss_scale;
        array scalars = bytes_of(&s, sizeof s);
        add_squares(bins, g, 10, 100, 100, false);
        RUN(clip, call({all_of(bins), all_of(scalars)}, {all_of(control)}));
        double norm = sqrt(squares) / (double)c.loss_scale;
        control.get();
        check("a norm that is not finite skips the step", (control.value[2] != 0) == !finite);
        if (finite)
            compare(
                "norm, factor, skip", control,
                {norm, (c.limit > 0 && norm > (double)c.limit ? (double)c.limit / norm : 1) / (double)c.loss_scale, 0},
                3e-7);
    }
}
} // namespace

const vector<test_case> optimizer_cases = {
    {"optimizer/sum_squares", sum_squares},
    {"optimizer/sum_squares_by_parts", sum_squares_by_parts},
    {"optimizer/clip", clip},
};
