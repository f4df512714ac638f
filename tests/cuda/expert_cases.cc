/* Routing against float64, and its order to the last place. */
#include "tests/cuda/check.h"

#include <algorithm>

namespace
{
struct routing {
    int32_t experts, active, groups, groups_kept, group_best;
    float scale;
    bool sigmoid, renormalise;

    void tell(call &c) const
    {
        op_routing &to = c.o.at.routing;
        to.experts = experts;
        to.active = active;
        to.groups = groups;
        to.groups_kept = groups_kept;
        to.group_best = group_best;
        to.scale = scale;
        to.sigmoid = sigmoid;
        to.renormalise = renormalise;
    }
};

struct choice {
    int64_t tokens;
    routing as;
};

const choice choices[] = {{1, {1, 1, 0, 0, 0, 1, false, false}},        {5, {8, 8, 0, 0, 0, 1, false, true}},
                          {9, {64, 6, 8, 4, 2, 2.5f, true, true}},      {3, {512, 32, 0, 0, 0, 1, false, false}},
                          {6, {256, 8, 8, 4, 2, 2.5f, true, true}},     {7, {160, 6, 8, 3, 1, 16, false, false}},
                          {10, {128, 8, 0, 0, 0, 1, false, true}},      {4, {96, 12, 3, 2, 32, 1, true, false}},
                          {13, {130, 5, 26, 13, 3, 1.5f, false, true}}, {2, {512, 4, 512, 100, 1, 1, true, false}}};

/* The first `count` of n candidates, better ones first and of equal ones the lower. */
vector<int> best_of(const vector<double> &value, int count)
{
    vector<int> order(value.size());
    for (size_t i = 0; i < order.size(); i++)
        order[i] = (int)i;
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return value[(size_t)a] > value[(size_t)b]; });
    order.resize((size_t)count);
    return order;
}

vector<double> scores(const double *logits, const routing &as)
{
    vector<double> score((size_t)as.experts);
    double sum = 0;
    for (size_t e = 0; e < score.size(); e++)
        sum += score[e] = as.sigmoid ? 1 / (1 + exp(-logits[e])) : exp(logits[e]);
    for (double &s : score)
        s /= as.sigmoid ? 1 : sum;
    return score;
}

vector<int> chosen(vector<double> value, const routing &as)
{
    size_t size = as.groups ? (size_t)(as.experts / as.groups) : 0;
    vector<double> group((size_t)as.groups);
    for (size_t g = 0; g < group.size(); g++) {
        vector<double> of(value.begin() + (long)(g * size), value.begin() + (long)((g + 1) * size));
        for (int e : best_of(of, as.group_best))
            group[g] += of[(size_t)e];
    }
    if (as.groups) {
        vector<int> kept = best_of(group, as.groups_kept);
        for (size_t e = 0; e < value.size(); e++)
            if (std::find(kept.begin(), kept.end(), (int)(e / size)) == kept.end())
                value[e] = -INFINITY;
    }
    return best_of(value, as.active);
}

double sum_of(const vector<double> &score, const vector<int> &of, const routing &as)
{
    double sum = as.renormalise ? 0 : 1;
    for (int e : of)
        sum += as.renormalise ? score[(size_t)e] : 0;
    return sum;
}

/* dlogits of one token, weight by weight */
void slopes(double *dlogits, const double *dweights, const vector<double> &score, const vector<int> &of,
            const routing &as)
{
    double sum = sum_of(score, of, as);
    for (size_t e = 0; e < score.size(); e++) {
        vector<double> slope;
        double all = 0;
        for (int c : of) {
            double s = score[(size_t)c], same = (size_t)c == e;
            slope.push_back(as.sigmoid ? same * s * (1 - s) : s * (same - score[e]));
            all += slope.back();
        }
        for (size_t j = 0; j < of.size(); j++)
            dlogits[e] += dweights[j] * as.scale *
                          (slope[j] / sum - (as.renormalise ? score[(size_t)of[j]] * all / (sum * sum) : 0));
    }
}

void choice_case(int type, const choice &c, bool with_bias, int64_t gap)
{
    const routing &as = c.as;
    int64_t pitch = as.experts + gap;
    size_t cells = (size_t)(c.tokens * pitch), some = (size_t)(c.tokens * as.active);
    array logits(type, randoms(cells, 4)), bias(DTYPE_FP32, randoms((size_t)as.experts, 0.2));
    array weights(DTYPE_FP32, some), experts(INT32, some);
    const tensor rows = rows_in(logits, c.tokens, as.experts, pitch);
    const tensor chosen_weights = rows_in(weights, c.tokens, as.active), ids = rows_in(experts, c.tokens, as.active);
    call choose({rows, only_if(with_bias, all_of(bias))}, {chosen_weights, ids});
    as.tell(choose);
    RUN(route, choose);
    array dweights(DTYPE_FP32, randoms(some)), addend(type, randoms(cells));
    vector<double> want_weights, want_experts, want_slopes = addend.value;
    for (int64_t t = 0; t < c.tokens; t++) {
        vector<double> score = scores(&logits.value[(size_t)(t * pitch)], as), value = score;
        for (size_t e = 0; e < value.size() && with_bias; e++)
            value[e] += bias.value[e];
        vector<int> of = chosen(value, as);
        for (int e : of) {
            want_experts.push_back(e);
            want_weights.push_back(score[(size_t)e] / sum_of(score, of, as) * as.scale);
        }
        slopes(&want_slopes[(size_t)(t * pitch)], &dweights.value[(size_t)(t * as.active)], score, of, as);
    }
    experts.get();
    check("experts", experts.value == want_experts);
    compare("weights", weights, want_weights, 2e-6);
    const tensor sum = rows_in(addend, c.tokens, as.experts, pitch);
    call back({rows_in(dweights, c.tokens, as.active), rows, ids, chosen_weights, sum}, {sum});
    as.tell(back);
    RUN(route_grad, back);
    compare("dlogits", addend, want_slopes, 4e-6);
    if (gap)
        return;
    array alone(type, cells);
    back.out(0, rows_in(alone, c.tokens, as.experts));
    back.in(4, none);
    vector<double> want(cells);
    for (int64_t t = 0; t < c.tokens; t++) {
        const vector<double> score = scores(&logits.value[(size_t)(t * pitch)], as);
        vector<int> of(want_experts.begin() + t * as.active, want_experts.begin() + (t + 1) * as.active);
        slopes(&want[(size_t)(t * pitch)], &dweights.value[(size_t)(t * as.active)], score, of, as);
    }
    RUN(route_grad, back);
    /* the weight of one expert of one does not move: what is left is rounding */
    if (as.experts > as.active)
        compare("dlogits alone", alone, want, 1e-5);
}

void route()
{
    for (int type : check_types)
        for (const choice &c : choices)
            for (bool bias : {false, true})
                choice_case(type, c, bias, bias ? 3 : 0);
}

/* Equal scores: the lower id; NaN: first, and in the weights, with ids that are experts. */
void odd_choices()
{
    const int64_t tokens = 3, experts = 40, active = 4;
    vector<double> values((size_t)(tokens * experts), 0.5);
    for (size_t e = 0; e < 2; e++)
        values[37 - e] = 2;                                            /* of the first token */
    values[(size_t)experts + 39] = values[(size_t)experts + 20] = NAN; /* of the second */
    for (int64_t e = 0; e < experts; e++)
        values[(size_t)(2 * experts + e)] = NAN;
    for (bool sigmoid : {false, true}) {
        array logits(DTYPE_BF16, values), weights(DTYPE_FP32, (size_t)(tokens * active)),
            ids(INT32, (size_t)(tokens * active));
        routing as = {(int32_t)experts, (int32_t)active, 0, 0, 0, 1, sigmoid, true};
        call c({rows_in(logits, tokens, experts)}, {rows_in(weights, tokens, active), rows_in(ids, tokens, active)});
        as.tell(c);
        RUN(route, c);
        const vector<double> &got = ids.get(), &weight = weights.get();
        check("equal scores", vector<double>(got.begin(), got.begin() + 4) == vector<double>({36, 37, 0, 1}));
        check("two NaN",
              !sigmoid || vector<double>(got.begin() + 4, got.begin() + 8) == vector<double>({20, 39, 0, 1}));
        check("all NaN", vector<double>(got.begin() + 8, got.end()) == vector<double>({0, 1, 2, 3}));
        for (size_t i = 0; i < weight.size(); i++)
            check("weights of NaN", std::isnan(weight[i]) == (i >= 4));
    }
}

/* ---- places ---------------------------------------------------------------------------------------------------- */

struct pass {
    int64_t tokens, active;
    int32_t experts, first, local;
    int64_t skip, rows;
};

const pass passes[] = {{1, 1, 1, 0, 1, 0, 1},       {7, 2, 5, 0, 5, 0, 20},       {100, 4, 16, 4, 8, 0, 150},
                       {100, 4, 16, 4, 8, 60, 60},  {33, 8, 512, 0, 512, 0, 100}, {700, 3, 40, 7, 33, 1000, 1000},
                       {3000, 1, 3, 1, 1, 0, 2500}, {515, 2, 130, 0, 130, 0, 9},  {4500, 2, 6, 0, 6, 0, 9000}};

/* Some experts have no token, and the third has most. */
vector<double> experts_of(const pass &p)
{
    vector<double> ids;
    for (int64_t t = 0; t < p.tokens; t++) {
        int first = check_integer(3) ? 1 : check_integer(p.experts);
        for (int64_t j = 0; j < p.active; j++)
            ids.push_back((double)((first + j) % p.experts));
    }
    return ids;
}

struct sorted {
    vector<double> row_ids, offsets;
};

sorted sorted_by_expert(const vector<double> &experts, const pass &p)
{
    sorted s = {vector<double>(experts.size(), -1), {}};
    int64_t row = -p.skip;
    auto within = [&](int64_t at) { return (double)std::min(std::max(at, (int64_t)0), p.rows); };
    for (int32_t e = p.first; e < p.first + p.local; e++) {
        s.offsets.push_back(within(row));
        for (size_t i = 0; i < experts.size(); i++)
            if (experts[i] == e) {
                s.row_ids[i] = row >= 0 && row < p.rows ? (double)row : -1;
                row++;
            }
    }
    s.offsets.push_back(within(row));
    return s;
}

void assign()
{
    for (const pass &p : passes) {
        array experts(INT32, experts_of(p)), row_ids(INT32, experts.value.size()), offsets(INT32, (size_t)p.local + 1);
        call c({rows_in(experts, p.tokens, p.active)}, {rows_in(row_ids, p.tokens, p.active), all_of(offsets)});
        c.o.at.routing.first = p.first;
        c.o.at.routing.rows = p.rows;
        c.o.at.routing.skip = p.skip;
        c.o.at.routing.local = p.local;
        array scratch(BYTES, (size_t)cuda_assign_scratch(&c.o));
        c.scratch(scratch);
        RUN(assign, c);
        sorted want = sorted_by_expert(experts.value, p);
        check("places", row_ids.get() == want.row_ids);
        check("offsets", offsets.get() == want.offsets);
    }
}

/* The rank that has an expert, and what it is there, of `ranks` that divide `experts`. */
void owner_of(int &rank, int &id, int expert, int experts, int ranks)
{
    for (rank = 0, id = expert;; rank++) {
        int size = experts / ranks + (rank < experts % ranks);
        if (id < size)
            return;
        id -= size;
    }
}

struct slot_rows {
    vector<double> row_ids, ids, offsets;
};

/* Slots of `each` rows, from row `skip` of each rank's on. */
slot_rows sorted_into_slots(const vector<double> &experts, int of, int ranks, int64_t each, int64_t skip)
{
    slot_rows s = {vector<double>(experts.size(), -1), vector<double>((size_t)(ranks * each), -1), {0}};
    vector<int64_t> next((size_t)ranks, -skip);
    for (size_t i = 0; i < experts.size(); i++) {
        int rank, id;
        owner_of(rank, id, (int)experts[i], of, ranks);
        int64_t row = next[(size_t)rank]++;
        if (row < 0 || row >= each)
            continue;
        s.row_ids[i] = (double)(rank * each + row);
        s.ids[(size_t)s.row_ids[i]] = id;
    }
    for (int r = 0; r < ranks; r++)
        s.offsets.push_back((double)(r * each + std::min(std::max(next[(size_t)r], (int64_t)0), each)));
    return s;
}

struct slot_case {
    pass of;
    int32_t ranks;
    int64_t each, skip;
};

const slot_case slot_cases[] = {{{1, 1, 1, 0, 1, 0, 1}, 1, 1, 0},        {{7, 2, 5, 0, 5, 0, 20}, 3, 4, 0},
                                {{100, 4, 16, 0, 16, 0, 0}, 4, 150, 0},  {{100, 4, 16, 0, 16, 0, 0}, 4, 30, 60},
                                {{33, 8, 512, 0, 512, 0, 0}, 50, 9, 3},  {{700, 3, 40, 0, 40, 0, 0}, 16, 200, 100},
                                {{4500, 2, 6, 0, 6, 0, 0}, 2, 2600, 0},  {{515, 2, 512, 0, 512, 0, 0}, 512, 4, 0},
                                {{4500, 2, 130, 0, 130, 0, 0}, 64, 9, 0}};

void slots()
{
    for (const slot_case &c : slot_cases) {
        int64_t n = c.of.tokens * c.of.active, rows = c.ranks * c.each;
        array experts(INT32, experts_of(c.of)), row_ids(INT32, (size_t)n);
        array ids(INT32, vector<double>((size_t)rows, 7)); /* a row that is left alone has an expert */
        array offsets(INT32, (size_t)c.ranks + 1);
        call k({rows_in(experts, c.of.tokens, c.of.active)},
               {rows_in(row_ids, c.of.tokens, c.of.active), all_of(ids), all_of(offsets)});
        k.o.at.routing.rows = rows;
        k.o.at.routing.skip = c.skip;
        k.o.at.routing.experts = c.of.experts;
        k.o.at.routing.slots = c.ranks;
        array scratch(BYTES, (size_t)cuda_slots_scratch(&k.o));
        k.scratch(scratch);
        RUN(slots, k);
        slot_rows want = sorted_into_slots(experts.value, c.of.experts, c.ranks, c.each, c.skip);
        check("places", row_ids.get() == want.row_ids);
        check("ids", ids.get() == want.ids);
        check("offsets", offsets.get() == want.offsets);
    }
}

/* Each slot's rows count by themselves. */
void overflow_of_slots()
{
    for (const slot_case &c : slot_cases)
        for (int bucket = 0; bucket < 3; bucket++)
            for (bool add : {false, true}) {
                vector<double> chosen = experts_of(c.of), want = {add ? 2.0 : 0.0, add ? 3.0 : 0.0, 0};
                array experts(INT32, chosen), over(DTYPE_FP32, vector<double>{2, 3, 0});
                call k({all_of(experts)}, {all_of(over)});
                k.o.at.capacity = {{c.each / 3, c.each}, bucket, 0, 0, c.ranks, c.of.experts};
                k.o.at.accumulate = add;
                const int64_t *room = k.o.at.capacity.room;
                vector<int64_t> rows((size_t)c.ranks);
                for (double e : chosen) {
                    int rank, id;
                    owner_of(rank, id, (int)e, c.of.experts, c.ranks);
                    rows[(size_t)rank]++;
                }
                for (int64_t of : rows)
                    for (int i = 0; i < 2; i++) {
                        want[(size_t)i] += (double)std::max((int64_t)0, of - room[i]);
                        want[2] = i == bucket && of > room[i] ? INFINITY : want[2];
                    }
                RUN(overflow, k);
                check("over", over.get() == want);
            }
}

void overflow()
{
    for (const pass &p : passes)
        for (int bucket = 0; bucket < 3; bucket++)
            for (bool add : {false, true}) {
                vector<double> chosen = experts_of(p), want = {add ? 2.0 : 0.0, add ? 3.0 : 0.0, 0};
                array experts(INT32, chosen), over(DTYPE_FP32, vector<double>{2, 3, 0});
                call k({all_of(experts)}, {all_of(over)});
                k.o.at.capacity = {{p.rows / 3, p.rows}, bucket, p.first, p.local, 0, 0};
                k.o.at.accumulate = add;
                const int64_t *room = k.o.at.capacity.room;
                auto rows = std::count_if(chosen.begin(), chosen.end(),
                                          [&](double e) { return e >= p.first && e < p.first + p.local; });
                for (int i = 0; i < 2; i++) {
                    want[(size_t)i] += (double)std::max((int64_t)0, (int64_t)rows - room[i]);
                    if (i == bucket && rows > room[i])
                        want[2] = INFINITY;
                }
                RUN(overflow, k);
                check("over", over.get() == want);
            }
}

/* ---- there and back -------------------------------------------------------------------------------------------- */

void exchange_case(int type, const pass &p, int64_t columns, int64_t gap, bool weighted)
{
    sorted s = sorted_by_expert(experts_of(p), p);
    int64_t pitch = columns + gap;
    array row_ids(INT32, s.row_ids), offsets(INT32, s.offsets), weights(DTYPE_FP32, randoms(s.row_ids.size()));
    array x(type, randoms((size_t)(p.tokens * pitch))), rows(type, randoms((size_t)(p.rows * pitch)));
    const tensor at = rows_in(row_ids, p.tokens, p.active), by = only_if(weighted, rows_in(weights, p.tokens, p.active)),
                 tokens = rows_in(x, p.tokens, columns, pitch), of_rows = rows_in(rows, p.rows, columns, pitch);
    array sent(type, (size_t)(p.rows * columns)), dots(DTYPE_FP32, s.row_ids.size()), addend(type, x.value);
    vector<double> want_sent((size_t)(p.rows * columns)), want_dots(s.row_ids.size()), want_sum = x.value;
    vector<double> bare((size_t)(p.tokens * columns));
    for (size_t i = 0; i < s.row_ids.size(); i++)
        for (int64_t c = 0; c < columns && s.row_ids[i] >= 0; c++) {
            size_t token = i / (size_t)p.active, place = (size_t)s.row_ids[i];
            size_t at = token * (size_t)pitch + (size_t)c, row = place * (size_t)pitch + (size_t)c;
            double w = weighted ? weights.value[i] : 1;
            want_sent[place * (size_t)columns + (size_t)c] = w * x.value[at];
            want_dots[i] += x.value[at] * rows.value[row];
            want_sum[at] += w * rows.value[row];
            bare[token * (size_t)columns + (size_t)c] += w * rows.value[row];
        }
    RUN(dispatch, call({tokens, at, all_of(offsets), by}, {rows_in(sent, p.rows, columns)}));
    compare("rows", sent, want_sent, 0);
    RUN(combine_dots, call({tokens, of_rows, at}, {rows_in(dots, p.tokens, p.active)}));
    compare("dweights", dots, want_dots, 2e-6);
    const tensor sum = rows_in(addend, p.tokens, columns, pitch);
    RUN(combine, call({of_rows, at, none, by, sum}, {sum}));
    compare("y", addend, want_sum, 1e-6);
    array y(type, bare.size());
    RUN(combine, call({of_rows, at, none, by}, {rows_in(y, p.tokens, columns)}));
    compare("y without addend", y, bare, 1e-6);
}

/* Rows that no token has are zeros behind each slot's. */
void pack()
{
    for (int type : check_types)
        for (const slot_case &c : slot_cases)
            for (int64_t columns : {24, 33}) {
                if (c.of.tokens > 700)
                    continue;
                int64_t rows = c.ranks * c.each;
                slot_rows s = sorted_into_slots(experts_of(c.of), c.of.experts, c.ranks, c.each, c.skip);
                array row_ids(INT32, s.row_ids), offsets(INT32, s.offsets), sent(type, (size_t)(rows * columns)),
                    x(type, randoms((size_t)(c.of.tokens * columns)));
                vector<double> want((size_t)(rows * columns));
                for (size_t i = 0; i < s.row_ids.size(); i++)
                    for (int64_t k = 0; k < columns && s.row_ids[i] >= 0; k++)
                        want[(size_t)s.row_ids[i] * (size_t)columns + (size_t)k] =
                            x.value[i / (size_t)c.of.active * (size_t)columns + (size_t)k];
                call k({rows_in(x, c.of.tokens, columns), rows_in(row_ids, c.of.tokens, c.of.active), all_of(offsets)},
                       {rows_in(sent, rows, columns)});
                k.o.at.routing.slots = c.ranks;
                RUN(dispatch, k);
                compare("rows", sent, want, 0);
            }
}

void exchange()
{
    for (int type : check_types)
        for (const pass &p : passes)
            for (int64_t columns : {24, 33})
                if (p.tokens <= 600)
                    exchange_case(type, p, columns, p.tokens % 2 * 8, columns == 24);
    exchange_case(DTYPE_BF16, {3, 4, 8, 0, 8, 0, 16}, 4104, 0, true);
}
} // namespace

const vector<test_case> expert_cases = {{"experts/route", route},   {"experts/odd_choices", odd_choices},
                                        {"experts/assign", assign}, {"experts/overflow", overflow},
                                        {"experts/slots", slots},   {"experts/slots_overflow", overflow_of_slots},
                                        {"experts/pack", pack},     {"experts/exchange", exchange}};
