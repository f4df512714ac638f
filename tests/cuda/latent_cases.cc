/* Latent attention against float64: the rotation of a shared key, keys joined and split, decoding over latents. */
#include "tests/cuda/check.h"

namespace
{
struct latent_shape {
    int32_t heads, nope, rope, v_size, rank;
    int32_t size() const
    {
        return nope + rope;
    }
    int32_t width() const
    {
        return rank + rope;
    }
};

/* The heads of q end with elements that rotate as the one head of k; `d` of them do. */
void rope_case(int type, latent_shape s, int32_t d, bool interleaved)
{
    const int64_t tokens = 7, positions = 20, gap = s.nope % 8 ? 3 : 8;
    int64_t columns = s.heads * s.size(), pitch = columns + s.rope + gap;
    vector<double> where, table;
    for (int64_t t = 0; t < tokens; t++)
        where.push_back(check_integer((int)positions));
    for (int64_t p = 0; p < positions; p++)
        for (int64_t i = 0; i < d; i++) {
            double angle = (double)p * pow(10000, -2.0 * (double)(i % (d / 2)) / (double)d);
            table.push_back(i < d / 2 ? cos(angle) : sin(angle));
        }
    array x(type, randoms((size_t)(tokens * pitch))), at(INT32, where), cosine_sine(DTYPE_FP32, table);
    for (bool inverse : {false, true}) {
        array y(type, x.value);
        array apart(type, randoms((size_t)(tokens * pitch)));
        vector<double> want = x.value, want_apart = apart.value;
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t head = 0; head <= s.heads; head++) {
                int64_t begin = t * pitch + head * s.size() + (head < s.heads ? s.nope : 0);
                for (int64_t i = 0; i < d; i++) {
                    int64_t pair = interleaved ? i / 2 : i % (d / 2), step = interleaved ? 1 : d / 2;
                    bool second = interleaved ? i % 2 : i >= d / 2;
                    const double *cs = &cosine_sine.value[(size_t)(where[(size_t)t] * (double)d)];
                    double sine = inverse ? -cs[d / 2 + pair] : cs[d / 2 + pair], own = x.value[(size_t)(begin + i)];
                    double other = x.value[(size_t)(second ? begin + i - step : begin + i + step)];
                    want[(size_t)(begin + i)] = own * cs[pair] + (second ? other : -other) * sine;
                }
            }
        for (int64_t i = 0; i < tokens * pitch; i++)
            if (i % pitch < columns + s.rope)
                want_apart[(size_t)i] = want[(size_t)i];
        call c({rows_in(x, tokens, columns, pitch), rows_in(x, tokens, s.rope, pitch, columns), all_of(at),
                rows_in(cosine_sine, positions, d)},
               {rows_in(apart, tokens, columns, pitch), rows_in(apart, tokens, s.rope, pitch, columns)});
        c.o.at.heads.q = s.heads;
        c.o.at.heads.size = s.size();
        c.o.at.rotation.inverse = inverse;
        c.o.at.rotation.interleaved = interleaved;
        RUN(rope, c);
        compare("y", apart, want_apart, 2e-7);
        for (int i = 0; i < 2; i++) {
            const tensor t = rows_in(y, tokens, i ? s.rope : columns, pitch, i ? columns : 0);
            c.in(i, t);
            c.out(i, t);
        }
        RUN(rope, c);
        compare("in place", y, want, 2e-7);
    }
}

const latent_shape shapes[] = {{1, 1, 2, 1, 1}, {3, 24, 16, 8, 40}, {2, 5, 6, 3, 33}, {4, 16, 8, 24, 130}};

void rope()
{
    for (int type : check_types)
        for (latent_shape s : shapes)
            for (bool interleaved : {false, true})
                for (int32_t d : {s.rope, s.rope > 4 ? s.rope - 2 : s.rope})
                    rope_case(type, s, d, interleaved);
}

void keys_case(int type, latent_shape s, int64_t tokens)
{
    int64_t own = s.heads * s.nope, all = s.heads * s.size(), pitch = own + 8;
    array kn(type, randoms((size_t)(tokens * pitch))), kr(type, randoms((size_t)(tokens * s.rope)));
    array k(type, (size_t)(tokens * all)), dkr(type, (size_t)(tokens * s.rope));
    array dkn(type, randoms((size_t)(tokens * pitch)));
    vector<double> want((size_t)(tokens * all)), want_kn = dkn.value, want_kr((size_t)(tokens * s.rope));
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t c = 0; c < all; c++) {
            int64_t head = c / s.size(), i = c % s.size();
            want[(size_t)(t * all + c)] = i < s.nope ? kn.value[(size_t)(t * pitch + head * s.nope + i)]
                                                     : kr.value[(size_t)(t * s.rope + i - s.nope)];
        }
    call join({rows_in(kn, tokens, own, pitch), rows_in(kr, tokens, s.rope)}, {rows_in(k, tokens, all)});
    join.o.at.heads.q = s.heads;
    join.o.at.heads.size = s.nope;
    RUN(join_keys, join);
    compare("k", k, want, 0);
    array dk(type, randoms((size_t)(tokens * all)));
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t c = 0; c < all; c++) {
            int64_t head = c / s.size(), i = c % s.size();
            double d = dk.value[(size_t)(t * all + c)];
            if (i < s.nope)
                want_kn[(size_t)(t * pitch + head * s.nope + i)] = d;
            else
                want_kr[(size_t)(t * s.rope + i - s.nope)] += d;
        }
    call split({rows_in(dk, tokens, all)}, {rows_in(dkn, tokens, own, pitch), rows_in(dkr, tokens, s.rope)});
    split.o.at = join.o.at;
    RUN(split_keys, split);
    compare("dkn", dkn, want_kn, 0);
    compare("dkr", dkr, want_kr, 5e-7);
}

void keys()
{
    for (int type : check_types) {
        for (latent_shape s : shapes)
            keys_case(type, s, 11);
        keys_case(type, {16, 128, 64, 128, 512}, 3);
    }
}

/* y of one head of one sample over rows 0..last of its cache. */
vector<double> attended(latent_shape s, const double *q, const double *rows, const double *wk, const double *wv,
                        int32_t last, double scale)
{
    vector<double> query((size_t)s.width()), score, mean((size_t)s.rank), y((size_t)s.v_size);
    double most = -INFINITY, total = 0;
    for (int64_t c = 0; c < s.width(); c++)
        for (int64_t i = 0; i < (c < s.rank ? s.nope : 1); i++)
            query[(size_t)c] += c < s.rank ? q[i] * wk[i * s.rank + c] : q[s.nope + c - s.rank];
    for (int64_t p = 0; p <= last; p++) {
        double sum = 0;
        for (int64_t c = 0; c < s.width(); c++)
            sum += query[(size_t)c] * rows[p * s.width() + c];
        score.push_back(sum * scale);
        most = fmax(most, sum * scale);
    }
    for (double one : score)
        total += exp(one - most);
    for (int64_t p = 0; p <= last; p++)
        for (int64_t c = 0; c < s.rank; c++)
            mean[(size_t)c] += exp(score[(size_t)p] - most) / total * rows[p * s.width() + c];
    for (int64_t j = 0; j < s.v_size; j++)
        for (int64_t c = 0; c < s.rank; c++)
            y[(size_t)j] += wv[j * s.rank + c] * mean[(size_t)c];
    return y;
}

/* Two samples, of which the second is three rows behind. */
void decode_case(int type, latent_shape s, int32_t capacity, int32_t last)
{
    const int64_t samples = 2, columns = s.heads * s.size(), values = s.heads * s.v_size, pitch = s.width() + 5;
    const int32_t at[] = {last, last > 3 ? last - 3 : 0};
    const double scale = 0.5 / sqrt((double)s.size());
    array q(type, randoms((size_t)(samples * columns))), now(type, randoms((size_t)(samples * pitch)));
    array w(type, randoms((size_t)((columns - s.heads * s.rope + values) * s.rank), 0.3));
    array cache(type, randoms((size_t)(samples * capacity * s.width()))), y(type, (size_t)(samples * values));
    array positions(INT32, vector<double>(at, at + 2));
    vector<double> rows = cache.value, want;
    for (int64_t b = 0; b < samples; b++) {
        double *of = &rows[(size_t)(b * capacity * s.width())];
        for (int64_t c = 0; c < s.width(); c++)
            of[at[b] * s.width() + c] = now.value[(size_t)(b * pitch + c)];
        for (int64_t head = 0; head < s.heads; head++) {
            const double *wk = &w.value[(size_t)(head * s.nope * s.rank)];
            const double *wv = &w.value[(size_t)((s.heads * s.nope + head * s.v_size) * s.rank)];
            for (double one : attended(s, &q.value[(size_t)(b * columns + head * s.size())], of, wk, wv, at[b], scale))
                want.push_back(one);
        }
    }
    call c({rows_in(q, samples, columns), rows_in(now, samples, s.rank, pitch),
            rows_in(now, samples, s.rope, pitch, s.rank), rows_in(w, s.heads * (s.nope + s.v_size), s.rank),
            all_of(positions), rows_in(cache, samples, capacity)},
           {rows_in(y, samples, values)});
    c.operands[5].pitch = capacity * s.width();
    c.operands[5].shape[2] = s.width();
    c.operands[5].dims = 3;
    c.o.at.heads.q = s.heads;
    c.o.at.attention.scale = (float)scale;
    RUN(latent_decode, c);
    compare("y", y, want, 3e-6);
    compare("cache", cache, rows, 0);
}

void decode()
{
    for (int type : check_types) {
        for (latent_shape s : shapes)
            for (int32_t last : {0, 4, 33})
                decode_case(type, s, 40, last);
        for (int32_t last : {255, 256, 530}) /* one chunk of the cache, and more */
            decode_case(type, {2, 8, 4, 5, 24}, 540, last);
    }
    decode_case(DTYPE_BF16, {3, 128, 64, 128, 512}, 20, 18);
}

/* One head, no samples. */
bool takes_rank(int64_t rank)
{
    array empty(DTYPE_BF16, (size_t)0);
    call c({rows_in(empty, 0, 2), rows_in(empty, 0, rank), rows_in(empty, 0, 1), rows_in(empty, 2, rank), all_of(empty),
            rows_in(empty, 0, 1)},
           {rows_in(empty, 0, 1)});
    c.o.at.heads.q = 1;
    return c.error_of(cuda_latent_decode) == 0;
}

/* Sums of a head that take more shared memory than a block has unasked, and more than there is. */
void large()
{
    decode_case(DTYPE_BF16, {1, 2, 8, 3, 6100}, 3, 2);
    check("a rank that does not fit is refused", !takes_rank(40000));
}

/* The same where a block has less shared memory than on an H100: a rank that fits on one GPU is refused on another. */
void narrow()
{
    for (const char *kib : {"99", "163"}) {
        shared_limit limit(kib);
        for (int type : check_types)
            decode_case(type, {2, 8, 4, 5, 24}, 6, 4);
    }
    shared_limit limit("99");
    check("a rank that does not fit there is refused", !takes_rank(15000));
}
} // namespace

const vector<test_case> latent_cases = {{"latent/rope", rope},
                                        {"latent/keys", keys},
                                        {"latent/decode", decode},
                                        {"latent/large", large},
                                        {"latent/narrow", narrow}};
