/* Attention against softmax(q k^T scale + mask) v, with and without a cap of its scores, written out in float64:
 * forward, backward and decoding. */
#include "tests/cuda/check.h"

namespace
{
struct heads_of {
    int32_t heads, kv_heads, head_size, v_head_size, sequence, window;
    float scale, cap;

    void tell(call &c) const
    {
        op_attributes &to = c.o.at;
        to.heads = {heads, kv_heads, head_size};
        to.attention.sequence = sequence;
        to.attention.window = window;
        to.attention.scale = scale;
        to.attention.cap = cap;
    }
};

struct problem {
    heads_of at;
    int64_t samples;
    bool documents;
    int64_t qkv_gap, y_gap;    /* unused elements at the end of each row */
    vector<double> sinks = {}; /* of the heads; empty: there are none */

    int64_t tokens() const
    {
        return samples * at.sequence;
    }
    int64_t columns() const
    {
        return v_first() + (int64_t)at.kv_heads * at.v_head_size;
    }
    int64_t k_first() const
    {
        return (int64_t)at.heads * at.head_size;
    }
    int64_t v_first() const
    {
        return k_first() + (int64_t)at.kv_heads * at.head_size;
    }
    int64_t pitch() const
    {
        return columns() + qkv_gap;
    }
    int64_t y_columns() const
    {
        return (int64_t)at.heads * at.v_head_size;
    }
    int64_t dy_pitch() const
    {
        return y_columns() + 3 * y_gap;
    }
    int64_t y_pitch() const
    {
        return y_columns() + y_gap;
    }
    /* q, k and v of `rows` tokens */
    tensor q_of(const array &a, int64_t rows) const
    {
        return rows_in(a, rows, k_first(), pitch());
    }
    tensor k_of(const array &a, int64_t rows) const
    {
        return rows_in(a, rows, v_first() - k_first(), pitch(), k_first());
    }
    tensor v_of(const array &a, int64_t rows) const
    {
        return rows_in(a, rows, columns() - v_first(), pitch(), v_first());
    }
    /* head after head of a sample, sample after sample */
    int64_t lse_at(int64_t token, int64_t head) const
    {
        return (token / at.sequence * at.heads + head) * at.sequence + token % at.sequence;
    }
};

vector<double> document_starts(const problem &p)
{
    vector<double> start((size_t)p.tokens());
    for (int64_t s = 0; s < p.samples; s++)
        for (int64_t i = 0, first = 0; i < p.at.sequence; i++) {
            if (i && check_integer(p.at.sequence / 3 + 1) == 0)
                first = i;
            start[(size_t)(s * p.at.sequence + i)] = (double)first;
        }
    return start;
}

int64_t lowest(const problem &p, const vector<double> &start, int64_t token)
{
    int64_t i = token % p.at.sequence, low = p.documents ? (int64_t)start[(size_t)token] : 0;
    if (p.at.window > 0 && i - p.at.window + 1 > low)
        low = i - p.at.window + 1;
    return low;
}

struct reference {
    vector<double> y, lse, dqkv, dsinks, largest;
};

/* One (token, head): probabilities, output, and if dy is given its share of every gradient. */
void reference_row(reference &r, const problem &p, const vector<double> &qkv, const vector<double> &start,
                   const vector<double> *dy, int64_t token, int64_t head)
{
    int64_t size = p.at.head_size, v_size = p.at.v_head_size;
    int64_t i = token % p.at.sequence, base = token - i, low = lowest(p, start, token);
    int64_t kv = head / (p.at.heads / p.at.kv_heads), k_at = p.k_first() + kv * size, v_at = p.v_first() + kv * v_size;
    const double *q = &qkv[(size_t)(token * p.pitch() + head * size)];
    vector<double> prob((size_t)(i + 1), 0.0), slope((size_t)(i + 1), 0.0); /* slope: by the product */
    double most = p.sinks.empty() ? -INFINITY : p.sinks[(size_t)head], sum = 0, cap = p.at.cap;
    for (int64_t j = low; j <= i; j++) {
        const double *k = &qkv[(size_t)((base + j) * p.pitch() + k_at)];
        double score = 0;
        for (int64_t c = 0; c < size; c++)
            score += q[c] * k[c];
        score *= (double)p.at.scale;
        prob[(size_t)j] = cap > 0 ? cap * tanh(score / cap) : score;
        slope[(size_t)j] = (double)p.at.scale * (cap > 0 ? 1 - pow(prob[(size_t)j] / cap, 2) : 1);
        most = fmax(most, prob[(size_t)j]);
    }
    r.largest[(size_t)(head * p.tokens() + token)] = most;
    for (int64_t j = low; j <= i; j++)
        sum += prob[(size_t)j] = exp(prob[(size_t)j] - most);
    if (!p.sinks.empty())
        sum += exp(p.sinks[(size_t)head] - most);
    r.lse[(size_t)(p.lse_at(token, head))] = most + log(sum);
    double *y = &r.y[(size_t)(token * p.y_pitch() + head * v_size)];
    double delta = 0;
    for (int64_t j = low; j <= i; j++)
        for (int64_t c = 0; c < v_size; c++)
            y[c] += prob[(size_t)j] / sum * qkv[(size_t)((base + j) * p.pitch() + v_at + c)];
    if (!dy)
        return;
    const double *d = &(*dy)[(size_t)(token * p.dy_pitch() + head * v_size)];
    for (int64_t c = 0; c < v_size; c++)
        delta += d[c] * y[c];
    if (!p.sinks.empty())
        r.dsinks[(size_t)head] -= exp(p.sinks[(size_t)head] - most) / sum * delta;
    for (int64_t j = low; j <= i; j++) {
        double pj = prob[(size_t)j] / sum, dp = 0;
        const double *k = &qkv[(size_t)((base + j) * p.pitch() + k_at)];
        const double *v = &qkv[(size_t)((base + j) * p.pitch() + v_at)];
        for (int64_t c = 0; c < v_size; c++)
            dp += d[c] * v[c];
        double ds = pj * (dp - delta) * slope[(size_t)j];
        double *to = &r.dqkv[(size_t)(token * p.pitch() + head * size)],
               *to_j = &r.dqkv[(size_t)((base + j) * p.pitch())];
        for (int64_t c = 0; c < size; c++) {
            to[c] += ds * k[c];
            to_j[k_at + c] += ds * q[c];
        }
        for (int64_t c = 0; c < v_size; c++)
            to_j[v_at + c] += pj * d[c];
    }
}

reference reference_of(const problem &p, const vector<double> &qkv, const vector<double> &start,
                       const vector<double> *dy)
{
    reference r = {vector<double>((size_t)(p.tokens() * p.y_pitch())),
                   vector<double>((size_t)(p.tokens() * p.at.heads)), vector<double>((size_t)(p.tokens() * p.pitch())),
                   vector<double>((size_t)p.at.heads), vector<double>((size_t)(p.tokens() * p.at.heads))};
    for (int64_t token = 0; token < p.tokens(); token++)
        for (int64_t head = 0; head < p.at.heads; head++)
            reference_row(r, p, qkv, start, dy, token, head);
    return r;
}

/* Written, then added to what was there. */
void sinks_gradient(int type, const problem &p, std::initializer_list<tensor> in, const array &scratch,
                    const reference &r)
{
    array dsinks(DTYPE_FP32, vector<double>((size_t)p.at.heads, NAN));
    call c(in, {all_of(dsinks)});
    p.at.tell(c);
    c.scratch(scratch);
    /* y is rounded, and so is what it is summed with */
    double narrow = type == DTYPE_FP32 ? 1e-5 : type == DTYPE_BF16 ? 0x1p-6 : 0x1p-9;
    RUN(attention_sinks_grad, c);
    compare("dsinks", dsinks, r.dsinks, narrow);
    c.o.at.accumulate = OP_ADDS;
    vector<double> twice = r.dsinks;
    for (double &v : twice)
        v *= 2;
    RUN(attention_sinks_grad, c);
    compare("dsinks twice", dsinks, twice, narrow);
}

void attention_both_ways(int type, const problem &p)
{
    array sinks(type, p.sinks.empty() ? vector<double>(1, NAN) : p.sinks);
    array qkv(type, randoms((size_t)(p.tokens() * p.pitch()), 1.5)),
        dy(type, randoms((size_t)(p.tokens() * p.dy_pitch())));
    array start(INT32, document_starts(p));
    array y(type, vector<double>((size_t)(p.tokens() * p.y_pitch()), 0.0)),
        lse(DTYPE_FP32, (size_t)(p.tokens() * p.at.heads)), largest(DTYPE_FP32, (size_t)(p.tokens() * p.at.heads));
    const bool notes = p.sinks.empty() && p.at.cap == 0;
    array dqkv(type, vector<double>((size_t)(p.tokens() * p.pitch()), 0.0));
    const int64_t rows = p.tokens();
    const tensor q = p.q_of(qkv, rows), k = p.k_of(qkv, rows), v = p.v_of(qkv, rows),
                 starts = only_if(p.documents, all_of(start)), of_y = rows_in(y, rows, p.y_columns(), p.y_pitch()),
                 of_dy = rows_in(dy, rows, p.y_columns(), p.dy_pitch()),
                 of_lse = rows_in(lse, p.samples * p.at.heads, p.at.sequence),
                 of_sinks = only_if(!p.sinks.empty(), all_of(sinks));
    call forward({q, k, v, starts, none, of_sinks}, {of_y, of_lse, only_if(notes, rows_in(largest, p.at.heads, rows))}),
        back({of_dy, q, k, v, of_y, of_lse, starts}, {p.q_of(dqkv, rows), p.k_of(dqkv, rows), p.v_of(dqkv, rows)});
    p.at.tell(forward);
    p.at.tell(back);
    array scratch(BYTES, (size_t)cuda_attention_grad_scratch(&back.o));
    back.scratch(scratch);
    RUN(attention, forward);
    reference r = reference_of(p, qkv.value, start.value, &dy.value);
    /* p is rounded to 16 bits, and over many draws some sums of it are a quarter further off than most */
    double narrow = type == DTYPE_FP32 ? 2e-6 : 1.25 * (type == DTYPE_BF16 ? 0x1p-7 : 0x1p-10);
    compare("y", y, r.y, narrow);
    compare("lse", lse, r.lse, type == DTYPE_FP32 ? 1e-6 : 4e-6);
    if (notes)
        compare("largest", largest, r.largest, type == DTYPE_FP32 ? 1e-6 : 4e-6);
    RUN(attention_grad, back);
    compare("dqkv", dqkv, r.dqkv, type == DTYPE_FP32 ? 1e-5 : 3 * narrow);
    if (!p.sinks.empty())
        sinks_gradient(type, p, {of_dy, of_y, of_lse, of_sinks}, scratch, r);
}

/* Of each sample, cut into four runs, rank 0 of two has the first and the last as queries, rank 1 those between, run by
 * run over all samples: row `i` of a rank is this token. */
int64_t token_sharded(const problem &p, int64_t rank, int64_t i)
{
    int64_t run = p.at.sequence / 4, half = i / (p.samples * run), sample = i / run % p.samples;
    int64_t of_sample = half == 0 ? rank : 3 - rank;
    return sample * p.at.sequence + of_sample * run + i % run;
}

vector<double> rows_sharded(const problem &p, int64_t rank, const vector<double> &of, int64_t pitch, int64_t columns)
{
    vector<double> own;
    for (int64_t i = 0; i < p.tokens() / 2; i++)
        for (int64_t c = 0; c < columns; c++)
            own.push_back(of[(size_t)(token_sharded(p, rank, i) * pitch + c)]);
    return own;
}

/* Two ranks' queries against the keys of all: each has its rows of y and dq, and the sum of their dk and dv is that of
 * all queries. */
void attention_divided(int type, const problem &p)
{
    array sinks(type, p.sinks.empty() ? vector<double>(1, NAN) : p.sinks);
    array qkv(type, randoms((size_t)(p.tokens() * p.pitch()), 1.5)),
        dy(type, randoms((size_t)(p.tokens() * p.dy_pitch())));
    vector<double> start = document_starts(p), sum((size_t)(p.tokens() * p.pitch()), 0.0);
    reference r = reference_of(p, qkv.value, start, &dy.value);
    int64_t rows = p.tokens() / 2, q_columns = p.k_first();
    /* the ranks' shares of dk and dv are rounded, too */
    double narrow = type == DTYPE_FP32 ? 2e-6 : 1.25 * (type == DTYPE_BF16 ? 0x1p-7 : 0x1p-10);
    for (int64_t rank = 0; rank < 2; rank++) {
        vector<double> token_positions, logs, most;
        const bool notes = p.sinks.empty() && p.at.cap == 0;
        for (int64_t i = 0; i < rows; i++)
            token_positions.push_back((double)token_sharded(p, rank, i));
        array at(INT32, token_positions), own_start(INT32, rows_sharded(p, rank, start, 1, 1));
        array q(type, rows_sharded(p, rank, qkv.value, p.pitch(), q_columns)),
            own_dy(type, rows_sharded(p, rank, dy.value, p.dy_pitch(), p.y_columns()));
        array y(type, vector<double>((size_t)(rows * p.y_columns()), 0.0)),
            dq(type, vector<double>((size_t)(rows * q_columns), 0.0));
        array lse(DTYPE_FP32, (size_t)(rows * p.at.heads)), largest(DTYPE_FP32, (size_t)(rows * p.at.heads)),
            dkv(type, vector<double>((size_t)(p.tokens() * p.pitch()), 0.0));
        const int32_t run = p.at.sequence / 4;
        const tensor of_q = rows_in(q, rows, q_columns), k = p.k_of(qkv, p.tokens()), v = p.v_of(qkv, p.tokens()),
                     starts = only_if(p.documents, all_of(own_start)), of_y = rows_in(y, rows, p.y_columns()),
                     of_lse = rows_in(lse, rows / run * p.at.heads, run);
        call forward({of_q, k, v, starts, all_of(at), only_if(!p.sinks.empty(), all_of(sinks))},
                     {of_y, of_lse, only_if(notes, rows_in(largest, p.at.heads, rows))}),
            back({rows_in(own_dy, rows, p.y_columns()), of_q, k, v, of_y, of_lse, starts, all_of(at)},
                 {rows_in(dq, rows, q_columns), p.k_of(dkv, p.tokens()), p.v_of(dkv, p.tokens())});
        p.at.tell(forward);
        p.at.tell(back);
        forward.o.at.attention.run = back.o.at.attention.run = run;
        array scratch(BYTES, (size_t)cuda_attention_grad_scratch(&back.o));
        back.scratch(scratch);
        RUN(attention, forward);
        compare("y", y, rows_sharded(p, rank, r.y, p.y_pitch(), p.y_columns()), narrow);
        for (int64_t head = 0; notes && head < p.at.heads; head++)
            for (int64_t i = 0; i < rows; i++)
                most.push_back(r.largest[(size_t)(head * p.tokens() + token_sharded(p, rank, i))]);
        if (notes)
            compare("largest", largest, most, type == DTYPE_FP32 ? 1e-6 : 4e-6);
        for (int64_t i = 0; i < rows * p.at.heads; i++) {
            int64_t head = i / run % p.at.heads, row = i / run / p.at.heads * run + i % run;
            logs.push_back(r.lse[(size_t)p.lse_at(token_sharded(p, rank, row), head)]);
        }
        compare("lse", lse, logs, type == DTYPE_FP32 ? 1e-6 : 4e-6);
        RUN(attention_grad, back);
        compare("dq", dq, rows_sharded(p, rank, r.dqkv, p.pitch(), q_columns), type == DTYPE_FP32 ? 1e-5 : 4 * narrow);
        dkv.get();
        for (size_t i = 0; i < sum.size(); i++)
            sum[i] += dkv.value[i];
    }
    array dkv(DTYPE_FP32, sum);
    for (int64_t token = 0; token < p.tokens(); token++) /* dq is elsewhere */
        for (int64_t c = 0; c < q_columns; c++)
            r.dqkv[(size_t)(token * p.pitch() + c)] = 0;
    compare("dk and dv", dkv, r.dqkv, type == DTYPE_FP32 ? 1e-5 : 4 * narrow);
}

void one_size(int head_size, int heads, int kv_heads, int sequence, int samples, int window, bool documents,
              float cap = 0)
{
    int v_head_size = head_size == 192 ? 128 : head_size; /* as latent attention has them */
    problem p = {{heads, kv_heads, head_size, v_head_size, sequence, window, 1.0f / sqrtf((float)head_size), cap},
                 samples,
                 documents,
                 documents ? 8 : 0,
                 documents ? 16 : 0};
    for (int type : {DTYPE_BF16, DTYPE_FP16})
        attention_both_ways(type, p);
}

void divided(int head_size, int kv_heads, int sequence, int samples, int window, bool documents, float cap = 0)
{
    int v_head_size = head_size == 192 ? 128 : head_size;
    problem p = {{2, kv_heads, head_size, v_head_size, sequence, window, 1.0f / sqrtf((float)head_size), cap},
                 samples,
                 documents,
                 documents ? 8 : 0,
                 documents ? 16 : 0};
    for (int type : {DTYPE_BF16, DTYPE_FP16})
        attention_divided(type, p);
}

/* Runs shorter and longer than tiles, and that end within one. */
void divided_64()
{
    divided(64, 1, 300, 1, 0, false);
    divided(64, 2, 132, 2, 40, true);
}

void divided_more()
{
    divided(80, 1, 44, 2, 0, true);
    divided(96, 2, 148, 1, 33, false);
    divided(128, 1, 276, 1, 0, true);
    divided(192, 1, 140, 1, 0, false);
    divided(256, 2, 76, 1, 20, false);
}

void divided_by_warps()
{
    for (int type : {DTYPE_FP32, DTYPE_BF16}) {
        attention_divided(type, {{4, 2, 24, 24, 36, 0, 0.2f, 0}, 2, false, 0, 0});
        attention_divided(type, {{2, 2, 33, 33, 160, 9, 0.15f, 0}, 1, true, 3, 5});
        attention_divided(type, {{4, 2, 24, 40, 40, 5, 0.2f, 0}, 1, true, 8, 0});
    }
}

void flash_64()
{
    one_size(64, 2, 1, 150, 1, 0, false);
    one_size(64, 1, 1, 33, 2, 7, true);
}

void flash_64_documents()
{
    one_size(64, 2, 2, 200, 1, 0, true);
    one_size(64, 1, 1, 140, 1, 40, false);
    one_size(64, 1, 1, 1, 1, 0, false);
}

void flash_80()
{
    one_size(80, 2, 1, 77, 1, 0, true);
}

void flash_96()
{
    one_size(96, 2, 2, 70, 1, 33, false);
}

void flash_128()
{
    one_size(128, 4, 2, 133, 1, 0, false);
    one_size(128, 1, 1, 96, 1, 50, true);
}

void flash_192()
{
    one_size(192, 2, 1, 133, 1, 0, false);
    one_size(192, 1, 1, 70, 1, 33, true);
}

void flash_256()
{
    one_size(256, 2, 1, 70, 1, 0, true);
}

void any_size()
{
    for (int type : check_types) {
        attention_both_ways(type, {{4, 2, 24, 24, 37, 0, 0.2f, 0}, 2, false, 0, 0});
        attention_both_ways(type, {{2, 2, 33, 33, 70, 9, 0.15f, 0}, 1, true, 3, 5});
        attention_both_ways(type, {{3, 1, 8, 8, 13, 0, 0.3f, 0}, 2, false, 0, 0});
        attention_both_ways(type, {{4, 2, 24, 40, 37, 5, 0.2f, 0}, 1, true, 8, 0});
        attention_both_ways(type, {{2, 1, 64, 48, 33, 0, 0.12f, 0}, 1, false, 0, 0});
    }
    attention_both_ways(DTYPE_FP32, {{2, 1, 128, 128, 40, 0, 0.09f, 0}, 1, true, 0, 0});
    attention_both_ways(DTYPE_FP32, {{1, 1, 192, 128, 40, 0, 0.07f, 0}, 1, true, 0, 0});
    attention_both_ways(DTYPE_FP32, {{1, 1, 256, 256, 5, 0, 0.06f, 0}, 1, false, 0, 0});
}

/* Caps of scores: of most, and of few. Products of a query and a key are 0.75 scale sqrt(head_size), more or less. */
void capped()
{
    for (float cap : {0.4f, 3.0f}) {
        for (int size : {64, 80, 96, 128, 192, 256})
            one_size(size, 2, 1, 77, 1, size == 96 ? 33 : 0, size == 128, cap);
        for (int type : check_types)
            attention_both_ways(type, {{4, 2, 24, 40, 37, 5, 0.2f, cap}, 1, true, 8, 0});
    }
    divided(128, 1, 140, 1, 0, true, 0.4f);
    divided(256, 2, 76, 1, 20, false, 0.4f);
    attention_divided(DTYPE_FP32, {{2, 2, 33, 33, 160, 9, 0.15f, 0.4f}, 1, true, 3, 5});
}

/* Sinks below most scores, among them and above all, of which each head has its own; exact in every type. */
void sinks()
{
    const vector<double> near = {0.5, -1.25, 2, -3}, far = {6, -20, -0.5, 9};
    for (const vector<double> &of : {near, far}) {
        for (int type : {DTYPE_BF16, DTYPE_FP16}) {
            attention_both_ways(type, {{4, 2, 64, 64, 150, 40, 0.125f, 0}, 1, false, 0, 0, of});
            attention_both_ways(type, {{4, 1, 64, 64, 33, 0, 0.125f, 0}, 2, true, 8, 16, of});
            attention_both_ways(type, {{4, 4, 128, 128, 70, 0, 0.09f, 3.0f}, 1, true, 0, 0, of});
            attention_both_ways(type, {{4, 2, 192, 128, 40, 0, 0.07f, 0}, 1, false, 0, 0, of});
        }
        for (int type : check_types)
            attention_both_ways(type, {{4, 2, 24, 40, 37, 5, 0.2f, 0}, 1, true, 8, 0, of});
        attention_both_ways(DTYPE_FP32, {{4, 2, 64, 64, 90, 20, 0.125f, 0}, 1, false, 0, 0, of});
        attention_divided(DTYPE_BF16, {{2, 1, 64, 64, 132, 40, 0.125f, 0}, 2, true, 8, 16, of});
        attention_divided(DTYPE_FP32, {{2, 2, 33, 33, 160, 9, 0.15f, 0}, 1, true, 3, 5, of});
    }
}

/* Heads as GPT-3 175B, Llama 405B and a GPT of 1T parameters have them. */
void wide()
{
    attention_both_ways(DTYPE_BF16, {{96, 96, 128, 128, 17, 0, 0.09f, 0}, 1, false, 0, 0});
    attention_both_ways(DTYPE_BF16, {{128, 8, 128, 128, 17, 0, 0.09f, 0}, 1, false, 0, 0});
    attention_both_ways(DTYPE_BF16, {{160, 160, 160, 160, 9, 0, 0.08f, 0}, 1, false, 0, 0});
}

/* On GPUs with less shared memory a block than an H100: every size fits, and at 99 KiB the large ones by smaller tiles,
 * whose results are looked at as closely as those of the others. */
void narrow()
{
    for (const char *kib : {"99", "163"}) {
        shared_limit limit(kib);
        for (int size : {64, 80, 96, 128, 192, 256})
            for (float cap : {0.0f, 0.4f})
                one_size(size, 1, 1, 33, 1, 0, false, cap);
    }
    shared_limit limit("99");
    flash_128();
    flash_256();
}

/* Decoding a sequence token by token gives what attention gives for the whole. */
void decode_with(const vector<double> &sinks_of)
{
    for (int type : check_types)
        for (int window : {0, 11}) {
            float cap = window ? 0.4f : 0;
            int32_t samples = 2, sequence = 45, capacity = 50, v_size = window ? 24 : 40;
            problem p = {{4, 2, 40, v_size, sequence, window, 0.16f, cap}, samples, false, 0, 0, sinks_of};
            array sinks(type, sinks_of.empty() ? vector<double>(1, NAN) : sinks_of);
            array qkv(type, randoms((size_t)(p.tokens() * p.pitch()), 1.5));
            reference r = reference_of(p, qkv.value, {}, nullptr);
            size_t cached = (size_t)samples * capacity * 2;
            array k_cache(type, cached * 40), v_cache(type, cached * (size_t)v_size),
                y(type, (size_t)(samples * p.y_columns()));
            for (int32_t step = 0; step < sequence; step++) {
                vector<double> row, want;
                for (int64_t s = 0; s < samples; s++) {
                    int64_t token = s * sequence + step;
                    row.insert(row.end(), qkv.value.begin() + token * p.columns(),
                               qkv.value.begin() + (token + 1) * p.columns());
                    want.insert(want.end(), r.y.begin() + token * p.y_columns(),
                                r.y.begin() + (token + 1) * p.y_columns());
                }
                array now(type, row), positions(INT32, vector<double>((size_t)samples, step));
                tensor k_rows = rows_in(k_cache, samples, capacity), v_rows = rows_in(v_cache, samples, capacity);
                k_rows.dims = v_rows.dims = 3;
                k_rows.pitch = capacity * (k_rows.shape[2] = 2 * 40);
                v_rows.pitch = capacity * (v_rows.shape[2] = 2 * v_size);
                call c({p.q_of(now, samples), p.k_of(now, samples), p.v_of(now, samples), all_of(positions), k_rows,
                        v_rows, only_if(!p.sinks.empty(), all_of(sinks))},
                       {rows_in(y, samples, p.y_columns())});
                p.at.tell(c);
                RUN(attention_decode, c);
                compare("y", y, want, 2e-6);
            }
        }
}

void decode()
{
    decode_with({});
}

void decode_sinks()
{
    decode_with({0.5, -20, 4, -1.5});
}
} // namespace

const vector<test_case> attention_cases = {
    {"attention/flash_64", flash_64},
    {"attention/flash_64_documents", flash_64_documents},
    {"attention/flash_80", flash_80},
    {"attention/flash_96", flash_96},
    {"attention/flash_128", flash_128},
    {"attention/flash_192", flash_192},
    {"attention/flash_256", flash_256},
    {"attention/any_size", any_size},
    {"attention/capped", capped},
    {"attention/narrow", narrow},
    {"attention/sinks", sinks},
    {"attention/wide", wide},
    {"attention/decode", decode},
    {"attention/decode_sinks", decode_sinks},
    {"attention/divided_64", divided_64},
    {"attention/divided", divided_more},
    {"attention/divided_by_warps", divided_by_warps},
};
