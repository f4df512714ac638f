/* Load of experts, and the losses and gradients of their routers, against sums in float64. */
#include "tests/cuda/check.h"

namespace
{
struct sizes {
    int64_t tokens, experts, active;
    int32_t sequence; /* of a group; 0: there is one */
    bool placed;      /* tokens in another order than within the micro-batch */
};

int64_t groups_of(const sizes &s)
{
    return s.sequence ? (s.tokens + s.sequence - 1) / s.sequence : 1;
}

int64_t place_of(const sizes &s, int64_t token)
{
    return s.placed ? (s.tokens + 3 - token) % s.tokens : token;
}

size_t group_of(const sizes &s, int64_t token)
{
    return (size_t)(s.sequence ? place_of(s, token) / s.sequence : 0);
}

array places_of(const sizes &s)
{
    vector<double> token_positions;
    for (int64_t t = 0; t < s.tokens; t++)
        token_positions.push_back((double)place_of(s, t));
    return array(INT32, token_positions);
}

void count(const sizes &s)
{
    vector<double> chosen, want((size_t)(groups_of(s) * s.experts), 0);
    for (int64_t i = 0; i < s.tokens * s.active; i++) {
        int64_t e = i % 3 ? check_integer((int)s.experts) : 0; /* the first is chosen most */
        chosen.push_back((double)e);
        want[group_of(s, i / s.active) * (size_t)s.experts + (size_t)e] += 0.25;
    }
    array ids(INT32, chosen), token_positions = places_of(s), load(DTYPE_FP32, want.size());
    call c({rows_in(ids, s.tokens, s.active), only_if(s.placed, all_of(token_positions))},
           {rows_in(load, groups_of(s), s.experts)});
    c.o.at.balance.sequence = s.sequence;
    c.o.at.balance.scale = 0.25f;
    RUN(expert_load, c);
    compare("load", load, want, 0);
}

void load()
{
    count({1, 1, 1, 0, false});
    count({7, 5, 2, 3, true});
    count({300, 64, 8, 0, false});
    count({1030, 257, 3, 128, true});
    count({40, 16, 2, 20, false});
}

void counted()
{
    for (int64_t experts : {1, 5, 33, 512})
        for (bool add : {false, true}) {
            const int64_t tokens = 300, active = 2;
            vector<double> chosen, want((size_t)experts, add ? 7.0 : 0.0);
            for (int64_t i = 0; i < tokens * active; i++) {
                chosen.push_back((double)(i % 3 ? check_integer((int)experts) : 0));
                want[(size_t)chosen.back()]++;
            }
            array ids(INT32, chosen), counts(INT32, vector<double>((size_t)experts, 7.0));
            call c({rows_in(ids, tokens, active)}, {all_of(counts)});
            c.o.at.accumulate = add;
            RUN(expert_count, c);
            check("counts", counts.get() == want);
        }
}

void share()
{
    for (int experts : {1, 2, 31, 64, 512}) {
        vector<double> counts, want;
        double sum = 0;
        for (int e = 0; e < experts; e++)
            sum += counts.emplace_back((double)(1 + check_integer(5)));
        for (int e = 0; e < experts; e++)
            want.push_back((double)(float)(experts * counts[(size_t)e] / sum));
        array load(DTYPE_FP32, (size_t)experts), of(INT32, counts);
        RUN(expert_share, call({all_of(of)}, {all_of(load)}));
        compare("load", load, want, 0);
    }
}

void bias()
{
    for (int experts : {1, 2, 31, 64, 512})
        for (bool skip : {false, true}) {
            vector<double> counts, want;
            double sum = 0;
            for (int e = 0; e < experts; e++)
                sum += counts.emplace_back((double)check_integer(5));
            for (int e = 0; e < experts; e++) {
                double lacks = sum - experts * counts[(size_t)e];
                want.push_back(1 + (skip || lacks == 0 ? 0 : lacks > 0 ? 0.25 : -0.25));
            }
            array bias(DTYPE_FP32, vector<double>((size_t)experts, 1.0)), of(INT32, counts);
            array control(DTYPE_FP32, vector<double>{1, 1, skip ? 1.0 : 0.0});
            call c({all_of(of), all_of(control)}, {all_of(bias)});
            c.o.at.balance.scale = 0.25f;
            RUN(expert_bias, c);
            check("bias", bias.get() == want);
        }
}

/* ---- losses ------------------------------------------------------------------------------------------------------ */

struct outcome {
    double sums[2] = {0, 0};
    vector<double> gradient;
};

double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

outcome losses_of(const sizes &s, bool sigmoids, const vector<double> &logits, const vector<double> &load,
                  const double coefficient[2])
{
    outcome o;
    for (int64_t t = 0; t < s.tokens; t++) {
        const double *x = &logits[(size_t)(t * s.experts)], *a = &load[group_of(s, t) * (size_t)s.experts];
        double exps = 0, shares = 0, dot = 0;
        for (int64_t e = 0; e < s.experts; e++) {
            double share = sigmoids ? sigmoid(x[e]) : exp(x[e]);
            exps += exp(x[e]);
            shares += share;
            dot += share * a[e];
        }
        double lse = log(exps), mean = dot / shares;
        o.sums[0] += mean;
        o.sums[1] += lse * lse;
        for (int64_t e = 0; e < s.experts; e++) {
            double slope = sigmoids ? sigmoid(x[e]) * sigmoid(-x[e]) : exp(x[e]);
            o.gradient.push_back(coefficient[0] * slope / shares * (a[e] - mean) +
                                 coefficient[1] * 2 * lse * exp(x[e]) / exps);
        }
    }
    return o;
}

void one(int type, const sizes &s, bool sigmoids)
{
    step_scalars scalars = {};
    scalars.loss_scale = 512;
    scalars.loss_tokens = 3;
    scalars.batch_tokens = 64;
    const double coefficient[] = {8 * 0.5, 8 * 0.125};
    size_t elements = (size_t)(s.tokens * s.experts);
    array logits(type, randoms(elements, 6)), load(DTYPE_FP32, randoms((size_t)(groups_of(s) * s.experts), 3)),
        token_positions = places_of(s), more = bytes_of(&scalars, sizeof scalars), sums(DTYPE_FP32, 2), dlogits(type, elements),
        addend(type, randoms(elements, 1));
    const tensor rows = rows_in(logits, s.tokens, s.experts), of_load = rows_in(load, groups_of(s), s.experts),
                 placed = only_if(s.placed, all_of(token_positions));
    call sum({rows, of_load, placed}, {all_of(sums)}), back({rows, of_load, all_of(more), placed}, {rows});
    sum.o.at.balance.sequence = s.sequence;
    sum.o.at.balance.sigmoid = sigmoids;
    sum.o.at.balance.load = 0.5f;
    sum.o.at.balance.z = 0.125f;
    back.o.at = sum.o.at;
    array scratch(FP64, (size_t)cuda_balance_scratch(&sum.o) / 8);
    sum.scratch(scratch);
    outcome want = losses_of(s, sigmoids, logits.value, load.value, coefficient);
    for (int more_times = 1; more_times <= 2; more_times++) {
        sum.o.at.accumulate = more_times > 1;
        RUN(balance, sum);
        compare("imbalance", sums, {more_times * want.sums[0], more_times * want.sums[1]}, 2e-6);
    }
    back.out(0, rows_in(dlogits, s.tokens, s.experts));
    RUN(balance_grad, back);
    compare("dlogits", dlogits, want.gradient, 4e-6);
    for (size_t i = 0; i < elements; i++)
        want.gradient[i] += addend.value[i];
    back.in(4, rows_in(addend, s.tokens, s.experts));
    back.out(0, rows_in(addend, s.tokens, s.experts));
    RUN(balance_grad, back);
    compare("dlogits where the addend was", addend, want.gradient, 4e-6);
}

void losses()
{
    for (int type : check_types)
        for (bool sigmoids : {false, true}) {
            one(type, {3, 8, 1, 0, false}, sigmoids);
            one(type, {7, 17, 1, 3, true}, sigmoids);
            one(type, {41, 128, 1, 16, false}, sigmoids);
            one(type, {1030, 33, 1, 128, true}, sigmoids);
        }
}

/* Ranks without a token in a micro-batch have sums of nothing. */
void nothing()
{
    array sums(DTYPE_FP32, 2), load(DTYPE_FP32, vector<double>{1, 2}), counts(DTYPE_FP32, 2);
    array no_logits(DTYPE_BF16, (size_t)0), no_choices(INT32, (size_t)0), no_losses(FP64, (size_t)0);
    call sum({rows_in(no_logits, 0, 2), all_of(load)}, {all_of(sums)});
    sum.scratch(no_losses);
    RUN(balance, sum);
    compare("sums", sums, {0, 0}, 0);
    call none_chosen({rows_in(no_choices, 0, 2)}, {rows_in(counts, 1, 2)});
    none_chosen.o.at.balance.scale = 1;
    RUN(expert_load, none_chosen);
    compare("load", counts, {0, 0}, 0);
}
} // namespace

const vector<test_case> balance_cases = {{"balance/load", load},     {"balance/count", counted},
                                         {"balance/share", share},   {"balance/bias", bias},
                                         {"balance/losses", losses}, {"balance/nothing", nothing}};
