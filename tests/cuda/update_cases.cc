/* The rules of the optimizer's update, and what Muon does to its square matrices, against float64. */
#include "tests/cuda/check.h"

#include <memory>

#include "kernels/host_device.h"
#include "kernels/rounding.h"

namespace
{
constexpr double FACTOR = 0.25, SCALE = 1.75;

struct operands {
    std::unique_ptr<array> gradient, weight, master, state[2];
};

struct element {
    double master, state[2];
};

/* What a rule does to one element, by its formula. `odd`: with weight decay, and Nesterov's momentum. */
struct rule_case {
    int rule, states;
    element (*step)(element e, double g, const step_scalars &s, bool odd);
};

double decay(const step_scalars &s, bool odd)
{
    return odd ? (double)s.weight_decay : 0;
}

element adamw_step(element e, double g, const step_scalars &s, bool odd)
{
    double beta1 = s.beta1, beta2 = s.beta2;
    e.state[0] = beta1 * e.state[0] + (1 - beta1) * g;
    e.state[1] = beta2 * e.state[1] + (1 - beta2) * g * g;
    double step = e.state[0] / (double)s.momentum_correction /
                  (sqrt(e.state[1] / (double)s.variance_correction) + (double)s.epsilon);
    e.master -= (double)s.lr * (step + decay(s, odd) * e.master);
    return e;
}

element lion_step(element e, double g, const step_scalars &s, bool odd)
{
    double direction = (double)s.beta1 * e.state[0] + (1 - (double)s.beta1) * g;
    e.master -= (double)s.lr * ((direction > 0) - (direction < 0) + decay(s, odd) * e.master);
    e.state[0] = (double)s.beta2 * e.state[0] + (1 - (double)s.beta2) * g;
    return e;
}

element sgd_step(element e, double g, const step_scalars &s, bool odd)
{
    e.state[0] = (double)s.momentum * e.state[0] + g;
    e.master -= (double)s.lr * (odd ? g + (double)s.momentum * e.state[0] : e.state[0]);
    return e;
}

element muon_momentum_step(element e, double g, const step_scalars &s, bool odd)
{
    double momentum = s.momentum;
    e.state[0] = momentum * e.state[0] + (1 - momentum) * g;
    e.master = odd ? momentum * e.state[0] + (1 - momentum) * g : e.state[0];
    return e;
}

element muon_step(element e, double x, const step_scalars &s, bool odd)
{
    double lr = s.muon_lr;
    e.master = (1 - lr * decay(s, odd)) * e.master - lr * SCALE * (x / FACTOR);
    return e;
}

operands make_operands(const rule_case &c, int type, size_t count)
{
    operands t;
    t.gradient.reset(new array(DTYPE_FP32, randoms(count)));
    t.master.reset(new array(DTYPE_FP32, randoms(count)));
    for (int k = 0; k < c.states; k++)
        t.state[k].reset(new array(DTYPE_FP32, randoms(count, k ? 1 : 0.1)));
    if (c.states > 1) { /* a mean of squares */
        for (double &v : t.state[1]->value)
            v = v * v;
        t.state[1]->put();
    }
    t.weight.reset(new array(type, randoms(count)));
    return t;
}

launch_update_segment segment_of(const operands &t, int type, bool weighs, bool odd)
{
    launch_update_segment s = {};
    s.gradient = t.gradient->to<float>();
    s.weight = type == DTYPE_FP32 || !weighs ? nullptr : t.weight->to();
    s.master = t.master->to();
    for (int k = 0; k < 2 && t.state[k]; k++)
        s.state[k] = t.state[k]->to();
    s.count = (int64_t)t.gradient->value.size();
    s.scale = (float)SCALE;
    s.decay = s.nesterov = odd;
    return s;
}

void compare_operands(const rule_case &c, operands &t, const step_scalars &s, int type, bool skip, bool odd)
{
    bool weighs = c.rule != LAUNCH_muon_momentum;
    vector<double> master = t.master->value, weight = t.weight->value, state[2];
    for (int k = 0; k < c.states; k++)
        state[k] = t.state[k]->value;
    for (size_t i = 0; i < master.size() && !skip; i++) {
        element e = {master[i], {}};
        for (int k = 0; k < c.states; k++)
            e.state[k] = state[k][i];
        e = c.step(e, t.gradient->value[i] * FACTOR, s, odd);
        master[i] = e.master;
        for (int k = 0; k < c.states; k++)
            state[k][i] = e.state[k];
        weight[i] = type == DTYPE_FP32 || !weighs ? weight[i] : e.master;
    }
    if (skip && !weighs)
        master.assign(master.size(), 0);
    compare("master", *t.master, master, skip ? 0 : 6e-7);
    compare("weight", *t.weight, weight, skip ? 0 : 6e-7);
    for (int k = 0; k < c.states; k++)
        compare("state", *t.state[k], state[k], skip ? 0 : 6e-7);
}

step_scalars some_scalars()
{
    step_scalars s = {};
    s.lr = 3e-3f, s.beta1 = 0.9f, s.beta2 = 0.95f, s.epsilon = 1e-8f, s.weight_decay = 0.1f;
    s.muon_lr = 2e-2f, s.momentum = 0.95f;
    s.momentum_correction = 1 - powf(0.9f, 5), s.variance_correction = 1 - powf(0.95f, 5);
    return s;
}

void run_rule(const rule_case &c)
{
    step_scalars s = some_scalars();
    array scalars = bytes_of(&s, sizeof s);
    for (int type : check_types)
        for (bool skip : {false, true}) {
            array control(DTYPE_FP32, {12.0, FACTOR, skip ? 1.0 : 0.0});
            vector<operands> tensors;
            vector<launch_update_segment> segments;
            for (int i = 0; i < LAUNCH_UPDATE_SEGMENTS + 5; i++) { /* more than one launch holds */
                tensors.push_back(make_operands(c, type, i == 3 ? 9001 : (size_t)(i % 7 == 6 ? 8 : 1 + i * 5)));
                segments.push_back(segment_of(tensors.back(), type, c.rule != LAUNCH_muon_momentum, i % 2));
            }
            run_ok("launch_update", launch_update(nullptr, c.rule, type, segments.data(), (int)segments.size(),
                                                  scalars.to(), control.to<float>()));
            for (size_t i = 0; i < tensors.size(); i++)
                compare_operands(c, tensors[i], s, type, skip, i % 2);
        }
}

/* The bits that rounding makes of x, by kernels/rounding.h on the host. */
double rounded_bits(double x, uint64_t seed, uint64_t stream, int64_t step, uint32_t site, uint64_t element)
{
    rounding how = {seed, stream, step, site};
    uint32_t draws[4], bits;
    float value = (float)x;
    memcpy(&bits, &value, sizeof bits);
    rounding_draws(draws, &how, element / ROUNDING_ELEMENTS);
    bits = (uint32_t)rounding_bf16(bits, rounding_bits(draws, element)) << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* What is bf16 holds exactly the rounding of what the same kernel makes in fp32: tensors of rows in a wider named
 * tensor, of lengths that vectors divide and do not. */
void run_narrow(const rule_case &c)
{
    step_scalars s = some_scalars();
    s.seed = 0x123456789abcdefull, s.step = 77;
    array scalars = bytes_of(&s, sizeof s), control(DTYPE_FP32, {12.0, FACTOR, 0.0});
    constexpr int64_t FIRST = 1000003, STRIDE = 517;
    constexpr uint32_t SITE = ROUNDING_SITE + 3;
    bool x_only = c.rule == LAUNCH_muon_momentum;
    for (int64_t columns : {12, 7, 300})
        for (bool narrow_master : {false, true}) {
            if (narrow_master && x_only)
                continue;
            size_t count = (size_t)columns * 11;
            operands wide = make_operands(c, DTYPE_BF16, count);
            array *fp32[3] = {wide.master.get(), wide.state[0].get(), wide.state[1].get()};
            std::unique_ptr<array> narrow[3];
            for (int k = 0; k < 1 + c.states; k++) {
                for (double &v : fp32[k]->value)
                    v = k > 0 || narrow_master ? rounded_to(DTYPE_BF16, v) : v;
                fp32[k]->put();
                narrow[k].reset(new array(k > 0 || narrow_master ? DTYPE_BF16 : DTYPE_FP32, fp32[k]->value));
            }
            launch_update_segment a = segment_of(wide, DTYPE_FP32, false, true), b = a;
            b.master = narrow[0]->to();
            for (int k = 0; k < c.states; k++)
                b.state[k] = narrow[1 + k]->to();
            b.narrow_state = true, b.narrow_master = narrow_master;
            b.site = SITE, b.stream = 42, b.first = FIRST, b.stride = STRIDE, b.columns = columns;
            for (const launch_update_segment *one : {&a, &b})
                run_ok("launch_update", launch_update(nullptr, c.rule, narrow_master ? DTYPE_BF16 : DTYPE_FP32, one, 1,
                                                      scalars.to(), control.to<float>()));
            for (int k = 0; k < 1 + c.states; k++) {
                fp32[k]->get();
                narrow[k]->get();
                long different = 0;
                for (int64_t i = 0; i < (int64_t)count; i++) {
                    double want = fp32[k]->value[(size_t)i];
                    uint64_t element = (uint64_t)(FIRST + i / columns * STRIDE + i % columns);
                    if (k > 0 || narrow_master)
                        want = rounded_bits(want, s.seed, 42, s.step, SITE + (uint32_t)k, element);
                    different += narrow[k]->value[(size_t)i] != want;
                }
                check("rounded as the host rounds", different == 0);
            }
        }
}

void narrow()
{
    run_narrow({LAUNCH_adamw, 2, adamw_step});
    run_narrow({LAUNCH_lion, 1, lion_step});
    run_narrow({LAUNCH_sgd, 1, sgd_step});
    run_narrow({LAUNCH_muon_momentum, 1, muon_momentum_step});
    run_narrow({LAUNCH_muon, 0, muon_step});
}

/* Rows that are multiplied by factors of their own, of lengths that vectors divide and do not: the update as it is
 * without, times the factor. */
void factors()
{
    constexpr int64_t ROWS = 13;
    const rule_case c = {LAUNCH_muon, 0, muon_step};
    step_scalars s = some_scalars();
    array scalars = bytes_of(&s, sizeof s);
    for (int type : check_types)
        for (int64_t columns : {8, 7, 300})
            for (bool skip : {false, true}) {
                array control(DTYPE_FP32, {12.0, FACTOR, skip ? 1.0 : 0.0}), by(DTYPE_FP32, randoms(ROWS));
                operands t = make_operands(c, type, (size_t)(columns * ROWS));
                launch_update_segment a = segment_of(t, type, true, true);
                a.factors = by.to<float>();
                a.columns = columns;
                vector<double> want = t.master->value;
                for (size_t i = 0; i < want.size() && !skip; i++)
                    want[i] = by.value[i / (size_t)columns] *
                              c.step({want[i], {}}, t.gradient->value[i] * FACTOR, s, true).master;
                vector<double> weight = skip || type == DTYPE_FP32 ? t.weight->value : want;
                run_ok("launch_update", launch_update(nullptr, c.rule, type, &a, 1, scalars.to(), control.to<float>()));
                compare("master", *t.master, want, skip ? 0 : 6e-7);
                compare("weight", *t.weight, weight, skip ? 0 : 6e-7);
            }
}

void adamw()
{
    run_rule({LAUNCH_adamw, 2, adamw_step});
}

void lion()
{
    run_rule({LAUNCH_lion, 1, lion_step});
}

void sgd()
{
    run_rule({LAUNCH_sgd, 1, sgd_step});
}

void muon_momentum()
{
    run_rule({LAUNCH_muon_momentum, 1, muon_momentum_step});
}

void muon()
{
    run_rule({LAUNCH_muon, 0, muon_step});
}

/* Of one column, of a few, and of more rows and columns than a block has threads; one with gaps between its rows. */
const struct {
    int64_t n, pitch;
} SQUARES[] = {{1, 1}, {7, 7}, {64, 70}, {300, 300}};

void muon_scale()
{
    for (auto size : SQUARES)
        for (double most : {1.0, 1e-20}) { /* the norm, and epsilon, above it */
            int64_t n = size.n, pitch = size.pitch;
            array gram(DTYPE_FP32, randoms((size_t)(n * pitch), most)), scaled(DTYPE_FP32, (size_t)(n * pitch)),
                scale(DTYPE_FP32, (size_t)1);
            double trace = 0;
            for (int64_t i = 0; i < n; i++)
                trace += gram.value[(size_t)(i * pitch + i)] = fabs(gram.value[(size_t)(i * pitch + i)]);
            gram.put();
            call c({rows_in(gram, n, n, pitch)}, {rows_in(scaled, n, n, pitch), all_of(scale)});
            c.o.at.update.epsilon = 1e-7f;
            RUN(muon_scale, c);
            double want = 1 / fmax(sqrt(trace), (double)1e-7f);
            compare("scale", scale, {want}, 1e-6);
            scaled.get();
            for (int64_t i = 0; i < n; i++)
                for (int64_t j = 0; j < n; j++) {
                    size_t at = (size_t)(i * pitch + j);
                    double here = gram.value[at] * want * want;
                    check("scaled", fabs(scaled.value[at] - here) <= 1e-6 * fabs(here));
                }
        }
}

void muon_polynomial()
{
    for (auto size : SQUARES)
        for (bool scaled : {false, true}) {
            int64_t n = size.n, pitch = size.pitch;
            array gram(DTYPE_FP32, randoms((size_t)(n * pitch))), square(DTYPE_FP32, randoms((size_t)(n * pitch))),
                p(DTYPE_FP32, (size_t)(n * pitch)), scale(DTYPE_FP32, vector<double>{3.5});
            RUN(muon_polynomial,
                call({rows_in(gram, n, n, pitch), rows_in(square, n, n, pitch), only_if(scaled, all_of(scale))},
                     {rows_in(p, n, n, pitch)}));
            p.get();
            for (int64_t i = 0; i < n; i++)
                for (int64_t j = 0; j < n; j++) {
                    size_t at = (size_t)(i * pitch + j);
                    double want = MUON_B * gram.value[at] + MUON_C * square.value[at] + (i == j ? MUON_A : 0);
                    want *= scaled ? 3.5 : 1;
                    check("p", fabs(p.value[at] - want) <= 1e-5);
                }
        }
}
} // namespace

const vector<test_case> update_cases = {
    {"update/adamw", adamw},
    {"update/narrow", narrow},
    {"update/lion", lion},
    {"update/sgd", sgd},
    {"update/muon_momentum", muon_momentum},
    {"update/muon", muon},
    {"update/factors", factors},
    {"update/muon_scale", muon_scale},
    {"update/muon_polynomial", muon_polynomial},
};
