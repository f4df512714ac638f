/* Element-wise ops against their formulas in float64: contiguous and pitched, sizes that 16 bytes divide and do not. */
#include "tests/cuda/check.h"

#include "kernels/philox.h"

namespace
{
struct layout {
    int64_t rows, columns, gap; /* gap: unused elements at the end of each row */
};

/* the last: the widest MLP of a GPT of 1T parameters */
const layout layouts[] = {{1, 1, 0},  {3, 64, 0},    {5, 24, 8},   {7, 33, 0},
                          {4, 40, 3}, {2, 2088, 16}, {1, 4099, 0}, {1, 102400, 0}};

/* a [rows, columns] operand with a gap behind each row */
struct operand {
    layout at;
    int64_t columns;
    array cells;

    operand(int type, layout l, int64_t columns_, double scale)
        : at(l), columns(columns_), cells(type, randoms((size_t)(l.rows * (columns_ + l.gap)), scale))
    {
    }
    launch_matrix matrix() const
    {
        return {cells.to(), columns + at.gap};
    }
    double value(int64_t row, int64_t column) const
    {
        return cells.value[(size_t)(row * (columns + at.gap) + column)];
    }
};

/* what `y` should hold: f(row, column) in its columns, its old contents in the gaps */
vector<double> expect(const operand &y, const std::function<double(int64_t, int64_t)> &f)
{
    vector<double> want = y.cells.value;
    for (int64_t row = 0; row < y.at.rows; row++)
        for (int64_t column = 0; column < y.columns; column++)
            want[(size_t)(row * (y.columns + y.at.gap) + column)] = f(row, column);
    return want;
}

double gelu(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

double gelu_slope(double x)
{
    double u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), du = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    return 0.5 * (1 + tanh(u)) + 0.5 * x * du / (cosh(u) * cosh(u));
}

double gelu_exact(double x)
{
    return 0.5 * x * erfc(-x * M_SQRT1_2);
}

double gelu_exact_slope(double x)
{
    return 0.5 * erfc(-x * M_SQRT1_2) + x * exp(-0.5 * x * x) / sqrt(2 * M_PI);
}

double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

void for_all(const std::function<void(int, layout)> &f)
{
    for (int type : check_types)
        for (layout l : layouts)
            f(type, l);
}

void gelu_both_ways()
{
    for_all([](int type, layout l) {
        operand x(type, l, l.columns, 4), dy(type, l, l.columns, 1), y(type, l, l.columns, 1),
            dx(type, l, l.columns, 1);
        auto want_y = expect(y, [&](int64_t r, int64_t c) { return gelu(x.value(r, c)); });
        auto want_dx = expect(dx, [&](int64_t r, int64_t c) { return dy.value(r, c) * gelu_slope(x.value(r, c)); });
        run_ok("launch_gelu", launch_gelu(nullptr, type, y.matrix(), x.matrix(), l.rows, l.columns));
        run_ok("launch_gelu_grad",
               launch_gelu_grad(nullptr, type, dx.matrix(), dy.matrix(), x.matrix(), l.rows, l.columns));
        compare("y", y.cells, want_y, 1e-6);
        compare("dx", dx.cells, want_dx, 1e-6);
    });
}

void gelu_exact_both_ways()
{
    for_all([](int type, layout l) {
        operand x(type, l, l.columns, 4), dy(type, l, l.columns, 1), y(type, l, l.columns, 1),
            dx(type, l, l.columns, 1);
        auto want_y = expect(y, [&](int64_t r, int64_t c) { return gelu_exact(x.value(r, c)); });
        auto want_dx =
            expect(dx, [&](int64_t r, int64_t c) { return dy.value(r, c) * gelu_exact_slope(x.value(r, c)); });
        run_ok("launch_gelu_exact", launch_gelu_exact(nullptr, type, y.matrix(), x.matrix(), l.rows, l.columns));
        run_ok("launch_gelu_exact_grad",
               launch_gelu_exact_grad(nullptr, type, dx.matrix(), dy.matrix(), x.matrix(), l.rows, l.columns));
        compare("y", y.cells, want_y, 1e-6);
        compare("dx", dx.cells, want_dx, 1e-6);
    });
}

void swiglu_both_ways()
{
    for_all([](int type, layout l) {
        operand x(type, l, 2 * l.columns, 4), dy(type, l, l.columns, 1), y(type, l, l.columns, 1),
            dx(type, l, 2 * l.columns, 1);
        auto gate = [&](int64_t r, int64_t c) { return x.value(r, c); };
        auto up = [&](int64_t r, int64_t c) { return x.value(r, l.columns + c); };
        auto want_y = expect(y, [&](int64_t r, int64_t c) { return gate(r, c) * sigmoid(gate(r, c)) * up(r, c); });
        auto want_dx = expect(dx, [&](int64_t r, int64_t c) {
            if (c >= l.columns)
                return dy.value(r, c - l.columns) * gate(r, c - l.columns) * sigmoid(gate(r, c - l.columns));
            double s = sigmoid(gate(r, c));
            return dy.value(r, c) * up(r, c) * s * (1 + gate(r, c) * (1 - s));
        });
        run_ok("launch_swiglu", launch_swiglu(nullptr, type, y.matrix(), x.matrix(), l.rows, l.columns));
        run_ok("launch_swiglu_grad",
               launch_swiglu_grad(nullptr, type, dx.matrix(), dy.matrix(), x.matrix(), l.rows, l.columns));
        compare("y", y.cells, want_y, 1e-6);
        compare("dx", dx.cells, want_dx, 1e-6);
    });
}

/* Limits beyond which are many and none. */
void swiglu_clamped_both_ways()
{
    for (double limit : {0.5, 1.5, 7.0})
        for_all([limit](int type, layout l) {
            const double slope = 1.75;
            operand x(type, l, 2 * l.columns, 4), dy(type, l, l.columns, 1), y(type, l, l.columns, 1),
                dx(type, l, 2 * l.columns, 1);
            auto gate = [&](int64_t r, int64_t c) { return fmin(x.value(r, 2 * c), limit); };
            auto up = [&](int64_t r, int64_t c) { return 1 + fmax(-limit, fmin(x.value(r, 2 * c + 1), limit)); };
            auto want_y =
                expect(y, [&](int64_t r, int64_t c) { return gate(r, c) * sigmoid(slope * gate(r, c)) * up(r, c); });
            auto want_dx = expect(dx, [&](int64_t r, int64_t c) {
                int64_t k = c / 2;
                double g = gate(r, k), s = sigmoid(slope * g), d = dy.value(r, k);
                if (c % 2 == 1)
                    return fabs(x.value(r, c)) > limit ? 0.0 : d * g * s;
                return x.value(r, c) > limit ? 0.0 : d * up(r, k) * s * (1 + slope * g * (1 - s));
            });
            const launch_extent of = {l.rows, l.columns};
            const launch_clamp by = {(float)limit, (float)slope};
            run_ok("launch_swiglu_clamped", launch_swiglu_clamped(nullptr, type, y.matrix(), x.matrix(), of, by));
            run_ok("launch_swiglu_clamped_grad",
                   launch_swiglu_clamped_grad(nullptr, type, dx.matrix(), dy.matrix(), x.matrix(), of, by));
            compare("y", y.cells, want_y, 1e-6);
            compare("dx", dx.cells, want_dx, 1e-6);
        });
}

void geglu_both_ways()
{
    for_all([](int type, layout l) {
        operand x(type, l, 2 * l.columns, 4), dy(type, l, l.columns, 1), y(type, l, l.columns, 1),
            dx(type, l, 2 * l.columns, 1);
        auto gate = [&](int64_t r, int64_t c) { return x.value(r, c); };
        auto up = [&](int64_t r, int64_t c) { return x.value(r, l.columns + c); };
        auto want_y = expect(y, [&](int64_t r, int64_t c) { return gelu(gate(r, c)) * up(r, c); });
        auto want_dx = expect(dx, [&](int64_t r, int64_t c) {
            if (c >= l.columns)
                return dy.value(r, c - l.columns) * gelu(gate(r, c - l.columns));
            return dy.value(r, c) * up(r, c) * gelu_slope(gate(r, c));
        });
        run_ok("launch_geglu", launch_geglu(nullptr, type, y.matrix(), x.matrix(), l.rows, l.columns));
        run_ok("launch_geglu_grad",
               launch_geglu_grad(nullptr, type, dx.matrix(), dy.matrix(), x.matrix(), l.rows, l.columns));
        compare("y", y.cells, want_y, 1e-6);
        compare("dx", dx.cells, want_dx, 1e-6);
    });
}

void add_in_place()
{
    for_all([](int type, layout l) {
        operand a(type, l, l.columns, 1), b(type, l, l.columns, 1);
        auto want = expect(a, [&](int64_t r, int64_t c) { return a.value(r, c) + b.value(r, c); });
        run_ok("launch_add", launch_add(nullptr, type, a.matrix(), a.matrix(), b.matrix(), l.rows, l.columns));
        compare("y", a.cells, want, 1e-7);
    });
}

void cast_between_all()
{
    for_all([](int from, layout l) {
        for (int to : check_types) {
            operand x(from, l, l.columns, 100), y(to, l, l.columns, 1);
            auto want = expect(y, [&](int64_t r, int64_t c) { return rounded_to(to, x.value(r, c)); });
            run_ok("launch_cast", launch_cast(nullptr, to, from, y.matrix(), x.matrix(), l.rows, l.columns));
            y.cells.get();
            check("every value is correctly rounded", y.cells.value == want);
        }
    });
}

void multiples()
{
    for_all([](int type, layout l) {
        operand x(type, l, l.columns, 3), y(type, l, l.columns, 1);
        auto want = expect(y, [&](int64_t r, int64_t c) { return rounded_to(type, 0.22f * x.value(r, c)); });
        run_ok("launch_scale", launch_scale(nullptr, type, y.matrix(), x.matrix(), 0.22f, l.rows, l.columns));
        y.cells.get();
        check("each value is the product, rounded once", y.cells.value == want);
        run_ok("launch_scale", launch_scale(nullptr, type, x.matrix(), x.matrix(), 0.22f, l.rows, l.columns));
        x.cells.get();
        check("in place, too", x.value(0, 0) == want[0]);
    });
}

void soft_cap_both_ways()
{
    for (double cap : {0.75, 30.0})
        for_all([cap](int type, layout l) {
            operand x(type, l, l.columns, 3), y(type, l, l.columns, 1), dy(type, l, l.columns, 1);
            auto want = expect(y, [&](int64_t r, int64_t c) { return cap * tanh(x.value(r, c) / cap); });
            run_ok("launch_soft_cap",
                   launch_soft_cap(nullptr, type, y.matrix(), x.matrix(), (float)cap, l.rows, l.columns));
            compare("y", y.cells, want, 1e-6);
            want = expect(y, [&](int64_t r, int64_t c) { return dy.value(r, c) / pow(cosh(x.value(r, c) / cap), 2); });
            run_ok("launch_soft_cap_grad", launch_soft_cap_grad(nullptr, type, y.matrix(), dy.matrix(), x.matrix(),
                                                                (float)cap, {l.rows, l.columns}));
            compare("dx", y.cells, want, 1e-6);
        });
}

void copy_and_zero()
{
    for_all([](int type, layout l) {
        operand x(type, l, l.columns, 1), y(type, l, l.columns, 1);
        auto want = expect(y, [&](int64_t r, int64_t c) { return x.value(r, c); });
        int bytes = type_bytes(type);
        launch_matrix to = {y.cells.to(), (l.columns + l.gap) * bytes},
                      from = {x.cells.to(), (l.columns + l.gap) * bytes};
        run_ok("launch_copy", launch_copy(nullptr, to, from, l.rows, l.columns * bytes));
        y.cells.get();
        check("rows are copied, gaps are not", y.cells.value == want);
        run_ok("launch_zero", launch_zero(nullptr, y.cells.to(), (int64_t)y.cells.size()));
        y.cells.get();
        check("zero is zero everywhere", y.cells.value == vector<double>(y.cells.value.size(), 0.0));
    });
}

void keep_unless_skipped()
{
    for (bool skip : {false, true})
        for (layout l : layouts) {
            operand x(LAUNCH_FP32, l, l.columns, 1), y(LAUNCH_FP32, l, l.columns, 1);
            auto want = expect(y, [&](int64_t r, int64_t c) { return (skip ? y : x).value(r, c); });
            array control(LAUNCH_FP32, {1.0, 1.0, skip ? 1.0 : 0.0});
            int64_t pitch = (l.columns + l.gap) * 4;
            run_ok("launch_keep", launch_keep(nullptr, {y.cells.to(), pitch}, {x.cells.to(), pitch},
                                              control.to<float>(), l.rows, l.columns * 4));
            y.cells.get();
            check("what is kept, or what was there", y.cells.value == want);
        }
}

array scalars_of(const scalars_device &s)
{
    vector<double> bytes(sizeof s);
    for (size_t i = 0; i < sizeof s; i++)
        bytes[i] = reinterpret_cast<const unsigned char *>(&s)[i];
    return array(BYTES, bytes);
}

/* Rows go to their places and come back, whatever their width. */
void arrange()
{
    for (int type : check_types)
        for (int64_t columns : {40, 37, 1}) {
            int64_t rows = 90;
            vector<double> places((size_t)rows);
            for (int64_t i = 0; i < rows; i++)
                places[(size_t)i] = (double)((i * 7 + 3) % rows);
            array at(INT32, places), x(type, randoms((size_t)(rows * columns)));
            array y(type, vector<double>((size_t)(rows * columns), 0.0)),
                back(type, vector<double>((size_t)(rows * columns), 0.0));
            int64_t bytes = columns * type_bytes(type);
            run_ok("launch_arrange", launch_arrange(nullptr, y.to(), x.to(), at.to<int32_t>(), rows, bytes, false));
            run_ok("launch_arrange", launch_arrange(nullptr, back.to(), y.to(), at.to<int32_t>(), rows, bytes, true));
            y.get();
            back.get();
            bool placed = true;
            for (int64_t i = 0; i < rows; i++)
                for (int64_t c = 0; c < columns; c++)
                    placed &= y.value[(size_t)((int64_t)places[(size_t)i] * columns + c)] ==
                              x.value[(size_t)(i * columns + c)];
            check("rows are at their places", placed);
            check("and come back", back.value == x.value);
        }
}

/* A mask is a function of what it is for: the same element gets the same draw however the tokens are divided. */
void dropout()
{
    scalars_device s = {};
    s.seed = 0x123456789abcdefull;
    s.step = 7;
    s.first_sample = 40;
    array scalars = scalars_of(s);
    vector<double> places(3 * 24);
    for (size_t i = 0; i < places.size(); i++)
        places[i] = (double)i;
    array all_places(INT32, places);
    const int32_t *at = all_places.to<int32_t>();
    for (int type : check_types)
        for (int64_t columns : {40, 37}) {
            int64_t sequence = 24, rows = 3 * sequence;
            layout whole = {rows, columns, 0};
            operand x(type, whole, columns, 1), y(type, whole, columns, 1), again(type, whole, columns, 1);
            run_ok("launch_dropout", launch_dropout(nullptr, type, y.matrix(), x.matrix(), scalars.to(),
                                                    {rows, columns}, {at, 4, (int32_t)sequence, 9, 0.25f}));
            y.cells.get();
            vector<double> want(y.cells.value.size());
            size_t kept = 0;
            for (int64_t row = 0; row < rows; row++)
                for (int64_t c = 0; c < columns; c++) {
                    uint64_t element = (uint64_t)(row % sequence * columns + c);
                    size_t i = (size_t)(row * columns + c);
                    uint32_t draws[4];
                    philox_draws(draws, s.seed, 9, 7, (uint64_t)(40 + 4 + row / sequence), element / 4);
                    float x_i = (float)x.cells.value[i], keep = 1.0f / (1.0f - 0.25f);
                    want[i] = philox_uniform(draws[element % 4]) >= 0.25f ? rounded_to(type, (double)(x_i * keep)) : 0;
                    kept += want[i] != 0;
                }
            check("the mask is the one that Philox draws", y.cells.value == want);
            double share = (double)kept / (double)want.size(), spread = sqrt(0.75 * 0.25 / (double)want.size());
            check("three quarters are kept", fabs(share - 0.75) <= 4 * spread);
            int64_t middle = 31; /* the same in two parts, the second beginning within a sample */
            launch_matrix x2 = x.matrix(), y2 = again.matrix();
            run_ok("launch_dropout", launch_dropout(nullptr, type, y2, x2, scalars.to(), {middle, columns},
                                                    {at, 4, (int32_t)sequence, 9, 0.25f}));
            x2.at = (char *)x2.at + middle * columns * type_bytes(type);
            y2.at = (char *)y2.at + middle * columns * type_bytes(type);
            run_ok("launch_dropout", launch_dropout(nullptr, type, y2, x2, scalars.to(), {rows - middle, columns},
                                                    {at + middle, 4, (int32_t)sequence, 9, 0.25f}));
            again.cells.get();
            check("the mask does not depend on the layout", again.cells.value == y.cells.value);
            run_ok("launch_dropout", launch_dropout(nullptr, type, y2, x2, scalars.to(), {rows - middle, columns},
                                                    {at + middle, 4, (int32_t)sequence, 10, 0.25f}));
            again.cells.get();
            check("another site draws another mask", again.cells.value != y.cells.value);
        }
}
} // namespace

const vector<test_case> pointwise_cases = {
    {"pointwise/gelu", gelu_both_ways},
    {"pointwise/swiglu", swiglu_both_ways},
    {"pointwise/add", add_in_place},
    {"pointwise/cast", cast_between_all},
    {"pointwise/copy", copy_and_zero},
    {"pointwise/dropout", dropout},
    {"pointwise/keep", keep_unless_skipped},
    {"pointwise/arrange", arrange},
    {"pointwise/scale", multiples},
    {"pointwise/soft_cap", soft_cap_both_ways},
    {"pointwise/swiglu_clamped", swiglu_clamped_both_ways},
    {"pointwise/geglu", geglu_both_ways},
    {"pointwise/gelu_exact", gelu_exact_both_ways},
};
