/* Norms, heads, embeddings and column sums against float64. */
#include "tests/cuda/check.h"

namespace
{
struct norm_size {
    int64_t rows, columns;
};

const norm_size norm_sizes[] = {{1, 8}, {3, 64}, {19, 40}, {5, 33}, {2, 1}, {37, 1032}, {2, 13000}};

double dot_row(const vector<double> &a, const vector<double> &b, int64_t row, int64_t columns)
{
    double sum = 0;
    for (int64_t c = 0; c < columns; c++)
        sum += a[(size_t)(row * columns + c)] * b[(size_t)(row * columns + c)];
    return sum;
}

void norm_case(int type, norm_size n, bool layer, bool residual, float offset)
{
    size_t cells = (size_t)(n.rows * n.columns);
    double epsilon = 1e-5;
    array x(type, randoms(cells, 2)), r(type, randoms(cells)), w(type, randoms((size_t)n.columns)),
        b(type, randoms((size_t)n.columns));
    array y(type, cells), rstd(DTYPE_FP32, (size_t)n.rows), mean(DTYPE_FP32, (size_t)n.rows), sum(type, cells);
    auto of = [&](const array &a) { return rows_in(a, n.rows, n.columns); };
    auto run = [&](call &c, op_kernel entry, const char *what) {
        c.o.at.norm.epsilon = (float)epsilon;
        c.o.at.norm.offset = offset;
        run_ok(what, c.error_of(entry));
    };
    const tensor more = only_if(residual, of(r)), whole = only_if(residual, of(sum));
    if (layer) {
        call c({of(x), all_of(w), all_of(b), more}, {of(y), all_of(rstd), all_of(mean), whole});
        run(c, cuda_layernorm, "cuda_layernorm");
    } else {
        call c({of(x), all_of(w), more}, {of(y), all_of(rstd), whole});
        run(c, cuda_rmsnorm, "cuda_rmsnorm");
    }
    vector<double> s = x.value, want(cells), normal(cells), want_rstd((size_t)n.rows), want_mean((size_t)n.rows);
    for (size_t i = 0; i < cells && residual; i++)
        s[i] = rounded_to(type, (double)((float)x.value[i] + (float)r.value[i]));
    for (int64_t row = 0; row < n.rows; row++) {
        double m = 0, v = 0;
        for (int64_t c = 0; c < n.columns && layer; c++)
            m += s[(size_t)(row * n.columns + c)] / (double)n.columns;
        for (int64_t c = 0; c < n.columns; c++)
            v += pow(s[(size_t)(row * n.columns + c)] - m, 2) / (double)n.columns;
        want_mean[(size_t)row] = m;
        want_rstd[(size_t)row] = 1 / sqrt(v + epsilon);
        for (int64_t c = 0; c < n.columns; c++) {
            size_t i = (size_t)(row * n.columns + c);
            normal[i] = (s[i] - m) / sqrt(v + epsilon);
            want[i] = normal[i] * (w.value[(size_t)c] + offset) + (layer ? b.value[(size_t)c] : 0);
        }
    }
    double slack = layer && n.columns == 1 ? 1e-4 : 2e-6;
    compare("y", y, want, slack);
    compare("rstd", rstd, want_rstd, 1e-6);
    if (layer)
        compare("mean", mean, want_mean, 5e-6);
    if (residual)
        compare("sum", sum, s, 0);
    if (n.columns == 1)
        return; /* y is then the sign of s: its gradient is all cancellation */
    array s_in(type, s), dy(type, randoms(cells)), addend(type, randoms(cells)), dx(type, cells);
    array dw(DTYPE_FP32, randoms((size_t)n.columns)), db(DTYPE_FP32, randoms((size_t)n.columns));
    vector<double> want_dx(cells), want_dw = residual ? dw.value : vector<double>((size_t)n.columns),
                                   want_db = residual ? db.value : want_dw;
    vector<double> g(cells);
    for (size_t i = 0; i < cells; i++) {
        g[i] = dy.value[i] * (w.value[i % (size_t)n.columns] + offset);
        want_dw[i % (size_t)n.columns] += dy.value[i] * normal[i];
        want_db[i % (size_t)n.columns] += dy.value[i];
    }
    for (int64_t row = 0; row < n.rows; row++) {
        double mean_g = layer ? dot_row(g, vector<double>(cells, 1.0), row, n.columns) / (double)n.columns : 0;
        double mean_gn = dot_row(g, normal, row, n.columns) / (double)n.columns;
        for (int64_t c = 0; c < n.columns; c++) {
            size_t i = (size_t)(row * n.columns + c);
            want_dx[i] =
                (residual ? addend.value[i] : 0) + want_rstd[(size_t)row] * (g[i] - mean_g - normal[i] * mean_gn);
        }
    }
    const tensor added = only_if(residual, of(addend));
    call back({of(dy), of(s_in), all_of(w), all_of(rstd), layer ? all_of(mean) : added, layer ? added : none},
              {of(dx), all_of(dw), only_if(layer, all_of(db))});
    back.o.at.accumulate = residual;
    array scratch(BYTES, (size_t)cuda_norm_grad_scratch(&back.o));
    back.scratch(scratch);
    run(back, layer ? cuda_layernorm_grad : cuda_rmsnorm_grad, "the norm's gradient");
    compare("dx", dx, want_dx, 4e-6);
    compare("dw", dw, want_dw, 4e-6);
    if (layer)
        compare("db", db, want_db, 4e-6);
}

void norms()
{
    for (int type : check_types)
        for (norm_size n : norm_sizes)
            for (int variant = 0; variant < 4; variant++)
                norm_case(type, n, variant & 1, variant & 2, variant == 2 ? 1 : 0);
}

struct head_layout {
    int32_t heads, kv_heads, head_size;

    void tell(call &c) const
    {
        c.o.at.heads.q = heads;
        c.o.at.heads.kv = kv_heads;
        c.o.at.heads.size = head_size;
    }
};

const head_layout head_layouts[] = {{4, 2, 64}, {3, 1, 34}, {2, 2, 80}, {1, 1, 256}};
/* of GPT-3 175B, Llama 405B, and a GPT of 1T parameters (2104.04473) */
const head_layout wide_heads[] = {{96, 96, 128}, {128, 8, 128}, {160, 160, 160}};

/* Of each head the first `d` elements rotate. */
void rope_case(int type, head_layout at, int64_t tokens, int64_t d, bool interleaved)
{
    int64_t size = at.head_size, columns = (at.heads + at.kv_heads) * size, gap = size == 80 ? 8 : 0;
    vector<double> where, table;
    for (int64_t t = 0; t < tokens; t++)
        where.push_back(check_integer(30));
    for (int64_t p = 0; p < 30; p++)
        for (int64_t i = 0; i < d; i++) {
            double angle = (double)p * pow(10000, -2.0 * (double)(i % (d / 2)) / (double)d);
            table.push_back(i < d / 2 ? cos(angle) : sin(angle));
        }
    array qk(type, randoms((size_t)(tokens * (columns + gap)))), positions(INT32, where),
        cosine_sine(DTYPE_FP32, table);
    array y(type, (size_t)(tokens * columns));
    for (bool inverse : {false, true}) {
        vector<double> want((size_t)(tokens * columns)), in_place = qk.value;
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t c = 0; c < columns; c++) {
                int64_t within = c % size, i = interleaved ? within / 2 : within % (d / 2),
                        apart = interleaved ? 1 : d / 2;
                const double *row = &qk.value[(size_t)(t * (columns + gap))];
                const double *cs = &cosine_sine.value[(size_t)where[(size_t)t] * (size_t)d];
                double sine = within >= d ? 0 : inverse ? -cs[d / 2 + i] : cs[d / 2 + i];
                bool second = interleaved ? within % 2 : within >= d / 2;
                double out = within >= d ? row[c]
                             : second    ? row[c] * cs[i] + row[c - apart] * sine
                                         : row[c] * cs[i] - row[c + apart] * sine;
                want[(size_t)(t * columns + c)] = out;
                in_place[(size_t)(t * (columns + gap) + c)] = out;
            }
        int64_t q_columns = at.heads * size, k_columns = at.kv_heads * size;
        tensor q = rows_in(qk, tokens, q_columns, columns + gap),
               k = rows_in(qk, tokens, k_columns, columns + gap, q_columns);
        call c({q, k, all_of(positions), rows_in(cosine_sine, 30, d)},
               {rows_in(y, tokens, q_columns, columns), rows_in(y, tokens, k_columns, columns, q_columns)});
        at.tell(c);
        c.o.at.rotation.inverse = inverse;
        c.o.at.rotation.interleaved = interleaved;
        RUN(rope, c);
        compare("y", y, want, 2e-7);
        c.out(0, q);
        c.out(1, k);
        RUN(rope, c);
        compare("in place", qk, in_place, 2e-7);
    }
}

void rope()
{
    for (int type : check_types)
        for (head_layout at : head_layouts)
            for (int64_t rotated : {at.head_size, at.head_size / 2, 2})
                for (bool interleaved : {false, true})
                    rope_case(type, at, 11, rotated / 2 * 2, interleaved);
}

void head_norm_case(int type, head_layout at, int64_t tokens, float offset)
{
    int64_t d = at.head_size, all = at.heads + at.kv_heads, k_first = at.heads * d;
    size_t cells = (size_t)(tokens * all * d);
    array qk(type, randoms(cells, 2)), wq(type, randoms((size_t)d)), wk(type, randoms((size_t)d)), y(type, cells);
    array rstd(DTYPE_FP32, (size_t)(tokens * all)), dy(type, randoms(cells)), dqk(type, cells);
    array dwq(DTYPE_FP32, randoms((size_t)d)), dwk(DTYPE_FP32, randoms((size_t)d));
    vector<double> want_y = qk.value, want_rstd((size_t)(tokens * all)), want_dx = dy.value, want_q = dwq.value,
                   want_k = dwk.value;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t h = 0; h < all; h++) {
            size_t base = (size_t)((t * all + h) * d);
            const vector<double> &w = h < at.heads ? wq.value : wk.value;
            double squares = 0, along = 0;
            for (size_t c = 0; c < (size_t)d; c++)
                squares += qk.value[base + c] * qk.value[base + c] / (double)d;
            double scale = want_rstd[(size_t)(t * all + h)] = 1 / sqrt(squares + 1e-6);
            for (size_t c = 0; c < (size_t)d; c++)
                along += dy.value[base + c] * (w[c] + offset) * qk.value[base + c] * scale / (double)d;
            for (size_t c = 0; c < (size_t)d; c++) {
                double n = qk.value[base + c] * scale;
                want_y[base + c] = n * (w[c] + offset);
                want_dx[base + c] = scale * (dy.value[base + c] * (w[c] + offset) - n * along);
                (h < at.heads ? want_q : want_k)[c] += dy.value[base + c] * n;
            }
        }
    auto q_of = [&](const array &a) { return rows_in(a, tokens, k_first, all * d); };
    auto k_of = [&](const array &a) { return rows_in(a, tokens, at.kv_heads * d, all * d, k_first); };
    call forward({q_of(qk), k_of(qk), all_of(wq), all_of(wk)}, {q_of(y), k_of(y), rows_in(rstd, tokens, all)});
    at.tell(forward);
    forward.o.at.norm.epsilon = 1e-6f;
    forward.o.at.norm.offset = offset;
    RUN(head_norm, forward);
    compare("y", y, want_y, 1e-6);
    compare("rstd", rstd, want_rstd, 1e-6);
    call back({q_of(dy), k_of(dy), q_of(qk), k_of(qk), all_of(wq), all_of(wk), rows_in(rstd, tokens, all)},
              {q_of(dqk), k_of(dqk), all_of(dwq), all_of(dwk)});
    back.o.at = forward.o.at;
    back.o.at.accumulate = OP_ADDS;
    array scratch(BYTES, (size_t)cuda_head_norm_grad_scratch(&back.o));
    back.scratch(scratch);
    RUN(head_norm_grad, back);
    compare("dqk", dqk, want_dx, 2e-6);
    compare("dwq", dwq, want_q, 4e-6);
    compare("dwk", dwk, want_k, 4e-6);
}

void head_norm()
{
    for (int type : check_types)
        for (head_layout at : head_layouts)
            for (float offset : {0.0f, 1.0f})
                head_norm_case(type, at, 23, offset);
}

/* Sums of rows, of `more` ranks like this one. */
vector<double> times(vector<double> sums, int more)
{
    for (double &sum : sums)
        sum *= more;
    return sums;
}

void width_norm_case(int type, int64_t tokens, int64_t q, int64_t k, int ranks, float offset)
{
    const int64_t columns[] = {q, k};
    size_t all = (size_t)(q + k);
    array qk(type, randoms((size_t)tokens * all, 2)), dy(type, randoms((size_t)tokens * all)), y(type, dy.value.size()),
        dx(type, dy.value.size());
    array w[] = {{type, randoms((size_t)q)}, {type, randoms((size_t)k)}};
    array dw[] = {{DTYPE_FP32, randoms((size_t)q)}, {DTYPE_FP32, randoms((size_t)k)}};
    array squares(DTYPE_FP32, (size_t)tokens * 2), dots(DTYPE_FP32, (size_t)tokens * 2);
    vector<double> want_y = qk.value, want_dx = dy.value, want_dw[] = {dw[0].value, dw[1].value}, want_squares,
                   want_dots;
    for (int64_t t = 0; t < tokens; t++)
        for (int which = 0; which < 2; which++) {
            size_t base = (size_t)t * all + (size_t)(which ? q : 0), n = (size_t)columns[which];
            double sum = 0, dot = 0, width = (double)n * ranks;
            for (size_t c = 0; c < n; c++)
                sum += qk.value[base + c] * qk.value[base + c];
            double scale = 1 / sqrt(sum * ranks / width + 1e-6);
            for (size_t c = 0; c < n; c++)
                dot += dy.value[base + c] * (w[which].value[c] + offset) * qk.value[base + c] * scale;
            for (size_t c = 0; c < n; c++) {
                double u = qk.value[base + c] * scale;
                want_y[base + c] = u * (w[which].value[c] + offset);
                want_dx[base + c] =
                    scale * (dy.value[base + c] * (w[which].value[c] + offset) - u * dot * ranks / width);
                want_dw[which][c] += dy.value[base + c] * u;
            }
            want_squares.push_back(sum);
            want_dots.push_back(dot);
        }
    auto part = [&](const array &a, int which) {
        return rows_in(a, tokens, columns[which], (int64_t)all, which ? q : 0);
    };
    auto tell = [&](call &c) {
        c.o.at.norm.epsilon = 1e-6f;
        c.o.at.norm.offset = offset;
        for (int i = 0; i < 2; i++)
            c.o.at.norm.width[i] = columns[i] * ranks;
    };
    auto sums = [&](const array &a) { return rows_in(a, tokens, 2); };
    const tensor x0 = part(qk, 0), x1 = part(qk, 1), w0 = all_of(w[0]), w1 = all_of(w[1]);
    RUN(width_squares, call({x0, x1}, {sums(squares)}));
    compare("squares", squares, want_squares, 2e-6);
    array all_squares(DTYPE_FP32, times(want_squares, ranks)), all_dots(DTYPE_FP32, times(want_dots, ranks));
    call forward({x0, x1, w0, w1, sums(all_squares)}, {part(y, 0), part(y, 1)});
    tell(forward);
    RUN(width_norm, forward);
    compare("y", y, want_y, 1e-6);
    call products({part(dy, 0), part(dy, 1), x0, x1, w0, w1, sums(all_squares)},
                  {sums(dots), all_of(dw[0]), all_of(dw[1])});
    tell(products);
    products.o.at.accumulate = OP_ADDS;
    array scratch(BYTES, (size_t)cuda_width_dots_scratch(&products.o));
    products.scratch(scratch);
    RUN(width_dots, products);
    compare("dots", dots, want_dots, 4e-6);
    for (int i = 0; i < 2; i++)
        compare("dw", dw[i], want_dw[i], 4e-6);
    call back({part(dy, 0), part(dy, 1), x0, x1, w0, w1, sums(all_squares), sums(all_dots)},
              {part(dx, 0), part(dx, 1)});
    tell(back);
    RUN(width_norm_grad, back);
    compare("dx", dx, want_dx, 2e-6);
}

void width_norm()
{
    for (int type : check_types)
        for (auto columns : {norm_size{96, 32}, norm_size{640, 640}, norm_size{7, 5}})
            for (float offset : {0.0f, 1.0f})
                width_norm_case(type, 23, columns.rows, columns.columns, offset == 0 ? 1 : 3, offset);
}

/* ids 0..99, a shard in the middle; one of three tokens is 33: among many, more than a block has threads */
void embedding_case(int type, int64_t tokens, int64_t columns)
{
    int64_t first = 20, rows = 50;
    vector<double> ids;
    for (int64_t t = 0; t < tokens; t++)
        ids.push_back(check_integer(3) ? check_integer(100) : 33);
    array id(INT32, ids), table(type, randoms((size_t)(rows * columns))), y(type, (size_t)(tokens * columns));
    array dy(type, randoms((size_t)(tokens * columns))), x(type, randoms((size_t)(tokens * columns)));
    vector<double> want((size_t)(tokens * columns)), want_sum = x.value;
    array positions(INT32, ids);
    for (double &p : positions.value)
        p = fmod(p, (double)rows);
    positions.put();
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t c = 0; c < columns; c++) {
            int64_t row = (int64_t)ids[(size_t)t] - first;
            bool mine = row >= 0 && row < rows;
            want[(size_t)(t * columns + c)] = mine ? table.value[(size_t)(row * columns + c)] : 0;
            want_sum[(size_t)(t * columns + c)] +=
                table.value[(size_t)(positions.value[(size_t)t] * (double)columns) + (size_t)c];
        }
    const tensor of_y = rows_in(y, tokens, columns), of_table = rows_in(table, rows, columns);
    call take({all_of(id), of_table}, {of_y});
    take.o.at.vocabulary.first = first;
    RUN(embed, take);
    compare("y", y, want, 0);
    RUN(add_positions, call({rows_in(x, tokens, columns), all_of(positions), of_table}, {of_y}));
    compare("with positions", y, want_sum, 1e-7);
    array d(DTYPE_FP32, (size_t)(rows * columns));
    call back({rows_in(dy, tokens, columns), all_of(id)}, {rows_in(d, rows, columns)});
    back.o.at.vocabulary.first = first;
    array scratch(BYTES, (size_t)cuda_embed_grad_scratch(&back.o));
    back.scratch(scratch);
    vector<float> sums((size_t)(rows * columns));
    for (int pass = 0; pass < 2; pass++) {
        back.o.at.accumulate = pass == 1;
        RUN(embed_grad, back);
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t c = 0, row = (int64_t)ids[(size_t)t] - first; c < columns && row >= 0 && row < rows; c++)
                sums[(size_t)(row * columns + c)] += (float)dy.value[(size_t)(t * columns + c)];
        d.get();
        check("rows are added in ascending order, to the last bit",
              d.value == vector<double>(sums.begin(), sums.end()));
    }
}

void embedding()
{
    for (int type : check_types)
        for (int64_t columns : {8, 33, 264})
            embedding_case(type, 1000, columns);
}

void column_sum_case(int type, int64_t rows, int64_t columns, int64_t pitch)
{
    array x(type, randoms((size_t)(rows * pitch))), sum(DTYPE_FP32, randoms((size_t)columns));
    call c({rows_in(x, rows, columns, pitch)}, {all_of(sum)});
    array scratch(BYTES, (size_t)cuda_bias_grad_scratch(&c.o));
    c.scratch(scratch);
    c.o.at.accumulate = OP_ADDS;
    vector<double> want = sum.value, fresh((size_t)columns);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) {
            want[(size_t)c] += x.value[(size_t)(r * pitch + c)];
            fresh[(size_t)c] += x.value[(size_t)(r * pitch + c)];
        }
    RUN(bias_grad, c);
    compare("added", sum, want, 2e-6);
    c.o.at.accumulate = OP_WRITES;
    RUN(bias_grad, c);
    compare("written", sum, fresh, 2e-6);
}

void column_sums()
{
    struct {
        int64_t rows, columns, pitch;
    } sizes[] = {{1, 1, 1}, {300, 70, 70}, {129, 4100, 4104}, {64, 4096, 4096}, {5, 4097, 4100}, {1000, 3, 8}};
    for (int type : check_types)
        for (auto s : sizes)
            column_sum_case(type, s.rows, s.columns, s.pitch);
}

void mark()
{
    array words(INT32, {0.0, 0.0, 0.0});
    run_ok("launch_mark", launch_mark(nullptr, words.to<uint32_t>() + 1));
    words.get();
    check("one word is set", words.value == vector<double>({0, 1, 0}));
}

/* A flip of any bit of the rows changes the sum, of a bit between the rows it does not; equal words that change places
 * do. */
void bits()
{
    struct {
        size_t start, bytes, pitch, rows;
    } shapes[] = {{0, 4096, 4096, 1}, {0, 8, 8, 1},           {2, 6, 10, 5},
                  {8, 16, 24, 7},     {0, 100002, 100002, 1}, {1, 3, 3, 1}};
    for (auto s : shapes) {
        array data(BYTES, vector<double>(s.start + s.pitch * s.rows));
        array words(INT64, vector<double>(6));
        for (double &v : data.value)
            v = check_integer(256);
        uint64_t sums[3], *total = words.to<uint64_t>(), *sum = total + 1, *note = total + 2;
        int64_t *step = words.to<int64_t>() + 4;
        size_t row = (size_t)check_integer((int)s.rows), in_row = (size_t)check_integer((int)s.bytes);
        for (int turn = 0; turn < 3; turn++) {
            size_t at = s.start + row * s.pitch + (turn == 1 || s.pitch == s.bytes ? in_row : s.bytes);
            if (turn > 0 && at < data.value.size())
                data.value[at] = (double)((int)data.value[at] ^ 1 << check_integer(8));
            array copy(BYTES, data.value);
            const launch_bytes of = {copy.to<unsigned char>() + s.start, (int64_t)s.pitch, (int64_t)s.bytes,
                                     (int64_t)s.rows};
            run_ok("launch_sum_bits", launch_sum_bits(nullptr, total, &of));
            run_ok("launch_settle_bits", launch_finish_bits(nullptr, total, sum, nullptr, 0, nullptr));
            check_from(&sums[turn], sum, sizeof *sum);
            run_ok("launch_sum_bits", launch_sum_bits(nullptr, total, &of));
            run_ok("launch_settle_bits", launch_finish_bits(nullptr, total, sum, note, 7, step));
        }
        words.get();
        check("one bit changes the sum", sums[1] != sums[0]);
        check("nothing else does", s.pitch == s.bytes || sums[2] == sums[1]);
        check("the same sum is no finding", words.value[0] == 0 && words.value[2] == 0);
        uint64_t other = sums[2] + 1;
        int64_t now = 41;
        check_to(sum, &other, sizeof other);
        check_to(step, &now, sizeof now);
        for (uint64_t what : {7u, 8u})
            run_ok("launch_settle_bits", launch_finish_bits(nullptr, total, sum, note, what, step));
        words.get();
        check("the first finding is noted", words.value[2] == 7 && words.value[3] == 41);
    }
}

/* Every kernel of this file at the widths of GPT-3 175B (12,288), Llama 405B (16,384; 8 ranks have 6,656 of its MLP's
 * columns) and a GPT of 1T parameters (25,600), few rows of it. Norms also where a row does not fit into shared
 * memory. */
void wide()
{
    for (int64_t columns : {6144, 12288, 16384, 25600, 60000})
        for (int variant = 0; variant < 4; variant++)
            norm_case(DTYPE_BF16, {2, columns}, variant & 1, variant & 2, 0);
    norm_case(DTYPE_FP32, {2, 12288}, true, true, 0);
    for (head_layout at : wide_heads) {
        rope_case(DTYPE_BF16, at, 2, at.head_size, false);
        rope_case(DTYPE_BF16, at, 2, at.head_size, true);
        head_norm_case(DTYPE_BF16, at, 2, 0);
    }
    for (int64_t columns : {5120, 16384, 60000})
        width_norm_case(DTYPE_BF16, 2, columns, columns / 8, 1, 0);
    for (int64_t columns : {12288, 16384, 25600}) {
        embedding_case(DTYPE_BF16, 3, columns);
        column_sum_case(DTYPE_BF16, 3, 4 * columns, 4 * columns);
    }
}

/* Norms keep a row in shared memory where it fits; nothing else here asks how much there is. */
void narrow()
{
    for (const char *kib : {"99", "163"}) {
        shared_limit limit(kib);
        for (int64_t columns : {12288, 25600})
            norm_case(DTYPE_BF16, {2, columns}, true, true, 0);
        for (int type : check_types)
            for (int64_t columns : {33, 40}) {
                norm_case(type, {2, columns}, true, false, 0);
                width_norm_case(type, 2, columns, columns, 1, 0);
            }
        width_norm_case(DTYPE_BF16, 2, 25600, 3200, 1, 0);
    }
    shared_limit limit("2"); /* of no GPU: rows that fit nowhere, of every type and access, are short here */
    for (int type : check_types)
        for (int64_t columns : {640, 641}) {
            norm_case(type, {2, columns}, true, true, 0);
            width_norm_case(type, 2, columns, columns, 1, 0);
        }
}

/* Rows that blocks keep in shared memory cost no bank two turns: every kernel with a row, every type, with whole and
 * partial steps of a block's threads. */
void banks()
{
    for (int type : check_types)
        for (int64_t columns : {40, 1032, 4120, 33}) {
            wavefronts w = count_wavefronts([&] {
                norm_case(type, {3, columns}, false, true, 0);
                norm_case(type, {3, columns}, true, false, 0);
                width_norm_case(type, 3, columns, columns, 1, 0);
            });
            check("no bank of shared memory has two turns", w.taken == w.least && (!w.known || w.least > 0));
        }
}
} // namespace

const vector<test_case> row_cases = {
    {"rows/norms", norms},         {"rows/rope", rope},
    {"rows/head_norm", head_norm}, {"rows/width_norm", width_norm},
    {"rows/embedding", embedding}, {"rows/column_sums", column_sums},
    {"rows/mark", mark},           {"rows/bits", bits},
    {"rows/wide", wide},           {"rows/narrow", narrow},
    {"rows/banks", banks},
};
