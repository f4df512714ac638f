/* Compressed gradients: messages, what is kept and what is decoded, bit by bit as the host writes and reads them
 * (kernels/compress.c, which tests/oracle compares with formulas in float64). */
#include "tests/cuda/check.h"

#include <algorithm>

#include "kernels/compress.h"

namespace
{
constexpr int64_t ROOM = 6; /* bytes behind the longest part, to be zeros */

struct shape {
    int64_t rows, width;
    int parts;
};

/* One element; less than a block, a run and a chunk; parts of unequal rows, of several chunks, and with no rows at all;
 * whole chunks; a chunk and one. */
const shape SHAPES[] = {{1, 1, 1},     {1, 63, 1},   {7, 31, 3},   {2, 65, 3},
                        {14, 1056, 3}, {8192, 1, 1}, {4097, 1, 1}, {5, 4096, 2}};

/* What is in gradient / loss scale + feedback: in both, or in the feedback alone, where it is meant to the last bit. */
struct fill {
    double (*value)(size_t i);
    bool both;
};

double ordinary(size_t)
{
    return check_random() * pow(10, 3 * check_random());
}

/* Of a tensor's first chunk, or its second. */
double broken(size_t i)
{
    return i == 0 ? NAN : i == 4500 ? INFINITY : check_random();
}

double zero(size_t i)
{
    return i % 3 ? 0.0 : -0.0;
}

/* The first is rounded to bf16's infinity. */
double huge(size_t i)
{
    return i == 0 ? 3.4e38 : check_random() * 3.3e38;
}

double tiny(size_t)
{
    return check_random() * 1e-40;
}

/* Of two magnitudes, some 30 of each in a run. */
double equal(size_t i)
{
    return (i % 2 ? 0.25 : -0.25) * (check_integer(2) ? 1 : 2);
}

/* They differ in their last bit. */
double close(size_t)
{
    return check_integer(2) ? 1 : 1 + 0x1p-23;
}

double few(size_t i)
{
    return i % 977 == 5 ? 100 + (double)i : 0;
}

const fill FILLS[] = {{ordinary, true}, {broken, true}, {zero, false},  {huge, false},
                      {tiny, false},    {equal, false}, {close, false}, {few, false}};
constexpr size_t LONG_FILLS = 2; /* of which there are long tensors, too */

vector<float> floats_of(const array &a)
{
    vector<float> x(a.value.size());
    check_from(x.data(), a.to(), a.size());
    return x;
}

vector<unsigned char> bytes_from(const array &a)
{
    vector<unsigned char> x(a.value.size());
    check_from(x.data(), a.to(), a.size());
    return x;
}

/* A NaN is a NaN. */
bool same_bits(const vector<float> &a, const vector<float> &b)
{
    for (size_t i = 0; i < a.size(); i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0 && !(std::isnan(a[i]) && std::isnan(b[i])))
            return false;
    return true;
}

struct method_case {
    compress_method method;
    shape of;
    int64_t bytes; /* of a part of a message */

    /* an op on tensors of the shape */
    void tell(call &c) const
    {
        c.o.where.group_size = of.parts;
        c.o.at.compression = {0, (float)method.density, (uint8_t)method.kind};
    }
    tensor whole(const array &a) const
    {
        return rows_in(a, of.rows, of.width);
    }
};

method_case case_of(compress_kind kind, double density, const shape &s)
{
    compress_method m = {kind, (double)(float)density};
    int64_t most = (s.rows + s.parts - 1) / s.parts * s.width;
    return {m, s, compress_bytes(&m, most) + ROOM};
}

/* each(first element, elements, where its bytes are) of every chunk that has any */
template <typename F> void each_chunk(const method_case &c, F each)
{
    int64_t row = 0, whole = compress_bytes(&c.method, COMPRESS_CHUNK);
    for (int part = 0; part < c.of.parts; part++) {
        int64_t rows = c.of.rows / c.of.parts + (part < c.of.rows % c.of.parts), n = rows * c.of.width;
        for (int64_t k = 0; k * COMPRESS_CHUNK < n; k++) {
            int64_t left = n - k * COMPRESS_CHUNK;
            each((size_t)(row * c.of.width + k * COMPRESS_CHUNK), std::min<int64_t>(left, COMPRESS_CHUNK),
                 (size_t)(part * c.bytes + k * whole));
        }
        row += rows;
    }
}

/* The message and x, which becomes what is kept, by the host. */
vector<unsigned char> written(const method_case &c, vector<float> &x)
{
    vector<unsigned char> message((size_t)(c.of.parts * c.bytes), 0);
    each_chunk(c, [&](size_t first, int64_t n, size_t at) {
        bool finite = true;
        for (int64_t i = 0; i < n; i++)
            finite = finite && std::isfinite(x[first + (size_t)i]);
        if (finite)
            compress_encode(&message[at], &x[first], &c.method, n);
        else
            memset(&message[at], 0xff, (size_t)compress_bytes(&c.method, n));
    });
    return message;
}

vector<float> read(const method_case &c, const vector<unsigned char> &messages, int64_t count, float scale)
{
    vector<float> y((size_t)(c.of.rows * c.of.width), 0);
    size_t message = (size_t)(c.of.parts * c.bytes);
    each_chunk(c, [&](size_t first, int64_t n, size_t at) {
        vector<float> x((size_t)n);
        for (int64_t m = 0; m < count; m++) {
            bool sound = compress_decode(x.data(), &messages[(size_t)m * message + at], &c.method, n);
            for (size_t i = 0; i < x.size(); i++)
                y[first + i] = !sound ? NAN : m == 0 ? x[i] : y[first + i] + x[i];
        }
        for (size_t i = 0; i < x.size(); i++)
            y[first + i] *= scale;
    });
    return y;
}

void decode_all(const method_case &c, const array &y, const array &messages, const array &scalars, int64_t count)
{
    call decode({rows_in(messages, count * c.of.parts, c.bytes), all_of(scalars)}, {c.whole(y)});
    c.tell(decode);
    decode.o.at.compression.messages = count;
    RUN(decompress, decode);
}

/* Messages of three ranks, each from numbers of its own, and their sum. */
void both_ways(const method_case &c, const fill &f)
{
    constexpr int RANKS = 3;
    size_t elements = (size_t)(c.of.rows * c.of.width);
    step_scalars s = {};
    s.loss_scale = 48; /* its inverse is no power of two */
    array scalars = bytes_of(&s, sizeof s);
    vector<double> all;
    for (int rank = 0; rank < RANKS; rank++) {
        vector<double> values(elements), others = f.both ? randoms(elements, 0.1) : vector<double>(elements, 0);
        for (size_t i = 0; i < elements; i++)
            values[i] = rank == 1 && f.value == broken ? ordinary(i) : f.value(i);
        array gradient(DTYPE_FP32, f.both ? values : others), feedback(DTYPE_FP32, f.both ? others : values);
        array message(BYTES, (size_t)(c.of.parts * c.bytes)), kept(DTYPE_FP32, elements);
        vector<float> x = floats_of(gradient), more = floats_of(feedback);
        for (size_t i = 0; i < elements; i++) {
            float product = x[i] * (1.0f / s.loss_scale);
            x[i] = product + more[i];
        }
        vector<unsigned char> want = written(c, x);
        call encode({c.whole(gradient), c.whole(feedback), all_of(scalars)},
                    {rows_in(message, c.of.parts, c.bytes), c.whole(kept)});
        c.tell(encode);
        RUN(compress, encode);
        message.get(), kept.get();
        check("the message is the host's", bytes_from(message) == want);
        check("what is kept is the host's", same_bits(floats_of(kept), x));
        all.insert(all.end(), message.value.begin(), message.value.end());
    }
    array messages(BYTES, all), y(DTYPE_FP32, elements);
    decode_all(c, y, messages, scalars, RANKS);
    y.get();
    check("the sum is the host's", same_bits(floats_of(y), read(c, bytes_from(messages), RANKS, s.loss_scale)));
}

/* Bytes that nobody has written: decoded as the host does, which says of most that they are no encoding. */
void nonsense(const method_case &c)
{
    step_scalars s = {};
    s.loss_scale = 1;
    array scalars = bytes_of(&s, sizeof s);
    size_t bytes = (size_t)(c.of.parts * c.bytes);
    vector<double> values(bytes);
    for (double &v : values)
        v = check_integer(256);
    array messages(BYTES, values), y(DTYPE_FP32, (size_t)(c.of.rows * c.of.width));
    decode_all(c, y, messages, scalars, 1);
    y.get();
    check("nonsense is what it is to the host", same_bits(floats_of(y), read(c, bytes_from(messages), 1, 1)));
}

/* Of every fill at one density; ordinary ones at others, and in the long shapes. */
void run_method(compress_kind kind, std::initializer_list<double> more)
{
    for (const shape &s : SHAPES) {
        for (double density : more)
            both_ways(case_of(kind, density, s), FILLS[0]);
        method_case c = case_of(kind, 0.05, s);
        for (size_t i = 0; i < sizeof FILLS / sizeof *FILLS; i++)
            if (i < LONG_FILLS || s.rows * s.width < 9000)
                both_ways(c, FILLS[i]);
        nonsense(c);
    }
}

void bf16_messages()
{
    run_method(COMPRESS_BF16, {});
}

void int8_messages()
{
    run_method(COMPRESS_INT8, {});
}

void int4_messages()
{
    run_method(COMPRESS_INT4, {});
}

void topk_messages()
{
    run_method(COMPRESS_TOPK, {1e-6, 1});
}

void dct_messages()
{
    run_method(COMPRESS_DCT, {1e-6, 1});
}
} // namespace

const vector<test_case> compress_cases = {
    {"compress/bf16", bf16_messages}, {"compress/int8", int8_messages}, {"compress/int4", int4_messages},
    {"compress/topk", topk_messages}, {"compress/dct", dct_messages},
};
