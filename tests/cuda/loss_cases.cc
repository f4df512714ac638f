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

void one(int type, vocabulary v, int64_t tokens)
{
    int64_t width = v.shards * v.columns, real = width - v.padding;
    array whole(type, randoms((size_t)(tokens * width), 8));
    vector<double> wanted;
    for (int64_t t = 0; t < tokens; t++)
        wanted.push_back(t % 5 == 3 ? -1 : t == 0 ? (double)(real - 1) : check_integer((int)real));
    scalars_device s = {};
    s.loss_scale = 1024;
    s.loss_tokens = 77;
    vector<double> bytes(sizeof s);
    for (size_t i = 0; i < sizeof s; i++)
        bytes[i] = reinterpret_cast<unsigned char *>(&s)[i];
    array scalars(BYTES, bytes), targets(INT32, wanted), stats(LAUNCH_FP32, (size_t)(v.shards * tokens * 3));
    array scratch(LAUNCH_FP32, (size_t)launch_cross_entropy_scratch(tokens) / 4);
    outcome want = softmax(whole.value, wanted, width, real, 1024.0 / 77.0);
    for (int shard = 0; shard < v.shards; shard++) {
        array logits(type, columns_of(whole.value, width, shard * v.columns, v.columns));
        int64_t count = shard == v.shards - 1 ? v.columns - v.padding : v.columns;
        run_ok("launch_cross_entropy_stats",
               launch_cross_entropy_stats(
                   nullptr, type, stats.to<float>() + (int64_t)shard * tokens * 3,
                   {logits.to(), targets.to<int32_t>(), tokens, v.columns, count, shard * v.columns}));
    }
    for (int shard = 0; shard < v.shards; shard++) {
        array logits(type, columns_of(whole.value, width, shard * v.columns, v.columns)),
            loss(LAUNCH_FP32, vector<double>{3});
        int64_t count = shard == v.shards - 1 ? v.columns - v.padding : v.columns;
        auto run = [&](void *gradient, bool accumulate) {
            run_ok("launch_cross_entropy", launch_cross_entropy(nullptr, type, loss.to<float>(), gradient,
                                                                {{logits.to(), targets.to<int32_t>(), tokens, v.columns,
                                                                  count, shard * v.columns},
                                                                 stats.to<float>(),
                                                                 scalars.to(),
                                                                 v.shards,
                                                                 accumulate,
                                                                 scratch.to<float>()}));
        };
        run(nullptr, false);
        compare("loss", loss, {want.loss}, 2e-6);
        run(logits.to(), true);
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
    one(LAUNCH_BF16, {8, 16064, 8 * 16064 - 128256}, 2);
    one(LAUNCH_BF16, {1, 50304, 47}, 2);
}

void nothing_counts()
{
    array logits(LAUNCH_BF16, randoms(64)), targets(INT32, vector<double>(4, -1)), stats(LAUNCH_FP32, 12),
        loss(LAUNCH_FP32, 1);
    array scalars(BYTES, vector<double>(sizeof(scalars_device), 0)), scratch(LAUNCH_FP32, 4);
    run_ok("launch_cross_entropy_stats",
           launch_cross_entropy_stats(nullptr, LAUNCH_BF16, stats.to<float>(),
                                      {logits.to(), targets.to<int32_t>(), 4, 16, 16, 0}));
    run_ok("launch_cross_entropy", launch_cross_entropy(nullptr, LAUNCH_BF16, loss.to<float>(), logits.to(),
                                                        {{logits.to(), targets.to<int32_t>(), 4, 16, 16, 0},
                                                         stats.to<float>(),
                                                         scalars.to(),
                                                         1,
                                                         false,
                                                         scratch.to<float>()}));
    compare("loss", loss, {0.0}, 0);
    compare("dlogits", logits, vector<double>(64, 0.0), 0);
}
} // namespace

const vector<test_case> loss_cases = {
    {"loss/sharded", sharded}, {"loss/wide", wide}, {"loss/nothing_counts", nothing_counts}};
