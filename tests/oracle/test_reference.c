/* The oracle itself against known values and formulas written another way, and the laws that kernels keep bit for
 * bit. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/exact_sum.h"
#include "kernels/philox.h"
#include "tests/oracle/op_case.h"
#include "tests/oracle/reference_program.h"

/* ---- a bench for single ops ------------------------------------------------------------------------------------ */

typedef struct bench {
    op o;
    tensor t[OP_MAX_IN + OP_MAX_OUT];
    int count;
    reference_program *p;
} bench;

static tensor *operand(bench *b, dtype type, int64_t rows, int64_t columns)
{
    tensor *t = &b->t[b->count++];
    tensor_describe(t, "operand", CLASS_TEMPORARY, type, columns ? 2 : 1, (int64_t[]){rows, columns});
    return t;
}

static void start(bench *b)
{
    op *o = &b->o;
    o->label = "bench";
    b->p = reference_program_open(&o, 1);
}

static void run(bench *b)
{
    reference_program_run(b->p, 0, 1, false);
}

static void near(double got, double want, double relative)
{
    if (!(fabs(got - want) <= relative * fabs(want) + 1e-300))
        fail_msg("%.17g is not %.17g", got, want);
}

/* y of an element-wise op of one operand; `second`: another one in its row, or the factor */
static double at_point(op_kind kind, double x, double second)
{
    bench b = {.o.kind = (uint8_t)kind, .o.at.scale = (float)second, .o.at.cap = (float)second};
    bool pair = kind == OP_swiglu || kind == OP_geglu;
    b.o.in[0] = operand(&b, DTYPE_FP32, 1, pair ? 2 : 1);
    b.o.out[0] = operand(&b, DTYPE_FP32, 1, 1);
    start(&b);
    reference_program_set(b.p, b.o.in[0], (double[]){x, second});
    run(&b);
    double y;
    reference_program_get(&y, b.p, b.o.out[0]);
    reference_program_close(b.p);
    return y;
}

/* ---- known values ---------------------------------------------------------------------------------------------- */

/* The known answers that Random123 comes with. */
static void philox_gives_the_known_answers(void **state)
{
    (void)state;
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

static void activations_have_their_known_values(void **state)
{
    (void)state;
    near(at_point(OP_scale, 3, -0.5), -1.5, 1e-15);
    near(at_point(OP_soft_cap, 3, 2), 1.8102965072897328, 1e-14);
    near(at_point(OP_gelu, 1, 0), 0.84119199060827676, 1e-14);
    near(at_point(OP_gelu, -0.5, 0), -0.15428599017485606, 1e-14);
    assert_true(at_point(OP_gelu, 0, 0) == 0);
    near(at_point(OP_gelu_exact, 1, 0), 0.84134474606854293, 1e-14);
    near(at_point(OP_gelu_exact, -0.5, 0), -0.15426876936299347, 1e-14);
    near(at_point(OP_swiglu, 1, 3), 3 * 0.73105857863000488, 1e-14);
    near(at_point(OP_geglu, 1, 3), 3 * 0.84119199060827676, 1e-14);
    near(at_point(OP_swiglu, -2, 1), -0.23840584404423511, 1e-14);
}

static void a_norm_makes_rows_of_unit_size(void **state)
{
    (void)state;
    bench b = {.o.kind = OP_layernorm};
    double x[] = {1, 2, 3, 6}, y[4], rstd, mean;
    for (int i = 0; i < 3; i++)
        b.o.in[i] = operand(&b, DTYPE_FP32, i ? 4 : 1, i ? 0 : 4);
    b.o.out[0] = operand(&b, DTYPE_FP32, 1, 4);
    b.o.out[1] = operand(&b, DTYPE_FP32, 1, 0);
    b.o.out[2] = operand(&b, DTYPE_FP32, 1, 0);
    start(&b);
    reference_program_set(b.p, b.o.in[0], x);
    reference_program_set(b.p, b.o.in[1], (double[]){1, 1, 1, 2});
    reference_program_set(b.p, b.o.in[2], (double[]){0, 0, 5, 0});
    run(&b);
    reference_program_get(y, b.p, b.o.out[0]);
    reference_program_get(&rstd, b.p, b.o.out[1]);
    reference_program_get(&mean, b.p, b.o.out[2]);
    near(mean, 3, 1e-14);
    near(rstd, 1 / sqrt(3.5), 1e-14); /* (4 + 1 + 0 + 9) / 4 */
    near(y[0], -2 / sqrt(3.5), 1e-14);
    near(y[2], 5, 1e-14);
    near(y[3], 6 / sqrt(3.5), 1e-14);
    reference_program_close(b.p);
}

/* Keys all alike: the weights are even over what may be seen, y is the mean of those values, lse the log of their
 * number. */
static void attention_sees_its_window_and_document(void **state)
{
    (void)state;
    enum { SEQUENCE = 6, SAMPLES = 2 };
    for (int window = 0; window <= 3; window += 3)
        for (int documents = 0; documents < 2; documents++) {
            bench b = {.o = {.kind = OP_attention,
                             .at = {.heads = 2,
                                    .kv_heads = 1,
                                    .head_size = 1,
                                    .sequence = SEQUENCE,
                                    .window = window,
                                    .scale = 1}}};
            double q[SEQUENCE * SAMPLES][2], k[SEQUENCE * SAMPLES], v[SEQUENCE * SAMPLES];
            double y[SEQUENCE * SAMPLES][2], lse[2][SEQUENCE * SAMPLES];
            for (int i = 0; i < 3; i++)
                b.o.in[i] = operand(&b, DTYPE_FP32, SEQUENCE * SAMPLES, i ? 1 : 2);
            b.o.in[3] = documents ? operand(&b, DTYPE_INT32, SEQUENCE * SAMPLES, 0) : NULL;
            b.o.out[0] = operand(&b, DTYPE_FP32, SEQUENCE * SAMPLES, 2);
            b.o.out[1] = operand(&b, DTYPE_FP32, 2, SEQUENCE * SAMPLES);
            start(&b);
            for (int t = 0; t < SEQUENCE * SAMPLES; t++) {
                q[t][0] = 1 + t, q[t][1] = 2, k[t] = 0, v[t] = t * t;
                if (documents)
                    ((int32_t *)reference_program_bytes(b.p, b.o.in[3]))[t] = t % SEQUENCE >= 2 ? 2 : 0;
            }
            reference_program_set(b.p, b.o.in[0], q[0]);
            reference_program_set(b.p, b.o.in[1], k);
            reference_program_set(b.p, b.o.in[2], v);
            run(&b);
            reference_program_get(y[0], b.p, b.o.out[0]);
            reference_program_get(lse[0], b.p, b.o.out[1]);
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
                    assert_true(fabs(y[t][head] - sum / seen) <= 1e-12 * (1 + sum));
                    assert_true(fabs(lse[head][t] - log(seen)) <= 1e-14);
                }
            }
            reference_program_close(b.p);
        }
}

/* A query whose scores are 0 and 0.5 tanh(3), of which the second's value is 1: their cap is smaller than their scale
 * makes of the product, 1.5. */
static void a_score_is_its_cap_times_a_tanh(void **state)
{
    (void)state;
    bench b = {.o = {.kind = OP_attention,
                     .at = {.heads = 1, .kv_heads = 1, .head_size = 1, .sequence = 2, .scale = 0.5f, .cap = 0.5f}}};
    for (int i = 0; i < 3; i++)
        b.o.in[i] = operand(&b, DTYPE_FP32, 2, 1);
    b.o.out[0] = operand(&b, DTYPE_FP32, 2, 1);
    b.o.out[1] = operand(&b, DTYPE_FP32, 1, 2);
    start(&b);
    reference_program_set(b.p, b.o.in[0], (double[]){1, 3});
    reference_program_set(b.p, b.o.in[1], (double[]){0, 1});
    reference_program_set(b.p, b.o.in[2], (double[]){0, 1});
    run(&b);
    double y[2], lse[2];
    reference_program_get(y, b.p, b.o.out[0]);
    reference_program_get(lse, b.p, b.o.out[1]);
    near(y[1], 0.6218780798768635, 1e-14);
    near(lse[1], log(1 + exp(0.49752737684336523)), 1e-14);
    reference_program_close(b.p);
}

/* A quarter turn of the first pair, none of the second: of halves, then of neighbours; there, then back. */
static void rope_turns_by_the_angle_and_back(void **state)
{
    (void)state;
    double q[] = {1, 2, 3, 4}, k[] = {5, 6, 7, 8}, y[8]; /* one head each */
    static const double turned[2][2][8] = {{{-3, 2, 1, 4, -7, 6, 5, 8}, {3, 2, -1, 4, 7, 6, -5, 8}},
                                           {{-2, 1, 3, 4, -6, 5, 7, 8}, {2, -1, 3, 4, 6, -5, 7, 8}}};
    for (int variant = 0; variant < 4; variant++) {
        bench b = {.o = {.kind = OP_rope,
                         .at = {.heads = 1,
                                .kv_heads = 1,
                                .head_size = 4,
                                .inverse = (uint8_t)(variant & 1),
                                .interleaved = (uint8_t)(variant >> 1)}}};
        for (int i = 0; i < 2; i++) {
            b.o.in[i] = operand(&b, DTYPE_FP32, 1, 4);
            b.o.out[i] = operand(&b, DTYPE_FP32, 1, 4);
        }
        b.o.in[2] = operand(&b, DTYPE_INT32, 1, 0);
        b.o.in[3] = operand(&b, DTYPE_FP32, 2, 4);
        start(&b);
        reference_program_set(b.p, b.o.in[0], q);
        reference_program_set(b.p, b.o.in[1], k);
        reference_program_set(b.p, b.o.in[3], (double[]){1, 1, 0, 0, 0, 1, 1, 0});
        *(int32_t *)reference_program_bytes(b.p, b.o.in[2]) = 1;
        run(&b);
        reference_program_get(y, b.p, b.o.out[0]);
        reference_program_get(y + 4, b.p, b.o.out[1]);
        assert_memory_equal(y, turned[variant >> 1][variant & 1], sizeof y);
        reference_program_close(b.p);
    }
}

/* Shards' statistics make the whole's loss; all alike, the loss is log of the number of ids. */
static void cross_entropy_is_the_logarithm_of_a_probability(void **state)
{
    (void)state;
    bench b = {.o = {.kind = OP_cross_entropy, .at = {.ids = 4, .first_id = 4}}};
    b.o.in[0] = operand(&b, DTYPE_FP32, 2, 5); /* the second of two shards of 4 ids, one padding column */
    b.o.in[1] = operand(&b, DTYPE_INT32, 2, 0);
    b.o.in[2] = operand(&b, DTYPE_FP32, 4, 3);
    b.o.in[3] = operand(&b, DTYPE_UINT8, sizeof(step_scalars), 0);
    b.o.out[0] = operand(&b, DTYPE_FP32, 1, 0);
    b.o.out[1] = operand(&b, DTYPE_FP32, 2, 5);
    start(&b);
    double logits[10], stats[12], loss, dlogits[10];
    for (int i = 0; i < 10; i++)
        logits[i] = i % 5 == 4 ? 99 : 2;
    for (int i = 0; i < 4; i++) /* shard, row: both rows' targets are of the second shard */
        memcpy(stats + 3 * i, (double[]){2, 4, i >= 2 ? 2 : -INFINITY}, 3 * sizeof *stats);
    reference_program_set(b.p, b.o.in[0], logits);
    reference_program_set(b.p, b.o.in[2], stats);
    memcpy(reference_program_bytes(b.p, b.o.in[1]), (int32_t[]){5, -1}, 8);
    *(step_scalars *)reference_program_bytes(b.p, b.o.in[3]) = (step_scalars){.loss_scale = 8, .loss_tokens = 2};
    run(&b);
    reference_program_get(&loss, b.p, b.o.out[0]);
    reference_program_get(dlogits, b.p, b.o.out[1]);
    near(loss, log(8), 1e-14);
    static const double want[5] = {0.5, 0.5 - 4, 0.5, 0.5, 0};
    for (int v = 0; v < 5; v++) {
        assert_true(fabs(dlogits[v] - want[v]) <= 1e-14);
        assert_true(dlogits[5 + v] == 0);
    }
    reference_program_close(b.p);
}

/* ---- routing */

enum { EXPERTS = 4 };

/* weights and experts of one token whose softmax is p, or whose logits p are */
static void chosen(double *weights, int32_t *experts, const double *p, const double *bias, op_routing as)
{
    bench b = {.o = {.kind = OP_route, .at.routing = as}};
    double logits[EXPERTS];
    for (int i = 0; i < EXPERTS; i++)
        logits[i] = as.sigmoid ? p[i] : log(p[i]);
    b.o.in[0] = operand(&b, DTYPE_FP32, 1, EXPERTS);
    b.o.in[1] = bias ? operand(&b, DTYPE_FP32, EXPERTS, 0) : NULL;
    b.o.out[0] = operand(&b, DTYPE_FP32, 1, as.active);
    b.o.out[1] = operand(&b, DTYPE_INT32, 1, as.active);
    start(&b);
    reference_program_set(b.p, b.o.in[0], logits);
    if (bias)
        reference_program_set(b.p, b.o.in[1], bias);
    run(&b);
    reference_program_get(weights, b.p, b.o.out[0]);
    memcpy(experts, reference_program_bytes(b.p, b.o.out[1]), (size_t)as.active * sizeof *experts);
    reference_program_close(b.p);
}

static void a_token_chooses_the_best_experts(void **state)
{
    (void)state;
    static const struct {
        double p[EXPERTS], bias[EXPERTS], weights[2];
        op_routing as;
        int32_t experts[2];
    } cases[] = {
        {{.1, .4, .2, .3}, {0}, {.4, .3}, {.scale = 1}, {1, 3}},
        {{.1, .4, .2, .3}, {0}, {10 / 7.0, 7.5 / 7}, {.scale = 2.5f, .renormalise = 1}, {1, 3}},
        {{.1, .4, .2, .3}, {.5}, {.1, .4}, {.scale = 1}, {0, 1}},
        {{.25, .25, .25, .25}, {0}, {.25, .25}, {.scale = 1}, {0, 1}},
        /* two groups: .55 and .45 are their sums, .4 and .25 their best; with the bias .55 and .75, .4 and .55 */
        {{.15, .4, .2, .25}, {0}, {.4, .15}, {.scale = 1, .groups = 2, .groups_kept = 1, .group_best = 2}, {1, 0}},
        {{.15, .4, .2, .25},
         {0, 0, 0, .3},
         {.25, .2},
         {.scale = 1, .groups = 2, .groups_kept = 1, .group_best = 2},
         {3, 2}},
        {{.3, .3, .38, .02}, {0}, {.38, .02}, {.scale = 1, .groups = 2, .groups_kept = 1, .group_best = 1}, {2, 3}},
        {{0, 1.0986122886681098, -1, -2}, {0}, {.75, .5}, {.scale = 1, .sigmoid = 1}, {1, 0}},
        {{0, 1.0986122886681098, -1, -2}, {0}, {.6, .4}, {.scale = 1, .sigmoid = 1, .renormalise = 1}, {1, 0}},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        op_routing as = cases[i].as;
        as.experts = EXPERTS;
        as.active = 2;
        double weights[2];
        int32_t experts[2];
        chosen(weights, experts, cases[i].p, cases[i].bias, as);
        for (int j = 0; j < 2; j++) {
            assert_int_equal(experts[j], cases[i].experts[j]);
            near(weights[j], cases[i].weights[j], 1e-7); /* factors are fp32 */
        }
    }
}

/* One expert of two, p = 3/4: dp/dlogit = p (1 - p), of a softmax the other one's negative; divided by its sum it is 1.
 */
static void the_slope_of_a_weight_is_its_scores(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        op_routing as = {.experts = 2, .active = 1, .scale = 1, .sigmoid = k % 2 != 0, .renormalise = k >= 2};
        bench b = {.o = {.kind = OP_route_grad, .at.routing = as}};
        b.o.in[0] = operand(&b, DTYPE_FP32, 1, 1);
        b.o.in[1] = operand(&b, DTYPE_FP32, 1, 2);
        b.o.in[2] = operand(&b, DTYPE_INT32, 1, 1);
        b.o.in[3] = operand(&b, DTYPE_FP32, 1, 1);
        b.o.out[0] = operand(&b, DTYPE_FP32, 1, 2);
        start(&b);
        reference_program_set(b.p, b.o.in[0], (double[]){2});
        reference_program_set(b.p, b.o.in[1], (double[]){0, 1.0986122886681098});
        reference_program_set(b.p, b.o.in[3], (double[]){as.renormalise ? 1 : .75});
        memcpy(reference_program_bytes(b.p, b.o.in[2]), (int32_t[]){1}, sizeof(int32_t));
        run(&b);
        double dlogits[2], want = as.renormalise ? 0 : .375;
        reference_program_get(dlogits, b.p, b.o.out[0]);
        assert_true(fabs(dlogits[1] - want) < 1e-15 && fabs(dlogits[0] + (as.sigmoid ? 0 : want)) < 1e-15);
        reference_program_close(b.p);
    }
}

enum { SENT = 3, EACH = 2 };

/* places of three tokens' experts, of those that a rank has from `first` on */
static void assigned(int32_t *places, int32_t *offsets, int32_t first, int32_t local, int64_t skip, int64_t rows)
{
    static const int32_t experts[SENT][EACH] = {{2, 0}, {0, 2}, {1, 2}};
    bench b = {.o = {.kind = OP_assign, .at = {.first = first, .rows = rows}}};
    b.o.at.routing = (op_routing){.local = local, .skip = skip};
    b.o.in[0] = operand(&b, DTYPE_INT32, SENT, EACH);
    b.o.out[0] = operand(&b, DTYPE_INT32, SENT, EACH);
    b.o.out[1] = operand(&b, DTYPE_INT32, local + 1, 0);
    start(&b);
    memcpy(reference_program_bytes(b.p, b.o.in[0]), experts, sizeof experts);
    run(&b);
    memcpy(places, reference_program_bytes(b.p, b.o.out[0]), sizeof experts);
    memcpy(offsets, reference_program_bytes(b.p, b.o.out[1]), ((size_t)local + 1) * sizeof *offsets);
    reference_program_close(b.p);
}

static void assignments_are_sorted_by_expert_and_token(void **state)
{
    (void)state;
    int32_t places[SENT * EACH], offsets[4];
    assigned(places, offsets, 0, 3, 0, 6);
    assert_memory_equal(places, ((int32_t[]){3, 0, 1, 4, 2, 5}), sizeof places);
    assert_memory_equal(offsets, ((int32_t[]){0, 2, 3, 6}), sizeof offsets);
    assigned(places, offsets, 1, 2, 2, 2); /* the second pass of two, of the last two experts */
    assert_memory_equal(places, ((int32_t[]){-1, -1, -1, 0, -1, 1}), sizeof places);
    assert_memory_equal(offsets, ((int32_t[]){0, 0, 2}), 3 * sizeof *offsets);
    assigned(places, offsets, 0, 3, 0, 4); /* more than there is room for */
    assert_memory_equal(places, ((int32_t[]){3, 0, 1, -1, 2, -1}), sizeof places);
    assert_memory_equal(offsets, ((int32_t[]){0, 2, 3, 4}), sizeof offsets);
}

/* Two ranks have experts 0 and 1, and 2: slots of two rows, from the first on and from the third. */
static void assignments_go_to_the_slots_of_their_ranks(void **state)
{
    (void)state;
    static const int32_t experts[SENT][EACH] = {{2, 0}, {0, 2}, {1, 2}};
    static const int32_t want[2][SENT * EACH + 4 + 3] = {{2, 0, 1, 3, -1, -1, 0, 0, 0, 0, 0, 2, 4},
                                                         {-1, -1, -1, -1, 0, 2, 1, -1, 0, -1, 0, 1, 3}};
    for (int wave = 0; wave < 2; wave++) {
        bench b = {.o = {.kind = OP_slots, .at.rows = 4}};
        b.o.at.routing = (op_routing){.experts = 3, .slots = 2, .skip = 2 * wave};
        b.o.in[0] = operand(&b, DTYPE_INT32, SENT, EACH);
        b.o.out[0] = operand(&b, DTYPE_INT32, SENT, EACH);
        b.o.out[1] = operand(&b, DTYPE_INT32, 4, 1);
        b.o.out[2] = operand(&b, DTYPE_INT32, 3, 0);
        start(&b);
        memcpy(reference_program_bytes(b.p, b.o.in[0]), experts, sizeof experts);
        run(&b);
        assert_memory_equal(reference_program_bytes(b.p, b.o.out[0]), want[wave], sizeof experts);
        assert_memory_equal(reference_program_bytes(b.p, b.o.out[1]), want[wave] + SENT * EACH, 4 * sizeof(int32_t));
        assert_memory_equal(reference_program_bytes(b.p, b.o.out[2]), want[wave] + SENT * EACH + 4,
                            3 * sizeof(int32_t));
        reference_program_close(b.p);
    }
}

/* Six assignments, four of them to experts 1 and 2: room for one, and for four. */
static void rows_beyond_the_room_of_a_rung_are_counted(void **state)
{
    (void)state;
    static const int32_t experts[SENT][EACH] = {{2, 0}, {0, 2}, {1, 2}};
    for (int rung = 0; rung < LADDER_RUNGS; rung++) {
        bench b = {.o = {.kind = OP_overflow, .at = {.first = 1, .accumulate = OP_ADDS}}};
        b.o.at.ladder = (op_ladder){.room = {1, 4}, .rung = rung, .local = 2};
        b.o.in[0] = operand(&b, DTYPE_INT32, SENT, EACH);
        b.o.out[0] = operand(&b, DTYPE_FP32, LADDER_RUNGS, 0);
        start(&b);
        memcpy(reference_program_bytes(b.p, b.o.in[0]), experts, sizeof experts);
        double over[LADDER_RUNGS] = {10, 0, 0};
        reference_program_set(b.p, b.o.out[0], over);
        run(&b);
        reference_program_get(over, b.p, b.o.out[0]);
        assert_true(over[0] == 13 && over[1] == 0);
        assert_true(over[2] == (rung == 0 ? INFINITY : 0));
        reference_program_close(b.p);
    }
}

/* Two tokens of three choose expert 2, and their counts are added to what was counted before; a bias goes up by the
 * rate where an expert has less than the mean, 3, and down where it has more, unless the step is skipped. */
static void a_bias_moves_by_the_sign_of_what_its_expert_lacks(void **state)
{
    (void)state;
    static const int32_t experts[SENT][EACH] = {{2, 0}, {0, 2}, {1, 3}}, before[4] = {3, 0, 1, 2},
                         after[4] = {5, 1, 3, 3};
    bench count = {.o = {.kind = OP_expert_count, .at.accumulate = OP_ADDS}};
    count.o.in[0] = operand(&count, DTYPE_INT32, SENT, EACH);
    count.o.out[0] = operand(&count, DTYPE_INT32, 4, 0);
    start(&count);
    memcpy(reference_program_bytes(count.p, count.o.in[0]), experts, sizeof experts);
    memcpy(reference_program_bytes(count.p, count.o.out[0]), before, sizeof before);
    run(&count);
    assert_memory_equal(reference_program_bytes(count.p, count.o.out[0]), after, sizeof after);
    reference_program_close(count.p);
    for (int skip = 0; skip < 2; skip++) {
        bench b = {.o = {.kind = OP_expert_bias, .at.scale = 0.25f}};
        b.o.in[0] = operand(&b, DTYPE_INT32, 4, 0);
        b.o.in[1] = operand(&b, DTYPE_FP32, CONTROL_COUNT, 0);
        b.o.out[0] = operand(&b, DTYPE_FP32, 4, 0);
        start(&b);
        double bias[4] = {1, 1, 1, 1}, control[CONTROL_COUNT] = {[CONTROL_SKIP] = skip};
        memcpy(reference_program_bytes(b.p, b.o.in[0]), after, sizeof after);
        reference_program_set(b.p, b.o.in[1], control);
        reference_program_set(b.p, b.o.out[0], bias);
        run(&b);
        reference_program_get(bias, b.p, b.o.out[0]);
        assert_true(bias[0] == (skip ? 1 : 0.75) && bias[1] == (skip ? 1 : 1.25) && bias[2] == 1 && bias[3] == 1);
        reference_program_close(b.p);
    }
}

/* An op with places[SENT, EACH] as input `slot`, operands of one column, and its output's values. */
static void routed(double *out, op_kind kind, int slot, const double *const *in, const int32_t *places, int64_t rows)
{
    static const int64_t shapes[3][OP_MAX_IN][2] = {{{SENT, 1}, {SENT, EACH}, {2, 0}, {SENT, EACH}},
                                                    {{7, 1}, {SENT, EACH}, {2, 0}, {SENT, EACH}, {SENT, 1}},
                                                    {{SENT, 1}, {7, 1}, {SENT, EACH}}};
    const int64_t(*shape)[2] = shapes[kind == OP_dispatch ? 0 : kind == OP_combine ? 1 : 2];
    bench b = {.o = {.kind = (uint8_t)kind, .at.rows = rows}};
    for (int i = 0; shape[i][0]; i++)
        b.o.in[i] = operand(&b, in[i] ? DTYPE_FP32 : DTYPE_INT32, shape[i][0], shape[i][1]);
    b.o.out[0] = operand(&b, DTYPE_FP32, kind == OP_dispatch ? rows : SENT, kind == OP_combine_dots ? EACH : 1);
    start(&b);
    for (int i = 0; shape[i][0]; i++)
        if (in[i])
            reference_program_set(b.p, b.o.in[i], in[i]);
    memcpy(reference_program_bytes(b.p, b.o.in[slot]), places, SENT * EACH * sizeof *places);
    run(&b);
    reference_program_get(out, b.p, b.o.out[0]);
    reference_program_close(b.p);
}

static void tokens_go_to_their_places_and_back(void **state)
{
    (void)state;
    static const int32_t places[] = {3, 0, 1, -1, 2, 5};
    static const double weights[] = {.5, 2, 1, 1, -1, 3}, tokens[] = {1, 2, 3}, ten[] = {10, 20, 30};
    static const double rows[] = {1, 2, 4, 8, 16, 32, 64};
    double out[7];
    routed(out, OP_dispatch, 1, (const double *const[]){tokens, NULL, NULL, weights}, places, 7);
    assert_memory_equal(out, ((double[]){2, 2, -3, .5, 0, 9, 0}), sizeof out);
    routed(out, OP_combine, 1, (const double *const[]){rows, NULL, NULL, weights, ten}, places, 7);
    assert_memory_equal(out, ((double[]){10 + 4 + 2, 20 + 2, 30 - 4 + 96}), SENT * sizeof *out);
    routed(out, OP_combine_dots, 2, (const double *const[]){tokens, rows, NULL}, places, 7);
    assert_memory_equal(out, ((double[]){8, 1, 4, 0, 12, 96}), SENT * EACH * sizeof *out);
}

/* Half of the elements, the survivors doubled, and the same ones whichever rows a rank has. */
static void dropout_depends_on_the_global_element_only(void **state)
{
    (void)state;
    enum { ROWS = 40, COLUMNS = 25, SEQUENCE = 16 };
    static double whole[ROWS * COLUMNS], part[ROWS * COLUMNS], ones[ROWS * COLUMNS];
    int kept = 0;
    for (int64_t first = 0; first < ROWS; first += 13) {
        bench b = {
            .o = {.kind = OP_dropout, .at.dropout = {.probability = 0.5f, .site = 1, .sample_tokens = SEQUENCE}}};
        int64_t rows = ROWS - first;
        b.o.in[0] = operand(&b, DTYPE_FP32, rows, COLUMNS);
        b.o.in[1] = operand(&b, DTYPE_UINT8, sizeof(step_scalars), 0);
        b.o.in[2] = operand(&b, DTYPE_INT32, rows, 0);
        b.o.out[0] = operand(&b, DTYPE_FP32, rows, COLUMNS);
        start(&b);
        for (int64_t i = 0; i < rows; i++)
            ((int32_t *)reference_program_bytes(b.p, b.o.in[2]))[i] = (int32_t)(first + i);
        for (int i = 0; i < ROWS * COLUMNS; i++)
            ones[i] = 1;
        reference_program_set(b.p, b.o.in[0], ones);
        *(step_scalars *)reference_program_bytes(b.p, b.o.in[1]) =
            (step_scalars){.seed = 9, .step = 4, .first_sample = 77};
        run(&b);
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
static void adamw_follows_the_paper(void **state)
{
    (void)state;
    for (int decay = 0; decay < 2; decay++) {
        bench b = {.o = {.kind = OP_adamw, .at.decay = (uint8_t)decay}};
        b.o.in[0] = operand(&b, DTYPE_FP32, 1, 0);
        b.o.in[1] = operand(&b, DTYPE_UINT8, sizeof(step_scalars), 0);
        b.o.in[2] = operand(&b, DTYPE_FP32, CONTROL_COUNT, 0);
        for (int i = 0; i < 4; i++)
            b.o.out[i] = operand(&b, DTYPE_FP32, 1, 0);
        start(&b);
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
            run(&b);
            for (int i = 0; i < 4; i++)
                reference_program_get(&got[i], b.p, b.o.out[i]);
            near(got[1], (double)w, 1e-13);
            near(got[2], (double)m, 1e-13);
            near(got[3], (double)v, 1e-13);
            assert_true(got[0] == got[1]);
        }
        reference_program_close(b.p);
    }
}

static void clipping_bounds_the_norm(void **state)
{
    (void)state;
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
        b.o.in[0] = operand(&b, DTYPE_INT64, SUM_BINS, 0);
        b.o.in[1] = operand(&b, DTYPE_UINT8, sizeof(step_scalars), 0);
        b.o.out[0] = operand(&b, DTYPE_FP32, CONTROL_COUNT, 0);
        start(&b);
        exact_sum_add(reference_program_bytes(b.p, b.o.in[0]), cases[i].square);
        *(step_scalars *)reference_program_bytes(b.p, b.o.in[1]) =
            (step_scalars){.loss_scale = cases[i].scale, .clip = cases[i].clip};
        run(&b);
        double control[CONTROL_COUNT];
        reference_program_get(control, b.p, b.o.out[0]);
        if (cases[i].skip == 0) {
            near(control[CONTROL_NORM], cases[i].norm, 1e-14);
            near(control[CONTROL_FACTOR], cases[i].factor, 1e-7);
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
static void no_bit_of_the_norm_depends_on_who_owns_which_rows(void **state)
{
    (void)state;
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
    near(exact_sum_value(whole), (double)sum, 1e-14);
    near(reference_bins_value(whole), (double)sum, 1e-14);
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

/* Experts 0 and 2 of three have rows 0 and 1; nobody has row 2. */
static void experts_multiply_their_own_rows(void **state)
{
    (void)state;
    static const int32_t offsets[] = {0, 1, 1, 2};
    static const double x[] = {1, 2, 3, 5, 100, 100}, w[] = {1, 10, 7, 7, 0.5, -1}, dy[] = {2, 3, 100};
    static const double y[] = {21, -3.5, 0}, dx[] = {2, 20, 1.5, -3, 0, 0}, dw[] = {2, 4, 0, 0, 9, 15};
    static const struct {
        op_kind kind;
        const double *a, *b, *c;
        int a_columns, b_rows, b_columns, c_rows, c_columns;
    } products[] = {{OP_grouped_linear, x, w, y, 2, 3, 2, 3, 1},
                    {OP_grouped_linear_grad_input, dy, w, dx, 1, 3, 2, 3, 2},
                    {OP_grouped_linear_grad_weight, dy, x, dw, 1, 3, 2, 3, 2}};
    for (int i = 0; i < 3; i++)
        for (int adds = 0; adds <= (products[i].kind == OP_grouped_linear_grad_weight); adds++) {
            bench b = {.o.kind = (uint8_t)products[i].kind, .o.at.accumulate = (uint8_t)adds};
            b.o.in[0] = operand(&b, DTYPE_FP32, 3, products[i].a_columns);
            b.o.in[1] = operand(&b, DTYPE_FP32, products[i].b_rows, products[i].b_columns);
            b.o.in[2] = operand(&b, DTYPE_INT32, 4, 0);
            b.o.out[0] = operand(&b, DTYPE_FP32, products[i].c_rows, products[i].c_columns);
            start(&b);
            double c[6] = {50, 50, 50, 50, 50, 50};
            reference_program_set(b.p, b.o.in[0], products[i].a);
            reference_program_set(b.p, b.o.in[1], products[i].b);
            memcpy(reference_program_bytes(b.p, b.o.in[2]), offsets, sizeof offsets);
            reference_program_set(b.p, b.o.out[0], c);
            run(&b);
            reference_program_get(c, b.p, b.o.out[0]);
            for (int k = 0; k < products[i].c_rows * products[i].c_columns; k++)
                near(c[k], products[i].c[k] + 50 * adds, 1e-15);
            reference_program_close(b.p);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(activations_have_their_known_values),
        cmocka_unit_test(a_norm_makes_rows_of_unit_size),
        cmocka_unit_test(attention_sees_its_window_and_document),
        cmocka_unit_test(a_score_is_its_cap_times_a_tanh),
        cmocka_unit_test(rope_turns_by_the_angle_and_back),
        cmocka_unit_test(cross_entropy_is_the_logarithm_of_a_probability),
        cmocka_unit_test(a_token_chooses_the_best_experts),
        cmocka_unit_test(the_slope_of_a_weight_is_its_scores),
        cmocka_unit_test(assignments_are_sorted_by_expert_and_token),
        cmocka_unit_test(assignments_go_to_the_slots_of_their_ranks),
        cmocka_unit_test(rows_beyond_the_room_of_a_rung_are_counted),
        cmocka_unit_test(a_bias_moves_by_the_sign_of_what_its_expert_lacks),
        cmocka_unit_test(tokens_go_to_their_places_and_back),
        cmocka_unit_test(dropout_depends_on_the_global_element_only),
        cmocka_unit_test(experts_multiply_their_own_rows),
        cmocka_unit_test(adamw_follows_the_paper),
        cmocka_unit_test(clipping_bounds_the_norm),
        cmocka_unit_test(no_bit_of_the_norm_depends_on_who_owns_which_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
