/* Working memory for attention where there is memory to spare, and none that a budget does not have. */
#include <stdlib.h>

#include "engine/compile/compile.h"
#include "engine/compile/step/place.h"
#include "memory/log.h"
#include "tests/test.h"

/* A library that takes 40 MiB, or 10, or 1, whichever it may. */
static int64_t takes_what_it_may(const op *o, int threads)
{
    static const int64_t sizes[] = {40 << 20, 10 << 20};
    (void)threads;
    for (int i = 0; i < 2 && o->kind == OP_attention_grad; i++)
        if (o->at.attention.workspace >= sizes[i])
            return sizes[i];
    return o->kind == OP_attention_grad ? 1 << 20 : 0;
}

static const op_backend greedy = {.name = "greedy", .scratch_bytes = takes_what_it_may};

static compile_options options_of(const op_backend *backend, int64_t budget)
{
    model_shape s = {.architecture = SHAPE_LLAMA,
                     .layers = 4,
                     .hidden_size = 256,
                     .heads = 4,
                     .kv_heads = 2,
                     .ffn_size = 1024,
                     .vocab_size = 32000,
                     .max_sequence = 2048};
    shape_fill(&s);
    compile_options o = {.shape = s,
                         .precision = PRECISION_BF16,
                         .sequence = 2048,
                         .micro_batch = 2,
                         .microbatches = 2,
                         .layout.schedule = SCHEDULE_1F1B,
                         .layout.virtual_stages = 1,
                         .budget = budget,
                         .backend = backend,
                         .threads = 1,
                         .train = true};
    assert_int_equal(grid_make(&o.grid, 1, 0, GRID_SIZES(1, 1, 1, 1)), STATUS_OK);
    return o;
}

typedef struct facts {
    int64_t arena, transient, taken;
    int dropped;
} facts;

static facts compiled_with(const op_backend *backend, int64_t budget)
{
    compile_options o = options_of(backend, budget);
    compiled c = {0};
    if (compile(&c, &o) != STATUS_OK)
        fail_msg("%s", status_message());
    facts f = {c.arena_bytes, c.training.transient_bytes, workspace_taken(&c), c.dropped};
    for (int i = 0; i < c.training.list.count; i++) {
        const op *p = c.training.list.ops[i];
        if (p->kind == OP_attention_grad && backend)
            assert_true(tensor_bytes(p->scratch) == takes_what_it_may(p, 1));
    }
    compile_free(&c);
    return f;
}

/* The peak is elsewhere: 40 MiB beside what lives during a layer's backward pass leave it as it is, or nearly so. */
TEST(what_is_free_is_given)
{
    facts none = compiled_with(NULL, 0), given = compiled_with(&greedy, 0);
    assert_int_equal(none.taken, 0);
    assert_int_equal(given.taken, 40 << 20);
    assert_true(given.transient <= none.transient + none.transient / 8);
}

TEST(a_budget_is_kept_and_used)
{
    facts least = compiled_with(NULL, 0);
    bool seen[3] = {false};
    for (int mib = 0; mib <= 400; mib += 20) {
        int64_t budget = least.arena - ((int64_t)200 << 20) + ((int64_t)mib << 20);
        facts f = compiled_with(&greedy, budget);
        assert_true(f.arena <= budget);
        seen[f.taken == 40 << 20 ? 2 : f.taken == 10 << 20] = true;
        if (mib >= 260)
            assert_int_equal(f.taken, 40 << 20);
    }
    assert_true(seen[2]);
}

TEST_MAIN(NULL, NULL)
