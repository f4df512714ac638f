/* Keeping or making again: what each setting keeps, and the budget's promises. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/compile.h"
#include "memory/log.h"
#include "tests/test.h"

enum { LAYERS = 8, HIDDEN = 128, TOKENS = 256, BF16 = 2 };

static compile_options options_of(shape_architecture architecture, int tensor_ranks, int data, int pipeline)
{
    model_shape s = {.architecture = architecture,
                     .layers = LAYERS,
                     .hidden_size = HIDDEN,
                     .heads = 8,
                     .kv_heads = 8,
                     .ffn_size = 384,
                     .vocab_size = 515,
                     .max_sequence = TOKENS};
    if (shape_has(&s, TRAIT_LATENT_KEYS)) {
        s.kv_lora_rank = 48;
        s.rope_head_size = 8;
    }
    shape_fill(&s);
    compile_options o = {.shape = s,
                         .precision = PRECISION_BF16,
                         .sequence = TOKENS,
                         .micro_batch = 1,
                         .microbatches = 4,
                         .layout.schedule = SCHEDULE_1F1B,
                         .layout.virtual_stages = 1,
                         .layout.sequence = true,
                         .threads = 1,
                         .train = true};
    assert_int_equal(grid_make(&o.grid, tensor_ranks * data * pipeline, 0, GRID_SIZES(tensor_ranks, 1, data, pipeline)),
                     STATUS_OK);
    return o;
}

typedef struct facts {
    int64_t arena, kept;
    double flops;
    int dropped;
    char decision[512];
} facts;

static facts facts_of(const compile_options *o)
{
    compiled c;
    if (compile(&c, o) != STATUS_OK)
        fail_msg("%s", status_message());
    facts f = {.arena = c.arena_bytes, .kept = c.training.peak_kept, .dropped = c.dropped};
    for (int i = 0; i < PHASE_COUNT; i++)
        f.flops += c.training.flops[i];
    snprintf(f.decision, sizeof f.decision, "%s", c.decision ? c.decision : "");
    compile_free(&c);
    return f;
}

static facts with(compile_options o, recompute how)
{
    o.recompute = how;
    return facts_of(&o);
}

TEST(making_more_again_takes_less_memory_and_more_work)
{
    for (int a = 0; a < SHAPE_ARCHITECTURES; a++) {
        compile_options o = options_of((shape_architecture)a, 1, 1, 1);
        facts none = with(o, RECOMPUTE_NONE), some = with(o, RECOMPUTE_SELECTIVE), full = with(o, RECOMPUTE_FULL);
        assert_true(none.arena > some.arena && some.arena > full.arena);
        assert_true(none.flops < some.flops && some.flops < full.flops);
        /* full: the forward pass of every layer once more, a third of forward and backward */
        assert_true(full.flops < 1.36 * none.flops);
    }
}

/* What is kept of a layer is its input, and of the model what the loss hands to its last norm. */
TEST(full_recompute_keeps_only_the_inputs_of_layers)
{
    for (int a = 0; a < SHAPE_ARCHITECTURES; a++) {
        facts full = with(options_of((shape_architecture)a, 1, 1, 1), RECOMPUTE_FULL);
        int64_t between = (int64_t)TOKENS * HIDDEN * BF16;
        assert_true(full.kept >= LAYERS * between);
        assert_true(full.kept <= (LAYERS + 3) * between);
    }
}

TEST(a_budget_is_kept_and_uses_what_it_may)
{
    compile_options o = options_of(SHAPE_LLAMA, 1, 1, 1);
    facts none = with(o, RECOMPUTE_NONE), full = with(o, RECOMPUTE_FULL);
    facts before = none;
    int different = 0;
    for (int i = 0; i <= 12; i++) {
        o.budget = none.arena - (none.arena - full.arena) * i / 12;
        facts f = facts_of(&o);
        assert_true(f.arena <= o.budget);
        assert_true(f.dropped >= before.dropped);
        assert_true(f.flops >= before.flops);
        different += f.dropped > before.dropped;
        /* what is left free is less than what one more step back towards keeping would need */
        assert_true(o.budget - f.arena <= (none.arena - full.arena) / 4);
        before = f;
    }
    assert_true(different >= 8);
    assert_int_equal(before.dropped > 0, 1);
    o.budget = none.arena;
    facts all = facts_of(&o);
    assert_int_equal(all.dropped, 0);
    assert_true(all.flops == none.flops);
    assert_string_equal(all.decision, "nothing");
}

/* Cheap things go first: until a product is recomputed, the work grows by next to nothing. */
TEST(what_costs_least_is_made_again_first)
{
    compile_options o = options_of(SHAPE_LLAMA, 1, 1, 1);
    o.shape.hidden_size = 4096; /* products as large as they are where it matters */
    o.shape.head_size = 512;
    o.shape.ffn_size = 11008;
    o.shape.max_sequence = o.sequence = 4096;
    facts none = with(o, RECOMPUTE_NONE), some = with(o, RECOMPUTE_SELECTIVE);
    o.budget = some.arena;
    facts f = facts_of(&o);
    assert_true(f.flops <= 1.02 * some.flops);
    o.budget = none.arena - (none.arena - some.arena) / 4;
    f = facts_of(&o);
    assert_true(f.dropped > 0 && f.flops < some.flops);
}

TEST(an_impossible_budget_says_by_how_much)
{
    compile_options o = options_of(SHAPE_LLAMA, 1, 1, 1);
    facts full = with(o, RECOMPUTE_FULL);
    o.budget = 1 << 20;
    compiled c;
    assert_int_equal(compile(&c, &o), STATUS_USAGE);
    compile_free(&c);
    const char *message = status_message();
    long long missing = 0;
    const char *at = strstr(message, "recomputed, ");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "recomputed, %lld bytes", &missing), 1);
    assert_null(strchr(message, '\n'));
    assert_true(missing + o.budget <= full.arena);
    /* what it names is enough, and much less is not */
    o.budget += missing;
    assert_true(facts_of(&o).arena <= o.budget);
    o.budget -= o.budget / 20;
    assert_int_equal(compile(&c, &o), STATUS_USAGE);
    compile_free(&c);
}

/* Rows that do not divide, biases on one tensor rank: still one decision, and every rank is within the budget. */
TEST(all_ranks_of_a_stage_decide_the_same)
{
    for (int zero = 0; zero <= 3; zero++) {
        compile_options o = options_of(SHAPE_GPT2, 2, 3, 2);
        o.layout.zero = zero;
        o.layout.zero_reduce = o.layout.zero_gather = zero >= 2;
        o.layout.sequence = zero != 1;
        facts none = with(o, RECOMPUTE_NONE), full = with(o, RECOMPUTE_FULL);
        o.budget = full.arena + (none.arena - full.arena) / 2;
        facts first[2] = {0};
        for (int i = 0; i < o.grid.ranks; i++) {
            o.grid = grid_for_rank(&o.grid, i);
            facts f = facts_of(&o);
            int stage = o.grid.at[GRID_PIPELINE];
            if (!(f.arena <= o.budget))
                fail_msg("zero %d, rank %d: %lld bytes over", zero, i, (long long)(f.arena - o.budget));
            if (!first[stage].arena)
                first[stage] = f;
            assert_int_equal(f.dropped, first[stage].dropped);
            assert_string_equal(f.decision, first[stage].decision);
        }
        assert_true(first[0].dropped > 0);
    }
}

TEST_MAIN(NULL, NULL)
