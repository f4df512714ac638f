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
    tensor rows() const
    {
        return rows_in(cells, at.rows, columns, columns + at.gap);
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
        RUN(gelu, call({x.rows()}, {y.rows()}));
        RUN(gelu_grad, call({dy.rows(), x.rows()}, {dx.rows()}));
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
        RUN(gelu_exact, call({x.rows()}, {y.rows()}));
        RUN(gelu_exact_grad, call({dy.rows(), x.rows()}, {dx.rows()}));
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
        RUN(swiglu, call({x.rows()}, {y.rows()}));
        RUN(swiglu_grad, call({dy.rows(), x.rows()}, {dx.rows()}));
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
            call forward({x.rows()}, {y.rows()}), back({dy.rows(), x.rows()}, {dx.rows()});
            forward.o.at.constants.cap = back.o.at.constants.cap = (float)limit;
            forward.o.at.constants.scale = back.o.at.constants.scale = (float)slope;
            RUN(swiglu_clamped, forward);
            RUN(swiglu_clamped_grad, back);
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
        RUN(geglu, call({x.rows()}, {y.rows()}));
        RUN(geglu_grad, call({dy.rows(), x.rows()}, {dx.rows()}));
        compare("y", y.cells, want_y, 1e-6);
        compare("dx", dx.cells, want_dx, 1e-6);
    });
}

void add_in_place()
{
    for_all([](int type, layout l) {
        operand a(type, l, l.columns, 1), b(type, l, l.columns, 1);
        auto want = expect(a, [&](int64_t r, int64_t c) { return a.value(r, c) + b.value(r, c); });
        RUN(add, call({a.rows(), b.rows()}, {a.rows()}));
        compare("y", a.cells, want, 1e-7);
    });
}

void cast_between_all()
{
    for_all([](int from, layout l) {
        for (int to : check_types) {
            operand x(from, l, l.columns, 100), y(to, l, l.columns, 1);
            auto want = expect(y, [&](int64_t r, int64_t c) { return rounded_to(to, x.value(r, c)); });
            RUN(cast, call({x.rows()}, {y.rows()}));
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
        call apart({x.rows()}, {y.rows()}), in_place({x.rows()}, {x.rows()});
        apart.o.at.constants.scale = in_place.o.at.constants.scale = 0.22f;
        RUN(scale, apart);
        y.cells.get();
        check("each value is the product, rounded once", y.cells.value == want);
        RUN(scale, in_place);
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
            call forward({x.rows()}, {y.rows()}), back({dy.rows(), x.rows()}, {y.rows()});
            forward.o.at.constants.cap = back.o.at.constants.cap = (float)cap;
            RUN(soft_cap, forward);
            compare("y", y.cells, want, 1e-6);
            want = expect(y, [&](int64_t r, int64_t c) { return dy.value(r, c) / pow(cosh(x.value(r, c) / cap), 2); });
            RUN(soft_cap_grad, back);
            compare("dx", y.cells, want, 1e-6);
        });
}

void copy_and_zero()
{
    for_all([](int type, layout l) {
        operand x(type, l, l.columns, 1), y(type, l, l.columns, 1);
        auto want = expect(y, [&](int64_t r, int64_t c) { return x.value(r, c); });
        RUN(copy, call({x.rows()}, {y.rows()}));
        y.cells.get();
        check("rows are copied, gaps are not", y.cells.value == want);
        RUN(zero, call({}, {all_of(y.cells)}));
        y.cells.get();
        check("zero is zero everywhere", y.cells.value == vector<double>(y.cells.value.size(), 0.0));
    });
}

void keep_unless_skipped()
{
    for (bool skip : {false, true})
        for (layout l : layouts) {
            operand x(DTYPE_FP32, l, l.columns, 1), y(DTYPE_FP32, l, l.columns, 1);
            auto want = expect(y, [&](int64_t r, int64_t c) { return (skip ? y : x).value(r, c); });
            array control(DTYPE_FP32, {1.0, 1.0, skip ? 1.0 : 0.0});
            RUN(store_feedback, call({x.rows(), all_of(control)}, {y.rows()}));
            y.cells.get();
            check("what is kept, or what was there", y.cells.value == want);
        }
}

/* Rows go to their places and come back, whatever their width. */
void arrange()
{
    for (int type : check_types)
        for (int64_t columns : {40, 37, 1}) {
            int64_t rows = 90;
            vector<double> token_positions((size_t)rows);
            for (int64_t i = 0; i < rows; i++)
                token_positions[(size_t)i] = (double)((i * 7 + 3) % rows);
            array at(INT32, token_positions), x(type, randoms((size_t)(rows * columns)));
            array y(type, vector<double>((size_t)(rows * columns), 0.0)),
                back(type, vector<double>((size_t)(rows * columns), 0.0));
            call there({rows_in(x, rows, columns), all_of(at)}, {rows_in(y, rows, columns)}),
                again({rows_in(y, rows, columns), all_of(at)}, {rows_in(back, rows, columns)});
            again.o.at.rotation.inverse = true;
            RUN(arrange, there);
            RUN(arrange, again);
            y.get();
            back.get();
            bool placed = true;
            for (int64_t i = 0; i < rows; i++)
                for (int64_t c = 0; c < columns; c++)
                    placed &= y.value[(size_t)((int64_t)token_positions[(size_t)i] * columns + c)] ==
                              x.value[(size_t)(i * columns + c)];
            check("rows are at their places", placed);
            check("and come back", back.value == x.value);
        }
}

/* A mask is a function of what it is for: the same element gets the same draw however the tokens are divided. */
void dropout()
{
    step_scalars s = {};
    s.seed = 0x123456789abcdefull;
    s.step = 7;
    s.first_sample = 40;
    array scalars = bytes_of(&s, sizeof s);
    vector<double> token_positions(3 * 24);
    for (size_t i = 0; i < token_positions.size(); i++)
        token_positions[i] = (double)i;
    array all_token_positions(INT32, token_positions);
    /* rows `first` to `end` */
    auto draw = [&](const operand &x, const operand &y, int64_t first, int64_t end, int32_t site) {
        const int64_t columns = x.columns, count = end - first;
        call c({rows_in(x.cells, count, columns, columns, first * columns), all_of(scalars),
                all_of(all_token_positions, count, first)},
               {rows_in(y.cells, count, columns, columns, first * columns)});
        c.o.at.dropout = {4, 24, site, 0.25f};
        RUN(dropout, c);
    };
    for (int type : check_types)
        for (int64_t columns : {40, 37}) {
            int64_t sequence = 24, rows = 3 * sequence;
            layout whole = {rows, columns, 0};
            operand x(type, whole, columns, 1), y(type, whole, columns, 1), again(type, whole, columns, 1);
            draw(x, y, 0, rows, 9);
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
            draw(x, again, 0, middle, 9);
            draw(x, again, middle, rows, 9);
            again.cells.get();
            check("the mask does not depend on the layout", again.cells.value == y.cells.value);
            draw(x, again, middle, rows, 10);
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
