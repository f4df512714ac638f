/* Stochastic rounding: its mean is the number itself, small updates are not lost, and its bits are a function of name,
 * element and step alone. What rounding to nearest would do is the mutant of each. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/rounding.h"
#include "tests/kernels/workbench.h"
#include "tests/test.h"

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static uint16_t nearest(uint32_t bits, uint32_t random)
{
    (void)random;
    return rounding_bf16(bits, 0x7fffu + (bits >> 16 & 1));
}

/* The mean over all random numbers there are, exactly: sums of 2^16 multiples of one unit. */
static double mean(uint32_t value, uint16_t (*round)(uint32_t value, uint32_t random))
{
    double sum = 0;
    for (uint32_t random = 0; random < 1u << 16; random++)
        sum += (double)float_of((uint32_t)round(value, random) << 16);
    return sum / (1 << 16);
}

TEST(the_mean_of_all_roundings_is_the_number)
{
    static const float values[] = {1, -1,    1.00001f, 1.0039062f, -1.9999f,       3.14159265f, 1e-30f,
                                   0, -0.1f, 65519.3f, 7e-39f,     2.3283064e-10f, -1e+30f};
    int moved = 0;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        assert_true(mean(bits_of(values[i]), rounding_bf16) == (double)values[i]);
        moved += mean(bits_of(values[i]), nearest) != (double)values[i];
    }
    assert_true(moved >= 8); /* rounding to nearest has a bias wherever it rounds */
}

TEST(what_is_not_finite_stays_so)
{
    static const uint32_t values[] = {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u, 0xffffffffu};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        for (uint32_t random = 0; random < 1u << 16; random += 0x5555) {
            float before = float_of(values[i]);
            float after = float_of((uint32_t)rounding_bf16(values[i], random) << 16);
            assert_true(isnan(before) ? isnan(after) : before == after);
        }
}

/* By every instruction set, from any element on: the draws that philox_draws() makes of block and half. */
TEST(bits_depend_on_the_element_alone)
{
    enum { COUNT = 5000 };
    static float x[COUNT];
    static uint16_t whole[COUNT], part[COUNT];
    workbench b = workbench_open(1, NULL);
    const rounding how = {
        .seed = 0x1122334455667788u, .stream = 0xabcdef123456u, .step = 12, .site = ROUNDING_SITE + 2};
    const uint64_t first = (1ull << 35) - COUNT; /* up to the last block there is */
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)(workbench_uniform(&b) - 0.5);
    for (int set = 0; set < workbench_sets_here(); set++) {
        workbench_sets[set]->round(whole, x, COUNT, &how, first);
        for (int i = 0; i < COUNT; i++) {
            uint64_t element = first + (uint64_t)i;
            uint32_t draws[4];
            philox_draws(draws, how.seed, how.site, (uint64_t)how.step, how.stream, element / 8);
            uint32_t word = draws[element / 2 % 4], random = element % 2 ? word >> 16 : word & 0xffff;
            assert_int_equal(whole[i], rounding_bf16(bits_of(x[i]), random));
        }
        for (int at = 0, n = 1; at < COUNT; at += n, n = n * 3 % 1021) {
            n = n < COUNT - at ? n : COUNT - at;
            workbench_sets[set]->round(part + at, x + at, n, &how, first + (uint64_t)at);
        }
        assert_memory_equal(part, whole, sizeof whole);
    }
    rounding other[] = {how, how, how, how};
    other[0].seed++, other[1].stream++, other[2].step++, other[3].site++;
    for (int i = 0; i < 4; i++) {
        isa_detect()->round(part, x, COUNT, &other[i], first);
        assert_memory_not_equal(part, whole, sizeof whole);
    }
    free(b.arena);
}

/* ---- updates ----------------------------------------------------------------------------------------------------- */

static tensor scalars_of(workbench *b, const step_scalars *s)
{
    tensor t = workbench_tensor(b, DTYPE_UINT8, sizeof *s, 0);
    *(step_scalars *)tensor_at(&t, b->arena) = *s;
    return t;
}

static tensor control_of(workbench *b)
{
    tensor t = workbench_tensor(b, DTYPE_FP32, CONTROL_COUNT, 0);
    workbench_put(b, &t, CONTROL_FACTOR, 0, 1);
    workbench_put(b, &t, CONTROL_SKIP, 0, 0);
    return t;
}

enum { ROWS = 37, COLUMNS = 101, STRIDE = 250, FIRST = 1234567 };

static void give_bf16(workbench *b, const tensor *wide, const tensor *narrow)
{
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t j = 0; j < COLUMNS; j++) {
            workbench_put(b, narrow, i, j, workbench_get(b, wide, i, j));
            workbench_put(b, wide, i, j, workbench_get(b, narrow, i, j));
        }
}

static const op_kind RULES[] = {OP_adamw, OP_lion, OP_sgd, OP_muon_momentum, OP_muon};
static const int STATES[] = {2, 1, 1, 1, 0};

/* What an update in fp32 makes of the same numbers, rounded by the formula. */
TEST(an_update_rounds_what_fp32_makes)
{
    const step_scalars s = {.seed = 99,
                            .step = 7,
                            .updates = 7,
                            .lr = 0.01f,
                            .beta1 = 0.9f,
                            .beta2 = 0.95f,
                            .epsilon = 1e-8f,
                            .weight_decay = 0.1f,
                            .muon_lr = 0.02f,
                            .momentum = 0.9f,
                            .momentum_correction = 0.5f,
                            .variance_correction = 0.3f};
    for (size_t k = 0; k < sizeof RULES / sizeof *RULES; k++)
        for (int dense = 0; dense < 2; dense++) {
            workbench b = workbench_open(2, NULL);
            tensor gradient = workbench_random(&b, DTYPE_FP32, ROWS, COLUMNS, 1), scalars = scalars_of(&b, &s);
            tensor control = control_of(&b), wide[4], narrow[4];
            op a = {.kind = (uint8_t)RULES[k], .in = {&gradient, &scalars, &control}}, n;
            a.at = (op_attributes){.update = {.first_element = FIRST,
                                              .stride = dense ? COLUMNS : STRIDE,
                                              .stream = 5,
                                              .rounding_site = ROUNDING_SITE,
                                              .scale = 2,
                                              .decay = 1,
                                              .nesterov = 1}};
            n = a;
            bool momentum = RULES[k] == OP_muon_momentum; /* its first outputs are x, fp32, and the state */
            int outputs = momentum ? 2 : 2 + STATES[k];
            for (int i = momentum ? 0 : 1; i < outputs; i++) {
                wide[i] = workbench_random(&b, DTYPE_FP32, ROWS, COLUMNS, 1);
                narrow[i] = workbench_tensor(&b, i == 0 ? DTYPE_FP32 : DTYPE_BF16, ROWS, COLUMNS);
                for (int64_t j = 0; i == 3 && j < ROWS * COLUMNS; j++)
                    workbench_put(&b, &wide[i], j / COLUMNS, j % COLUMNS, workbench_uniform(&b));
                give_bf16(&b, &wide[i], &narrow[i]);
                a.out[i] = &wide[i];
                n.out[i] = &narrow[i];
            }
            workbench_run(&b, &a, false);
            workbench_run(&b, &n, false);
            for (int i = momentum ? 0 : 1; i < outputs; i++)
                for (int64_t j = 0; j < ROWS * COLUMNS; j++) {
                    int64_t row = j / COLUMNS, column = j % COLUMNS;
                    uint64_t element = (uint64_t)(FIRST + row * a.at.update.stride + column);
                    uint32_t draws[4], value = bits_of((float)workbench_get(&b, &wide[i], row, column));
                    philox_draws(draws, s.seed, ROUNDING_SITE + (uint32_t)i, 7, 5, element / 8);
                    if (i > 0)
                        value = (uint32_t)rounding_bf16(value, rounding_bits(draws, element)) << 16;
                    assert_true((double)float_of(value) == workbench_get(&b, &narrow[i], row, column));
                }
            free(b.arena);
        }
}

/* A thousand steps of 2^-12 from 1, where bf16 has units of 2^-7: on average they all count. To nearest, none does. */
TEST(small_steps_are_not_lost)
{
    enum { STEPS = 1000, N = 64 };
    workbench b = workbench_open(1, NULL);
    tensor gradient = workbench_tensor(&b, DTYPE_FP32, N, N), momentum = workbench_tensor(&b, DTYPE_FP32, N, N);
    tensor control = control_of(&b), master = workbench_tensor(&b, DTYPE_BF16, N, N);
    tensor scalars = scalars_of(&b, &(step_scalars){.lr = 0x1p-12f});
    float to_nearest = 1;
    for (int i = 0; i < N * N; i++) {
        workbench_put(&b, &gradient, i / N, i % N, -1);
        workbench_put(&b, &momentum, i / N, i % N, 0);
        workbench_put(&b, &master, i / N, i % N, 1);
    }
    op o = {.kind = OP_sgd, .in = {&gradient, &scalars, &control}, .out = {NULL, &master, &momentum}};
    o.at = (op_attributes){.update.rounding_site = ROUNDING_SITE, .update.stride = N};
    for (int step = 1; step <= STEPS; step++) {
        ((step_scalars *)tensor_at(&scalars, b.arena))->step = step;
        workbench_run(&b, &o, false);
        to_nearest = float_of((uint32_t)nearest(bits_of(to_nearest + 0x1p-12f), 0) << 16);
    }
    double sum = 0;
    for (int i = 0; i < N * N; i++)
        sum += workbench_get(&b, &master, i / N, i % N) - 1;
    /* a walk of 1,000 steps up by 2^-7 with probability 2^-5: the deviation of the mean of 4,096 is 6.7e-4 */
    double want = STEPS * 0x1p-12, deviation = 0x1p-7 * sqrt(STEPS * 0x1p-5 * (1 - 0x1p-5) / (N * N));
    assert_true(fabs(sum / (N * N) - want) <= 5 * deviation);
    assert_true(to_nearest == 1);
    assert_true(fabs((double)to_nearest - 1 - want) > 5 * deviation);
    free(b.arena);
}

TEST_MAIN(NULL, NULL)
