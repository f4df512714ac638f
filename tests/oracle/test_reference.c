/* The oracle itself against known values and formulas written another way, and the laws that kernels keep bit for
 * bit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/exact_sum.h"
#include "kernels/philox.h"
#include "tests/oracle/bench.h"
#include "tests/oracle/op_case.h"
#include "tests/test.h"

/* ---- known values of one point ---------------------------------------------------------------------------------- */

/* y of an element-wise op of one operand; `second`: another one in its row, or the factor */
static double at_point(op_kind kind, double x, double second)
{
    bench b = {.o.kind = (uint8_t)kind, .o.at.constants.scale = (float)second, .o.at.constants.cap = (float)second};
    bool pair = kind == OP_swiglu || kind == OP_geglu || kind == OP_swiglu_clamped;
    b.o.in[0] = bench_operand(&b, DTYPE_FP32, 1, pair ? 2 : 1);
    b.o.out[0] = bench_operand(&b, DTYPE_FP32, 1, 1);
    bench_start(&b);
    reference_program_set(b.p, b.o.in[0], (double[]){x, second});
    bench_run(&b);
    double y;
    reference_program_get(&y, b.p, b.o.out[0]);
    reference_program_close(b.p);
    return y;
}

/* ---- known values ---------------------------------------------------------------------------------------------- */

/* The known answers that Random123 comes with. */
TEST(philox_gives_the_known_answers)
{
    static const uint32_t counter[3][4] = {{0}, {~0u, ~0u, ~0u, ~0u}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}};
    static const uint32_t key[3][2] = {{0}, {~0u, ~0u}, {0xa4093822, 0x299f31d0}};
    static const uint32_t answer[3][4] = {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
                                          {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
                                          {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (int i = 0; i < 3; i++) {
        uint32_t out[4], engine[4];
        reference_philox(out, counter[i], key[i]);
        philox_block(engine, counter[i], key[i]);
        assert_memory_equal(out, answer[i], sizeof out);
        assert_memory_equal(engine, answer[i], sizeof out);
    }
}

TEST(activations_have_their_known_values)
{
    bench_near(at_point(OP_scale, 3, -0.5), -1.5, 1e-15);
    bench_near(at_point(OP_soft_cap, 3, 2), 1.8102965072897328, 1e-14);
    bench_near(at_point(OP_gelu, 1, 0), 0.84119199060827676, 1e-14);
    bench_near(at_point(OP_gelu, -0.5, 0), -0.15428599017485606, 1e-14);
    assert_true(at_point(OP_gelu, 0, 0) == 0);
    bench_near(at_point(OP_gelu_exact, 1, 0), 0.84134474606854293, 1e-14);
    bench_near(at_point(OP_gelu_exact, -0.5, 0), -0.15426876936299347, 1e-14);
    bench_near(at_point(OP_swiglu, 1, 3), 3 * 0.73105857863000488, 1e-14);
    bench_near(at_point(OP_geglu, 1, 3), 3 * 0.84119199060827676, 1e-14);
    bench_near(at_point(OP_swiglu, -2, 1), -0.23840584404423511, 1e-14);
    bench_near(at_point(OP_swiglu_clamped, 5, 2), 3 * 1.9640275800758169, 1e-14); /* both are 2 */
    bench_near(at_point(OP_swiglu_clamped, -1, 0.5), -1.5 * 0.37754066879814541, 1e-14);
}

TEST(a_norm_makes_rows_of_unit_size)
{
    bench b = {.o.kind = OP_layernorm};
    double x[] = {1, 2, 3, 6}, y[4], rstd, mean;
    for (int i = 0; i < 3; i++)
        b.o.in[i] = bench_operand(&b, DTYPE_FP32, i ? 4 : 1, i ? 0 : 4);
    b.o.out[0] = bench_operand(&b, DTYPE_FP32, 1, 4);
    b.o.out[1] = bench_operand(&b, DTYPE_FP32, 1, 0);
    b.o.out[2] = bench_operand(&b, DTYPE_FP32, 1, 0);
    bench_start(&b);
    reference_program_set(b.p, b.o.in[0], x);
    reference_program_set(b.p, b.o.in[1], (double[]){1, 1, 1, 2});
    reference_program_set(b.p, b.o.in[2], (double[]){0, 0, 5, 0});
    bench_run(&b);
    reference_program_get(y, b.p, b.o.out[0]);
    reference_program_get(&rstd, b.p, b.o.out[1]);
    reference_program_get(&mean, b.p, b.o.out[2]);
    bench_near(mean, 3, 1e-14);
    bench_near(rstd, 1 / sqrt(3.5), 1e-14); /* (4 + 1 + 0 + 9) / 4 */
    bench_near(y[0], -2 / sqrt(3.5), 1e-14);
    bench_near(y[2], 5, 1e-14);
    bench_near(y[3], 6 / sqrt(3.5), 1e-14);
    reference_program_close(b.p);
}

/* Keys all alike: the weights are even over what may be seen, y is the mean of those values, lse the log of their
 * number. A sink counts as one more key for the first head, as three for the second, with values of 0. */
TEST(attention_sees_its_window_and_document)
{
    enum { SEQUENCE = 6, SAMPLES = 2 };
    for (int window = 0; window <= 3; window += 3)
        for (int variant = 0; variant < 4; variant++) {
            const int documents = variant % 2, sinks = variant / 2;
            bench b = {
                .o = {.kind = OP_attention,
                      .at = {.heads = {2, 1, 1}, .attention = {.sequence = SEQUENCE, .window = window, .scale = 1}}}};
            double q[SEQUENCE * SAMPLES][2], k[SEQUENCE * SAMPLES], v[SEQUENCE * SAMPLES];
            double y[SEQUENCE * SAMPLES][2], lse[SAMPLES][2][SEQUENCE];
            for (int i = 0; i < 3; i++)
                b.o.in[i] = bench_operand(&b, DTYPE_FP32, SEQUENCE * SAMPLES, i ? 1 : 2);
            b.o.in[3] = documents ? bench_operand(&b, DTYPE_INT32, SEQUENCE * SAMPLES, 0) : NULL;
            b.o.in[5] = sinks ? bench_operand(&b, DTYPE_FP32, 2, 0) : NULL;
            b.o.out[0] = bench_operand(&b, DTYPE_FP32, SEQUENCE * SAMPLES, 2);
            b.o.out[1] = bench_operand(&b, DTYPE_FP32, SAMPLES * 2, SEQUENCE);
            bench_start(&b);
            for (int t = 0; t < SEQUENCE * SAMPLES; t++) {
                q[t][0] = 1 + t, q[t][1] = 2, k[t] = 0, v[t] = t * t;
                if (documents)
                    ((int32_t *)reference_program_bytes(b.p, b.o.in[3]))[t] = t % SEQUENCE >= 2 ? 2 : 0;
            }
            reference_program_set(b.p, b.o.in[0], q[0]);
            reference_program_set(b.p, b.o.in[1], k);
            reference_program_set(b.p, b.o.in[2], v);
            if (sinks)
                reference_program_set(b.p, b.o.in[5], (double[]){0, log(3)});
            bench_run(&b);
            reference_program_get(y[0], b.p, b.o.out[0]);
            reference_program_get(lse[0][0], b.p, b.o.out[1]);
            for (int t = 0; t < SEQUENCE * SAMPLES; t++) {
                int seen = 0, within = t % SEQUENCE;
                double sum = 0;
                for (int j = 0; j < SEQUENCE * SAMPLES; j++) {
                    bool same = j / SEQUENCE == t / SEQUENCE && (!documents || (j % SEQUENCE >= 2) == (within >= 2));
                    if (same && j <= t && (!window || t - j < window)) {
                        seen++;
                        sum += j * j;
                    }
                }
                for (int head = 0; head < 2; head++) {
                    int all = seen + sinks * (1 + 2 * head);
                    assert_true(fabs(y[t][head] - sum / all) <= 1e-12 * (1 + sum));
                    assert_true(fabs(lse[t / SEQUENCE][head][within] - log(all)) <= 1e-14);
                }
            }
            reference_program_close(b.p);
        }
}

/* A query whose scores are 0 and 0.5 tanh(3), of which the second's value is 1: their cap is smaller than their scale
 * makes of the product, 1.5. */
TEST(a_score_is_its_cap_times_a_tanh)
{
    bench b = {.o = {.kind = OP_attention,
                     .at = {.heads = {1, 1, 1}, .attention = {.sequence = 2, .scale = 0.5f, .cap = 0.5f}}}};
    for (int i = 0; i < 3; i++)
        b.o.in[i] = bench_operand(&b, DTYPE_FP32, 2, 1);
    b.o.out[0] = bench_operand(&b, DTYPE_FP32, 2, 1);
    b.o.out[1] = bench_operand(&b, DTYPE_FP32, 1, 2);
    bench_start(&b);
    reference_program_set(b.p, b.o.in[0], (double[]){1, 3});
    reference_program_set(b.p, b.o.in[1], (double[]){0, 1});
    reference_program_set(b.p, b.o.in[2], (double[]){0, 1});
    bench_run(&b);
    double y[2], lse[2];
    reference_program_get(y, b.p, b.o.out[0]);
    reference_program_get(lse, b.p, b.o.out[1]);
    bench_near(y[1], 0.6218780798768635, 1e-14);
    bench_near(lse[1], log(1 + exp(0.49752737684336523)), 1e-14);
    reference_program_close(b.p);
}

/* With y = v p and p the weight of the only key, what a sink changes: dy dv / ds = -dy y P, P = exp(s - lse). */
TEST(the_slope_of_a_sink_is_minus_its_weight)
{
    for (int adds = 0; adds < 2; adds++) {
        bench b = {.o = {.kind = OP_attention_sinks_grad, .at = {.heads.q = 2, .accumulate = (uint8_t)adds}}};
        for (int i = 0; i < 2; i++)
            b.o.in[i] = bench_operand(&b, DTYPE_FP32, 2, 4);
        b.o.in[2] = bench_operand(&b, DTYPE_FP32, 2, 2);
        b.o.in[3] = bench_operand(&b, DTYPE_FP32, 2, 0);
        b.o.out[0] = bench_operand(&b, DTYPE_FP32, 2, 0);
        bench_start(&b);
        reference_program_set(b.p, b.o.in[0], (double[]){1, 2, 3, 4, 5, 6, 7, 8});
        reference_program_set(b.p, b.o.in[1], (double[]){1, 1, 1, -1, 2, 0, 0, 1});
        reference_program_set(b.p, b.o.in[2], (double[]){log(2), log(4), 0, 0});
        reference_program_set(b.p, b.o.in[3], (double[]){0, log(0.5)});
        reference_program_set(b.p, b.o.out[0], (double[]){100, 100});
        bench_run(&b);
        double ds[2];
        reference_program_get(ds, b.p, b.o.out[0]);
        bench_near(ds[0], 100 * adds - (3 / 2.0 + 10 / 4.0), 1e-14);
        bench_near(ds[1], 100 * adds - 0.5 * (-1 + 8), 1e-14);
        reference_program_close(b.p);
    }
}

/* A quarter turn of the first pair, none of the second: of halves, then of neighbours; there, then back. */
TEST(rope_turns_by_the_angle_and_back)
{
    double q[] = {1, 2, 3, 4}, k[] = {5, 6, 7, 8}, y[8]; /* one head each */
    static const double turned[2][2][8] = {{{-3, 2, 1, 4, -7, 6, 5, 8}, {3, 2, -1, 4, 7, 6, -5, 8}},
                                           {{-2, 1, 3, 4, -6, 5, 7, 8}, {2, -1, 3, 4, 6, -5, 7, 8}}};
    for (int variant = 0; variant < 4; variant++) {
        bench b = {.o = {.kind = OP_rope,
                         .at = {.heads = {1, 1, 4}, .rotation = {(uint8_t)(variant & 1), (uint8_t)(variant >> 1)}}}};
        for (int i = 0; i < 2; i++) {
            b.o.in[i] = bench_operand(&b, DTYPE_FP32, 1, 4);
            b.o.out[i] = bench_operand(&b, DTYPE_FP32, 1, 4);
        }
        b.o.in[2] = bench_operand(&b, DTYPE_INT32, 1, 0);
        b.o.in[3] = bench_operand(&b, DTYPE_FP32, 2, 4);
        bench_start(&b);
        reference_program_set(b.p, b.o.in[0], q);
        reference_program_set(b.p, b.o.in[1], k);
        reference_program_set(b.p, b.o.in[3], (double[]){1, 1, 0, 0, 0, 1, 1, 0});
        *(int32_t *)reference_program_bytes(b.p, b.o.in[2]) = 1;
        bench_run(&b);
        reference_program_get(y, b.p, b.o.out[0]);
        reference_program_get(y + 4, b.p, b.o.out[1]);
        assert_memory_equal(y, turned[variant >> 1][variant & 1], sizeof y);
        reference_program_close(b.p);
    }
}

/* Shards' statistics make the whole's loss; all alike, the loss is log of the number of ids. */
TEST(cross_entropy_is_the_logarithm_of_a_probability)
{
    bench b = {.o = {.kind = OP_cross_entropy, .at = {.vocabulary = {4, 4}}}};
    b.o.in[0] = bench_operand(&b, DTYPE_FP32, 2, 5); /* the second of two shards of 4 ids, one padding column */
    b.o.in[1] = bench_operand(&b, DTYPE_INT32, 2, 0);
    b.o.in[2] = bench_operand(&b, DTYPE_FP32, 4, 3);
    b.o.in[3] = bench_operand(&b, DTYPE_UINT8, sizeof(step_scalars), 0);
    b.o.out[0] = bench_operand(&b, DTYPE_FP32, 1, 0);
    b.o.out[1] = bench_operand(&b, DTYPE_FP32, 2, 5);
    bench_start(&b);
    double logits[10], stats[12], loss, dlogits[10];
    for (int i = 0; i < 10; i++)
        logits[i] = i % 5 == 4 ? 99 : 2;
    for (int i = 0; i < 4; i++) /* shard, row: both rows' targets are of the second shard */
        memcpy(stats + 3 * i, (double[]){2, 4, i >= 2 ? 2 : -INFINITY}, 3 * sizeof *stats);
    reference_program_set(b.p, b.o.in[0], logits);
    reference_program_set(b.p, b.o.in[2], stats);
    memcpy(reference_program_bytes(b.p, b.o.in[1]), (int32_t[]){5, -1}, 8);
    *(step_scalars *)reference_program_bytes(b.p, b.o.in[3]) = (step_scalars){.loss_scale = 8, .loss_tokens = 2};
    bench_run(&b);
    reference_program_get(&loss, b.p, b.o.out[0]);
    reference_program_get(dlogits, b.p, b.o.out[1]);
    bench_near(loss, log(8), 1e-14);
    static const double want[5] = {0.5, 0.5 - 4, 0.5, 0.5, 0};
    for (int v = 0; v < 5; v++) {
        assert_true(fabs(dlogits[v] - want[v]) <= 1e-14);
        assert_true(dlogits[5 + v] == 0);
    }
    reference_program_close(b.p);
}

/* Half of the elements, the survivors doubled, and the same ones whichever rows a rank has. */
TEST(dropout_depends_on_the_global_element_only)
{
    enum { ROWS = 40, COLUMNS = 25, SEQUENCE = 16 };
    static double whole[ROWS * COLUMNS], part[ROWS * COLUMNS], ones[ROWS * COLUMNS];
    int kept = 0;
    for (int64_t first = 0; first < ROWS; first += 13) {
        bench b = {
            .o = {.kind = OP_dropout, .at.dropout = {.probability = 0.5f, .site = 1, .sample_tokens = SEQUENCE}}};
        int64_t rows = ROWS - first;
        b.o.in[0] = bench_operand(&b, DTYPE_FP32, rows, COLUMNS);
        b.o.in[1] = bench_operand(&b, DTYPE_UINT8, sizeof(step_scalars), 0);
        b.o.in[2] = bench_operand(&b, DTYPE_INT32, rows, 0);
        b.o.out[0] = bench_operand(&b, DTYPE_FP32, rows, COLUMNS);
        bench_start(&b);
        for (int64_t i = 0; i < rows; i++)
            ((int32_t *)reference_program_bytes(b.p, b.o.in[2]))[i] = (int32_t)(first + i);
        for (int i = 0; i < ROWS * COLUMNS; i++)
            ones[i] = 1;
        reference_program_set(b.p, b.o.in[0], ones);
        *(step_scalars *)reference_program_bytes(b.p, b.o.in[1]) =
            (step_scalars){.seed = 9, .step = 4, .first_sample = 77};
        bench_run(&b);
        reference_program_get(first ? part : whole, b.p, b.o.out[0]);
        if (first)
            assert_memory_equal(part, whole + first * COLUMNS, (size_t)(rows * COLUMNS) * sizeof *part);
        reference_program_close(b.p);
    }
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        assert_true(whole[i] == 0 || whole[i] == 2);
        kept += whole[i] == 2;
    }
    assert_true(kept > 420 && kept < 580); /* 500 expected, deviation 16 */
}

/* ---- optimizer ------------------------------------------------------------------------------------------------- */

/* Ten updates of one weight, by the paper's algorithm in long double, with and without decay and clipping. */
TEST(adamw_follows_the_paper)
{
    for (int decay = 0; decay < 2; decay++) {
        bench b = {.o = {.kind = OP_adamw, .at.update.decay = (uint8_t)decay}};
        b.o.in[0] = bench_operand(&b, DTYPE_FP32, 1, 0);
        b.o.in[1] = bench_operand(&b, DTYPE_UINT8, sizeof(step_scalars), 0);
        b.o.in[2] = bench_operand(&b, DTYPE_FP32, CONTROL_COUNT, 0);
        for (int i = 0; i < 4; i++)
            b.o.out[i] = bench_operand(&b, DTYPE_FP32, 1, 0);
        bench_start(&b);
        step_scalars *s = reference_program_bytes(b.p, b.o.in[1]);
        *s = (step_scalars){
            .lr = 0.125f, .beta1 = 0.875f, .beta2 = 0.96875f, .epsilon = 0x1p-20f, .weight_decay = 0.25f};
        reference_program_set(b.p, b.o.out[1], (double[]){0.75});
        long double w = 0.75L, m = 0, v = 0, power1 = 1, power2 = 1;
        for (int step = 1; step <= 10; step++) {
            bool skip = step == 4; /* changes nothing, and is no update */
            double g = sin(step), got[4];
            reference_program_set(b.p, b.o.in[0], &g);
            reference_program_set(b.p, b.o.in[2], (double[]){1, 0.5, skip});
            if (!skip) {
                s->updates++;
                long double h = 0.5L * (long double)g;
                power1 *= 0.875L;
                power2 *= 0.96875L;
                m = 0.875L * m + 0.125L * h;
                v = 0.96875L * v + 0.03125L * h * h;
                w -= 0.125L * (m / (1 - power1) / (sqrtl(v / (1 - power2)) + 0x1p-20L) + (decay ? 0.25L * w : 0));
            }
            bench_run(&b);
            for (int i = 0; i < 4; i++)
                reference_program_get(&got[i], b.p, b.o.out[i]);
            bench_near(got[1], (double)w, 1e-13);
            bench_near(got[2], (double)m, 1e-13);
            bench_near(got[3], (double)v, 1e-13);
            assert_true(got[0] == got[1]);
        }
        reference_program_close(b.p);
    }
}

TEST(clipping_bounds_the_norm)
{
    static const struct {
        double square;
        float scale, clip;
        double norm, factor, skip;
    } cases[] = {{25, 1, 1, 5, 0.2, 0},
                 {25, 1, 10, 5, 1, 0},
                 {25, 1, 0, 5, 1, 0},
                 {10000, 8, 5, 12.5, 0.05, 0},
                 {INFINITY, 1, 1, NAN, 0, 1}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        bench b = {.o.kind = OP_clip};
        b.o.in[0] = bench_operand(&b, DTYPE_INT64, SUM_BINS, 0);
        b.o.in[1] = bench_operand(&b, DTYPE_UINT8, sizeof(step_scalars), 0);
        b.o.out[0] = bench_operand(&b, DTYPE_FP32, CONTROL_COUNT, 0);
        bench_start(&b);
        exact_sum_add(reference_program_bytes(b.p, b.o.in[0]), cases[i].square);
        *(step_scalars *)reference_program_bytes(b.p, b.o.in[1]) =
            (step_scalars){.loss_scale = cases[i].scale, .clip = cases[i].clip};
        bench_run(&b);
        double control[CONTROL_COUNT];
        reference_program_get(control, b.p, b.o.out[0]);
        if (cases[i].skip == 0) {
            bench_near(control[CONTROL_NORM], cases[i].norm, 1e-14);
            bench_near(control[CONTROL_FACTOR], cases[i].factor, 1e-7);
        }
        assert_true(control[CONTROL_SKIP] == cases[i].skip);
        reference_program_close(b.p);
    }
}

/* ---- laws of the host's kernels -------------------------------------------------------------------------------- */

static void host_squares(int64_t *bins, float *gradient, int64_t first, int64_t rows, int64_t columns, bool add)
{
    tensor g, to;
    tensor_describe(&g, "gradient", CLASS_GRADIENT, DTYPE_FP32, 2, (int64_t[]){rows, columns});
    tensor_describe(&to, "bins", CLASS_INPUT, DTYPE_INT64, 1, (int64_t[]){SUM_BINS});
    g.address = (first * columns) * (int64_t)sizeof(float);
    /* one arena for both: bins after the gradient */
    enum { ROWS = 23, COLUMNS = 37 };
    static _Alignas(64) char arena[ROWS * COLUMNS * sizeof(float) + 64 + SUM_BINS * sizeof(int64_t)];
    to.address = (ROWS * COLUMNS * (int64_t)sizeof(float) + 63) / 64 * 64;
    memcpy(arena, gradient, ROWS * COLUMNS * sizeof(float));
    memcpy(arena + to.address, bins, SUM_BINS * sizeof *bins);
    op o = {.kind = OP_sum_squares, .in = {&g}, .out = {&to}, .label = "squares", .at.accumulate = add};
    cpu_backend.kernels[o.kind](&o, &(run_context){.arena = arena, .threads = 2});
    memcpy(bins, arena + to.address, SUM_BINS * sizeof *bins);
}

/* Values of very different sizes, so that a sum in floating point would depend on its order. */
TEST(no_bit_of_the_norm_depends_on_who_owns_which_rows)
{
    enum { ROWS = 23, COLUMNS = 37 };
    static float gradient[ROWS * COLUMNS];
    test_random random = {3};
    for (int i = 0; i < ROWS * COLUMNS; i++)
        gradient[i] = (float)(test_normal(&random) * pow(10, 12 * test_uniform(&random) - 6));
    int64_t whole[SUM_BINS], parts[SUM_BINS], merged[SUM_BINS] = {0};
    memset(whole, 0x55, sizeof whole);
    host_squares(whole, gradient, 0, ROWS, COLUMNS, false);
    long double sum = 0;
    for (int i = 0; i < ROWS * COLUMNS; i++)
        sum += (long double)gradient[i] * (long double)gradient[i];
    bench_near(exact_sum_value(whole), (double)sum, 1e-14);
    bench_near(reference_bins_value(whole), (double)sum, 1e-14);
    for (int64_t cut = 1; cut < ROWS; cut += 5) {
        host_squares(parts, gradient, cut, ROWS - cut, COLUMNS, false); /* the later rows first */
        host_squares(parts, gradient, 0, cut, COLUMNS, true);
        memset(merged, 0, sizeof merged);
        exact_sum_merge(merged, parts);
        assert_true(exact_sum_value(merged) == exact_sum_value(whole));
    }
    gradient[77] = NAN;
    host_squares(whole, gradient, 0, ROWS, COLUMNS, false);
    assert_true(isnan(exact_sum_value(whole)) && isnan(reference_bins_value(whole)));
}

TEST_MAIN(NULL, NULL)
