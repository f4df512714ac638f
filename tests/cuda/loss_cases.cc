/* Vocabulary-parallel cross-entropy: shards' statistics and the gradient against the whole softmax in float64. */
#include "tests/cuda/check.h"

namespace
{
struct vocabulary {
    int shards;
    int64_t columns, padding; /* of a shard; padding columns at the end of the last shard */
};

struct outcome {
    double loss = 0;
    vector<double> gradient; /* [tokens, shards columns] */
};

outcome softmax(const vector<double> &logits, const vector<double> &targets, int64_t width, int64_t real, double scale)
{
    outcome o;
    o.gradient.resize(logits.size());
    for (size_t t = 0; t < targets.size(); t++) {
        const double *row = &logits[t * (size_t)width];
        double most = -INFINITY, sum = 0;
        for (int64_t c = 0; c < real; c++)
            most = fmax(most, row[c]);
        for (int64_t c = 0; c < real; c++)
            sum += exp(row[c] - most);
        if (targets[t] < 0)
            continue;
        o.loss += most + log(sum) - row[(size_t)targets[t]];
        for (int64_t c = 0; c < real; c++)
            o.gradient[t * (size_t)width + (size_t)c] = (exp(row[c] - most) / sum - (c == (int64_t)targets[t])) * scale;
    }
    return o;
}

vector<double> columns_of(const vector<double> &all, int64_t width, int64_t first, int64_t columns)
{
    vector<double> part;
    for (size_t row = 0; row < all.size() / (size_t)width; row++)
        part.insert(part.end(), all.begin() + (int64_t)row * width + first,
                    all.begin() + (int64_t)row * width + first + columns);
    return part;
}

void note_shard(const array &logits, const array &targets, tensor stats, int64_t tokens, int64_t columns,
                op_vocabulary of)
{
    call c({rows_in(logits, tokens, columns), all_of(targets)}, {stats});
    c.o.at.vocabulary = of;
    RUN(cross_entropy_stats, c);
}

void one(int type, vocabulary v, int64_t tokens)
{
    int64_t width = v.shards * v.columns, real = width - v.padding;
    array whole(type, randoms((size_t)(tokens * width), 8));
    vector<double> wanted;
    for (int64_t t = 0; t < tokens; t++)
        wanted.push_back(t % 5 == 3 ? -1 : t == 0 ? (double)(real - 1) : check_integer((int)real));
    step_scalars s = {};
    s.loss_scale = 1024;
    s.loss_tokens = 77;
    array scalars = bytes_of(&s, sizeof s), targets(INT32, wanted), stats(DTYPE_FP32, (size_t)(v.shards * tokens * 3));
    outcome want = softmax(whole.value, wanted, width, real, 1024.0 / 77.0);
    for (int shard = 0; shard < v.shards; shard++) {
        array logits(type, columns_of(whole.value, width, shard * v.columns, v.columns));
        int64_t count = shard == v.shards - 1 ? v.columns - v.padding : v.columns;
        note_shard(logits, targets, rows_in(stats, tokens, 3, 3, shard * tokens * 3), tokens, v.columns,
                   {shard * v.columns, count});
    }
    for (int shard = 0; shard < v.shards; shard++) {
        array logits(type, columns_of(whole.value, width, shard * v.columns, v.columns)),
            loss(DTYPE_FP32, vector<double>{3});
        int64_t count = shard == v.shards - 1 ? v.columns - v.padding : v.columns;
        auto run = [&](const tensor &gradient, bool accumulate) {
            call c({rows_in(logits, tokens, v.columns), all_of(targets), rows_in(stats, v.shards * tokens, 3),
                    all_of(scalars)},
                   {all_of(loss), gradient});
            c.o.at.vocabulary = {shard * v.columns, count};
            c.o.at.accumulate = accumulate;
            array scratch(BYTES, (size_t)cuda_cross_entropy_scratch(&c.o));
            c.scratch(scratch);
            RUN(cross_entropy, c);
        };
        run(none, false);
        compare("loss", loss, {want.loss}, 2e-6);
        run(rows_in(logits, tokens, v.columns), true);
        compare("loss added", loss, {2 * want.loss}, 2e-6);
        compare("dlogits in place", logits, columns_of(want.gradient, width, shard * v.columns, v.columns), 4e-6);
    }
}

void sharded()
{
    for (int type : check_types) {
        one(type, {1, 1000, 0}, 13);
        one(type, {3, 168, 24}, 7);
        one(type, {2, 77, 5}, 9);
        one(type, {2, 16, 16}, 6); /* a shard of nothing but padding */
        one(type, {1, 8, 3}, 1030);
    }
}

/* The vocabularies of Llama 3 over 8 ranks, and of GPT-2, whole. */
void wide()
{
    one(DTYPE_BF16, {8, 16064, 8 * 16064 - 128256}, 2);
    one(DTYPE_BF16, {1, 50304, 47}, 2);
}

void nothing_counts()
{
    array logits(DTYPE_BF16, randoms(64)), targets(INT32, vector<double>(4, -1)), stats(DTYPE_FP32, 12),
        loss(DTYPE_FP32, 1);
    array scalars(BYTES, vector<double>(sizeof(step_scalars), 0)), scratch(DTYPE_FP32, 4);
    note_shard(logits, targets, rows_in(stats, 4, 3), 4, 16, {0, 16});
    call c({rows_in(logits, 4, 16), all_of(targets), rows_in(stats, 4, 3), all_of(scalars)},
           {all_of(loss), rows_in(logits, 4, 16)});
    c.o.at.vocabulary.ids = 16;
    c.scratch(scratch);
    RUN(cross_entropy, c);
    compare("loss", loss, {0.0}, 0);
    compare("dlogits", logits, vector<double>(64, 0.0), 0);
}
} // namespace

const vector<test_case> loss_cases = {
    {"loss/sharded", sharded}, {"loss/wide", wide}, {"loss/nothing_counts", nothing_counts}};
