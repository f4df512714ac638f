/* How many tokens' logits exist at a time: by price, where memory is short, and where some is left. */
#include <stdlib.h>

#include "engine/compile/compile.h"
#include "engine/compile/model/tokens.h"
#include "engine/compile/plan/plan.h"
#include "memory/log.h"
#include "tests/test.h"

/* A narrow model with Llama 3's vocabulary: where most memory is needed, most of it are logits. */
static compile_options options_of(int tensor_ranks, const op_backend *backend)
{
    model_shape s = {.architecture = SHAPE_LLAMA,
                     .layers = 2,
                     .hidden_size = 256,
                     .heads = 4,
                     .kv_heads = 2,
                     .ffn_size = 1024,
                     .vocab_size = 128256,
                     .max_sequence = 4096};
    shape_fill(&s);
    compile_options o = {.shape = s,
                         .precision = PRECISION_BF16,
                         .sequence = 4096,
                         .micro_batch = 1,
                         .microbatches = 2,
                         .layout.schedule = SCHEDULE_1F1B,
                         .layout.virtual_stages = 1,
                         .layout.sequence = true,
                         .backend = backend,
                         .threads = 1,
                         .train = true};
    assert_int_equal(grid_make(&o.grid, tensor_ranks, 0, GRID_SIZES(tensor_ranks, 1, 1, 1)), STATUS_OK);
    return o;
}

typedef struct facts {
    int64_t arena, tokens;
    int chunks, dropped; /* of one micro-batch */
} facts;

static facts compiled_with(const compile_options *o)
{
    compiled c = {0};
    if (compile(&c, o) != STATUS_OK)
        fail_msg("%s", status_message());
    facts f = {.arena = c.arena_bytes, .tokens = c.options.loss_tokens, .dropped = c.dropped};
    for (int i = 0; i < c.training.list.count; i++) {
        const op *p = c.training.list.ops[i];
        f.chunks += p->kind == OP_cross_entropy && p->microbatch == 0;
        if (p->kind == OP_cross_entropy)
            assert_true(p->in[0]->shape[0] <= f.tokens);
    }
    compile_free(&c);
    return f;
}

/* 48 MiB of logits would be 192 tokens: 22 times through the gradient of the head for each micro-batch. */
TEST(a_chunk_is_as_large_as_its_price_asks)
{
    compile_options gpu = options_of(1, NULL), cpu = options_of(1, &cpu_backend);
    facts of_gpu = compiled_with(&gpu), of_cpu = compiled_with(&cpu);
    assert_int_equal(of_gpu.tokens, 2048);
    assert_int_equal(of_gpu.chunks, 2);
    assert_int_equal(of_cpu.tokens, 256);
    const profile *h = (profile[]){profile_named("h100")};
    double flops = profile_products(h, DTYPE_BF16), whole = loss_chunk_seconds(&gpu, 4096, flops, h->memory);
    assert_true(loss_chunk_seconds(&gpu, 2048, flops, h->memory) <= 1.125 * whole);
    assert_true(loss_chunk_seconds(&gpu, 1024, flops, h->memory) > 1.125 * whole);
    assert_true(loss_chunk_seconds(&gpu, 192, flops, h->memory) > 2 * whole);
}

/* A device that computes less in the time of a byte adds to the gradient of the head more often for the same price. */
TEST(a_chunk_is_priced_for_the_device_and_its_precision)
{
    const struct {
        const char *device;
        precision_kind precision;
        bool tf32;
        int64_t tokens;
    } cases[] = {{"h100", PRECISION_BF16, false, 2048},
                 {"a100", PRECISION_BF16, false, 1024},
                 {"h100", PRECISION_FP32, false, 256},
                 {"h100", PRECISION_FP32, true, 1024}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        compile_options o = options_of(1, NULL);
        o.device = devices_named(cases[i].device);
        o.precision = cases[i].precision;
        o.tf32 = cases[i].tf32;
        assert_int_equal(compiled_with(&o).tokens, cases[i].tokens);
    }
}

/* Less memory: first smaller chunks where they cost less than making again, never more than the budget, and alike on
 * all ranks that divide the vocabulary. */
TEST(a_budget_is_met_by_smaller_chunks_too)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        compile_options o = options_of(ranks, NULL);
        facts free_of = compiled_with(&o);
        int64_t logits = loss_chunk_bytes(&o, free_of.tokens);
        o.budget = free_of.arena;
        assert_int_equal(compiled_with(&o).tokens, free_of.tokens);
        o.budget = free_of.arena - logits / 2;
        facts shorter = compiled_with(&o);
        assert_true(shorter.tokens < free_of.tokens);
        assert_true(shorter.arena <= o.budget);
        for (int rank = 1; rank < ranks; rank++) {
            o.grid = grid_for_rank(&o.grid, rank);
            assert_int_equal(compiled_with(&o).tokens, shorter.tokens);
        }
    }
}

/* Memory that a budget leaves makes the loss one piece, alike on all ranks that divide the vocabulary: nothing is made
 * again for it, and never is it more than the budget. */
TEST(a_chunk_grows_into_what_a_budget_leaves)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        compile_options o = options_of(ranks, NULL);
        o.micro_batch = 2; /* 8,192 tokens */
        facts free_of = compiled_with(&o);
        int64_t logits = loss_chunk_bytes(&o, free_of.tokens);
        assert_int_equal(free_of.tokens, 2048);
        const struct {
            int64_t more;
            int chunks;
        } cases[] = {{logits / 2, 4}, {3 * logits / 2, 2}, {4 * logits, 1}};
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            o.budget = free_of.arena + cases[i].more;
            for (int rank = 0; rank < ranks; rank++) {
                o.grid = grid_for_rank(&o.grid, rank);
                facts f = compiled_with(&o);
                assert_int_equal(f.chunks, cases[i].chunks);
                assert_int_equal(f.tokens, 8192 / cases[i].chunks);
                assert_int_equal(f.dropped, 0);
                assert_true(f.arena <= o.budget);
            }
        }
    }
}

/* Where a layer's backward pass needs most, logits have its room: no byte more is planned for them. */
TEST(without_a_budget_a_chunk_grows_where_the_step_needs_most_elsewhere)
{
    compile_options o = options_of(1, NULL);
    o.shape.ffn_size = 65536;
    o.recompute = RECOMPUTE_FULL;
    facts grown = compiled_with(&o);
    assert_int_equal(grown.tokens, 4096);
    o.loss_tokens = 2048;
    facts priced = compiled_with(&o);
    assert_int_equal(priced.chunks, 2);
    assert_true(grown.arena <= priced.arena);
}

/* A matrix of 2^31 elements or more is asked of no library, whatever memory there is. */
TEST(no_chunk_has_as_many_as_two_to_the_31_logits)
{
    compile_options o = options_of(1, NULL);
    for (int samples = 1; samples <= 64; samples *= 2) {
        o.micro_batch = samples;
        int64_t largest = loss_chunk_largest(&o), all = 4096LL * samples;
        assert_int_equal(largest, all < 16384 ? all : 16384);
        assert_true(loss_chunk_bytes(&o, largest) / 2 <= INT32_MAX);
    }
    o.micro_batch = 8;
    o.budget = (int64_t)1 << 40;
    assert_int_equal(compiled_with(&o).tokens, 16384);
}

/* There no bit may hang on how much is made again, so the chunk, which decides the order of sums, may not hang on
 * it. */
TEST(on_the_cpu_a_budget_leaves_the_chunk_alone)
{
    compile_options o = options_of(1, &cpu_backend);
    facts free_of = compiled_with(&o);
    o.budget = free_of.arena - loss_chunk_bytes(&o, free_of.tokens) / 2;
    facts shorter = compiled_with(&o);
    assert_int_equal(shorter.tokens, free_of.tokens);
    assert_true(shorter.dropped > 0);
    assert_true(shorter.arena <= o.budget);
    o.budget = (int64_t)1 << 40;
    assert_int_equal(compiled_with(&o).tokens, free_of.tokens);
}

TEST_MAIN(NULL, NULL)
