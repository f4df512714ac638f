/* What follows from an optimizer's row: the state's bytes, who owns what, and the price of an update, by formula. */
#include <stdlib.h>
#include <string.h>

#include "engine/compile/compile.h"
#include "engine/compile/model/optimizer.h"
#include "engine/compile/time/prices.h"
#include "kernels/host_device.h"
#include "memory/log.h"
#include "models/parts.h"
#include "tests/test.h"

enum { LAYERS = 6, HIDDEN = 64, FFN = 192, HEADS = 8, KV_HEADS = 4, HEAD = HIDDEN / HEADS, VOCABULARY = 256 };
enum { FP32 = 4, BF16 = 2, Q = HEADS * HEAD, KV = KV_HEADS * HEAD, MOST_DATA = 5 };
enum { BLOCK = Q * HIDDEN + 2 * KV * HIDDEN + HIDDEN * Q + 3 * FFN * HIDDEN }; /* elements of a layer's matrices */

/* A Llama whose sizes divide by everything used here: nothing is padded, so that counts are exact. */
static compile_options options_of(config_optimizer name, precision_kind precision, int tensor_ranks, int data)
{
    model_shape s = {.architecture = SHAPE_LLAMA,
                     .layers = LAYERS,
                     .hidden_size = HIDDEN,
                     .heads = HEADS,
                     .kv_heads = KV_HEADS,
                     .ffn_size = FFN,
                     .vocab_size = VOCABULARY,
                     .max_sequence = 32};
    shape_fill(&s);
    compile_options o = {.shape = s,
                         .precision = precision,
                         .sequence = 32,
                         .micro_batch = 1,
                         .microbatches = 2,
                         .layout.schedule = SCHEDULE_1F1B,
                         .layout.virtual_stages = 1,
                         .layout.zero = 1,
                         .optimizer = {.name = name, .nesterov = true},
                         .threads = 1,
                         .train = true};
    assert_int_equal(grid_make(&o.grid, tensor_ranks * data, 0, GRID_SIZES(tensor_ranks, 1, data, 1)), STATUS_OK);
    return o;
}

static compiled compiled_of(const compile_options *o)
{
    compiled c;
    if (compile(&c, o) != STATUS_OK)
        fail_msg("%s", status_message());
    return c;
}

TEST(states_take_what_the_row_says)
{
    static const int bytes[] = {[CONFIG_OPTIMIZER_adamw] = 8, [CONFIG_OPTIMIZER_lion] = 4, [CONFIG_OPTIMIZER_sgd] = 4};
    for (int name = CONFIG_OPTIMIZER_adamw; name <= CONFIG_OPTIMIZER_muon; name++)
        for (int narrow = 0; narrow < 2; narrow++) {
            compile_options o = options_of((config_optimizer)name, narrow ? PRECISION_BF16 : PRECISION_FP32, 1, 1);
            compiled c = compiled_of(&o);
            int64_t all = parts_parameters(&o.shape), matrices = (int64_t)LAYERS * BLOCK;
            int64_t want = name == CONFIG_OPTIMIZER_muon ? 4 * matrices + 8 * (all - matrices) : bytes[name] * all;
            /* vectors end on boundaries of 256 bytes: so do all of these sizes */
            assert_int_equal(c.class_bytes[CLASS_OPTIMIZER], want + (narrow ? FP32 * all : 0));
            compile_free(&c);
        }
}

/* Weight, gradient, states and master: 18 bytes a parameter in mixed precision, 14 and 10 with narrower ones. */
TEST(a_parameter_takes_eighteen_fourteen_or_ten_bytes)
{
    for (int narrow = 0; narrow < 3; narrow++) {
        compile_options o = options_of(CONFIG_OPTIMIZER_adamw, PRECISION_BF16, 1, 1);
        o.optimizer.state = narrow >= 1 ? DTYPE_BF16 : DTYPE_FP32;
        o.optimizer.master = narrow >= 2 ? DTYPE_BF16 : DTYPE_FP32;
        compiled c = compiled_of(&o);
        int64_t bytes = c.class_bytes[CLASS_WEIGHT] + c.class_bytes[CLASS_GRADIENT] + c.class_bytes[CLASS_OPTIMIZER];
        /* a norm's 64 weights are padded to 256 bytes in bf16 */
        int64_t vectors = (2 * LAYERS + 1) * (int64_t)HIDDEN, narrow_arrays = 1 + 2 * (narrow >= 1);
        assert_int_equal(bytes, (18 - 4 * narrow) * parts_parameters(&o.shape) + vectors * BF16 * narrow_arrays);
        compile_free(&c);
    }
}

/* Every matrix of a block has one owner that holds all of it; the largest share exceeds the least by one matrix at
 * most. */
TEST(owners_hold_whole_matrices_evenly)
{
    for (int ranks = 1; ranks <= 2; ranks++)
        for (int data = 2; data <= MOST_DATA; data++) {
            int64_t held[MOST_DATA] = {0}, divided = 0;
            for (int rank = 0; rank < data; rank++) {
                compile_options o = options_of(CONFIG_OPTIMIZER_muon, PRECISION_FP32, ranks, data);
                o.grid = grid_for_rank(&o.grid, rank * ranks);
                assert_int_equal(o.grid.at[GRID_DATA], rank);
                compiled c = compiled_of(&o);
                for (int i = 0; i < c.model.parameter_count; i++) {
                    const parameter *p = c.model.parameters[i];
                    const storage *s = &c.storage[p->number];
                    assert_int_equal(optimizer_whole(&o, p), p->of_block && !p->vector);
                    if (!optimizer_whole(&o, p)) {
                        divided += p->vector ? 0 : s->own_rows;
                        continue;
                    }
                    assert_int_equal(s->own_rows, s->owner == rank ? p->rows : 0);
                    held[rank] += s->own_rows * p->columns;
                }
                compile_free(&c);
            }
            int64_t all = 0, most = 0, least = INT64_MAX, largest = 2 * FFN * HIDDEN / ranks;
            for (int rank = 0; rank < data; rank++) {
                all += held[rank];
                most = held[rank] > most ? held[rank] : most;
                least = held[rank] < least ? held[rank] : least;
            }
            assert_int_equal(all, (int64_t)LAYERS * BLOCK / ranks);
            assert_true(most - least <= largest);
            assert_int_equal(divided, 2 * VOCABULARY / ranks); /* rows of the embedding and the head */
        }
}

/* A matrix's products: the Gram matrix n x n over `other`, its square, and their polynomial times the matrix. */
static double products(double n, double other)
{
    return MUON_ITERATIONS * (2 * n * n * other + 2 * n * n * n + 2 * n * n * other);
}

static double products_of_layer(int ranks)
{
    double t = ranks;
    if (ranks > 1) /* the side that ranks have whole is the hidden size */
        return products(HIDDEN, Q / t) + 2 * products(HIDDEN, KV / t) + products(HIDDEN, Q / t) +
               3 * products(HIDDEN, FFN / t);
    return 2 * products(HIDDEN, Q) + 2 * products(KV, HIDDEN) + 3 * products(HIDDEN, FFN);
}

TEST(plan_prices_the_update_by_its_products_and_sums)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        compile_options o = options_of(CONFIG_OPTIMIZER_muon, PRECISION_BF16, ranks, 1);
        compiled c = compiled_of(&o);
        plan_update u = plan_price_update((profile[]){profile_named("h100")}, &c);
        double want = LAYERS * products_of_layer(ranks);
        /* besides products, a few operations an element */
        double elements = (double)parts_parameters(&o.shape) + LAYERS * 7.0 * MUON_ITERATIONS * HIDDEN * HIDDEN;
        assert_true(u.flops >= want && u.flops <= want + 20 * elements);
        assert_true(want > 20 * elements);
        /* seven matrices' sums of n x n; of t ranks, each sends 2 (t - 1) / t of it */
        int64_t sums = (int64_t)LAYERS * 7 * MUON_ITERATIONS * HIDDEN * HIDDEN * FP32;
        assert_int_equal(u.sent, ranks > 1 ? sums * 2 * (ranks - 1) / ranks : 0);
        /* up and gate side by side: x of both, and squares */
        assert_true(u.working >= 2 * FFN / ranks * HIDDEN * FP32 && u.working <= 16 * FFN * HIDDEN * FP32);
        assert_true(u.seconds > want / profile_named("h100").peak[PEAK_FP32]);
        compile_free(&c);
    }
}

/* Each expert's matrix is made orthogonal apart from the others', whether it has a name of its own (Mixtral) or is one
 * of many in a tensor (Granite, whose gate and up are one matrix of an expert). */
TEST(each_experts_matrix_is_its_own)
{
    enum { EXPERTS = 6, WIDE = 128 };
    for (int fused = 0; fused < 2; fused++) {
        compile_options o = options_of(CONFIG_OPTIMIZER_muon, PRECISION_BF16, 1, 1);
        o.shape = (model_shape){.architecture = fused ? SHAPE_GRANITE_MOE : SHAPE_MIXTRAL,
                                .layers = LAYERS,
                                .hidden_size = HIDDEN,
                                .heads = HEADS,
                                .kv_heads = KV_HEADS,
                                .experts = EXPERTS,
                                .expert_ffn_size = WIDE,
                                .vocab_size = VOCABULARY,
                                .max_sequence = 32};
        shape_fill(&o.shape);
        compiled c = compiled_of(&o);
        int matrices = 0;
        for (int i = 0; i < c.training.list.count; i++)
            matrices += c.training.list.ops[i]->kind == OP_muon_scale;
        assert_int_equal(matrices, LAYERS * (5 + EXPERTS * (fused ? 2 : 3)));
        compile_free(&c);
    }
}

TEST_MAIN(NULL, NULL)
