/* Products of experts against sums in float64: sizes that tiles divide and do not, experts without rows, one with all,
 * more of them than a warp has lanes; rows of nobody, which are NaN and must neither be read nor left. */
#include "tests/cuda/check.h"

namespace
{
/* Rows of each expert, and of nobody; n and c; unused elements behind each row. */
struct shape {
    vector<int32_t> rows;
    int32_t nobody;
    int64_t n, c, gap;
};

vector<int32_t> many(int count, int each)
{
    vector<int32_t> rows;
    for (int i = 0; i < count; i++)
        rows.push_back(i % each == 0 ? i % 5 : 0);
    return rows;
}

/* Of tiles of 16 bytes; of none: odd sizes, then odd gaps. */
const shape SHAPES[] = {
    {{1}, 0, 8, 8, 0},          {{5, 0, 130, 1}, 3, 136, 40, 0}, {{0, 70}, 130, 24, 264, 8},
    {many(40, 3), 1, 16, 8, 0}, {{0, 0, 0}, 2, 8, 16, 0},        {{3, 66, 0}, 1, 17, 35, 0},
    {{70, 2}, 65, 72, 16, 3},   {{3, 66, 0}, 1, 27, 35, 5},      {many(35, 2), 0, 5, 3, 0},
};

struct problem {
    shape of;
    int type;
    int64_t used, total, experts;
    vector<double> begin;
    array offsets;

    problem(int type_, const shape &s)
        : of(s), type(type_), used(0), experts((int64_t)s.rows.size()), begin(offsets_of(s)), offsets(INT32, begin)
    {
        used = (int64_t)begin.back();
        total = used + s.nobody;
    }
    static vector<double> offsets_of(const shape &s)
    {
        vector<double> at = {0};
        for (int32_t rows : s.rows)
            at.push_back(at.back() + rows);
        return at;
    }
    /* [rows, columns], NaN in gaps and from row `end` on */
    array matrix(int element, int64_t rows, int64_t columns, int64_t end) const
    {
        vector<double> values = randoms((size_t)(rows * (columns + of.gap)));
        for (int64_t i = 0; i < rows * (columns + of.gap); i++)
            if (i / (columns + of.gap) >= end || i % (columns + of.gap) >= columns)
                values[(size_t)i] = NAN;
        return array(element, values);
    }
    tensor at(const array &a, int64_t rows, int64_t columns) const
    {
        return rows_in(a, rows, columns, columns + of.gap);
    }
    int64_t expert_of(int64_t row) const
    {
        int64_t e = 0;
        while (e < experts && begin[(size_t)e + 1] <= (double)row)
            e++;
        return e < experts ? e : -1;
    }
};

/* Elements of the matrix, without its gaps. */
vector<double> inner(array &a, int64_t columns, int64_t gap)
{
    a.get();
    vector<double> all;
    for (size_t i = 0; i < a.value.size(); i++)
        if ((int64_t)i % (columns + gap) < columns)
            all.push_back(a.value[i]);
    return all;
}

/* As compare(), of what lies between gaps, which must be NaN still. */
void compare_inner(const char *what, array &got, int64_t columns, int64_t gap, const vector<double> &want)
{
    vector<double> values = inner(got, columns, gap);
    for (size_t i = 0; i < got.value.size(); i++)
        if ((int64_t)i % (columns + gap) >= columns && !std::isnan(got.value[i]))
            check("gaps are left alone", false);
    array narrow(got.type, values);
    compare(what, narrow, want, 2e-6);
}

void both_rows(int type, const shape &s, bool turned, bool biased)
{
    problem p(type, s);
    int64_t in = turned ? s.n : s.c, out = turned ? s.c : s.n;
    array a = p.matrix(type, p.total, in, p.used), w = p.matrix(type, p.experts * s.n, s.c, p.experts * s.n);
    array y(type, (size_t)(p.total * (out + s.gap))), bias(type, randoms((size_t)(p.experts * out)));
    vector<double> want;
    for (int64_t r = 0; r < p.total; r++)
        for (int64_t j = 0; j < out; j++) {
            int64_t e = p.expert_of(r);
            double sum = e >= 0 && biased ? bias.value[(size_t)(e * out + j)] : 0;
            for (int64_t i = 0; e >= 0 && i < in; i++)
                sum += a.value[(size_t)(r * (in + s.gap) + i)] *
                       w.value[(size_t)((e * s.n + (turned ? i : j)) * (s.c + s.gap) + (turned ? j : i))];
            want.push_back(sum);
        }
    call c({p.at(a, p.total, in), p.at(w, p.experts * s.n, s.c), all_of(p.offsets), only_if(biased, all_of(bias))},
           {p.at(y, p.total, out)});
    if (turned)
        RUN(grouped_linear_grad_input, c);
    else
        RUN(grouped_linear, c);
    compare_inner(turned ? "dx" : "y", y, out, s.gap, want);
}

void sums(int type, const shape &s, bool accumulate)
{
    problem p(type, s);
    array dy = p.matrix(type, p.total, s.n, p.used), x = p.matrix(type, p.total, s.c, p.used);
    array dw = p.matrix(DTYPE_FP32, p.experts * s.n, s.c, p.experts * s.n);
    vector<double> want = inner(dw, s.c, s.gap);
    for (double &v : want)
        v = accumulate ? v : 0;
    for (int64_t r = 0; r < p.used; r++)
        for (int64_t i = 0; i < s.n; i++)
            for (int64_t j = 0; j < s.c; j++)
                want[(size_t)((p.expert_of(r) * s.n + i) * s.c + j)] +=
                    dy.value[(size_t)(r * (s.n + s.gap) + i)] * x.value[(size_t)(r * (s.c + s.gap) + j)];
    call c({p.at(dy, p.total, s.n), p.at(x, p.total, s.c), all_of(p.offsets)}, {p.at(dw, p.experts * s.n, s.c)});
    c.o.at.accumulate = accumulate;
    RUN(grouped_linear_grad_weight, c);
    compare_inner("dw", dw, s.c, s.gap, want);
}

void rows_by_their_weights()
{
    for (int type : check_types)
        for (const shape &s : SHAPES) {
            both_rows(type, s, false, false);
            both_rows(type, s, true, false);
            both_rows(type, s, false, true);
        }
}

void sums_over_rows()
{
    for (int type : check_types)
        for (const shape &s : SHAPES)
            for (bool accumulate : {false, true})
                sums(type, s, accumulate);
}

void columns_of(int type, const shape &s, bool accumulate)
{
    problem p(type, s);
    array dy = p.matrix(type, p.total, s.n, p.used), db(DTYPE_FP32, randoms((size_t)(p.experts * s.n)));
    vector<double> want = db.value;
    for (double &v : want)
        v = accumulate ? v : 0;
    for (int64_t r = 0; r < p.used; r++)
        for (int64_t j = 0; j < s.n; j++)
            want[(size_t)(p.expert_of(r) * s.n + j)] += dy.value[(size_t)(r * (s.n + s.gap) + j)];
    call c({p.at(dy, p.total, s.n), all_of(p.offsets)}, {all_of(db)});
    c.o.at.accumulate = accumulate;
    RUN(grouped_bias_grad, c);
    compare("db", db, want, 2e-6);
}

void sums_of_columns()
{
    for (int type : check_types)
        for (const shape &s : SHAPES)
            for (bool accumulate : {false, true})
                columns_of(type, s, accumulate);
}

/* Tiles are those of every GPU: their shared memory fits where a block has least. */
void narrow()
{
    for (const char *kib : {"99", "163"}) {
        shared_limit limit(kib);
        for (int type : {DTYPE_BF16, DTYPE_FP16}) {
            both_rows(type, SHAPES[1], false, true);
            both_rows(type, SHAPES[1], true, false);
            sums(type, SHAPES[1], true);
        }
    }
}
} // namespace

const vector<test_case> grouped_cases = {
    {"grouped/rows", rows_by_their_weights},
    {"grouped/sums", sums_over_rows},
    {"grouped/columns", sums_of_columns},
    {"grouped/narrow", narrow},
};
