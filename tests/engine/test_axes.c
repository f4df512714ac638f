/* "Ranks whose gradients sum" and "ranks that divide samples" are two questions: what the engine makes of a context
 * axis. */
#include <string.h>

#include "engine/run/batch.h"
#include "tests/test.h"

enum { GLOBAL_BATCH = 16, MICRO_BATCH = 2, CONTEXT = 2, DATA = 2 };

/* The options of `rank` of four, of which so many share samples and the others divide them. */
static compile_options options_of(int rank, int context)
{
    static config c;
    config_free(&c);
    const char *text = "model: {layers: 2, hidden_size: 32, heads: 4, vocab_size: 64}\n"
                       "train: {sequence: 16, global_batch: 16, micro_batch: 2, precision: fp32}\n"
                       "parallel: {zero: 1}\n";
    assert_int_equal(config_parse(&c, "a.yaml", text, strlen(text), 0, NULL), STATUS_OK);
    c.parallel.size[GRID_CONTEXT] = context;
    grid g;
    compile_options o;
    assert_int_equal(config_make_grid(&g, &c, CONTEXT * DATA, rank), STATUS_OK);
    assert_int_equal(compile_options_from(&o, &c, &g, &cpu_backend, 1), STATUS_OK);
    return o;
}

TEST(context_ranks_see_the_same_samples)
{
    for (int rank = 0; rank < CONTEXT * DATA; rank++) {
        compile_options o = options_of(rank, CONTEXT);
        /* all samples of a step, once over the data ranks */
        assert_int_equal(o.microbatches, GLOBAL_BATCH / (MICRO_BATCH * DATA));
        assert_int_equal(batch_first(&o, 100, o.microbatches), 100 + rank / CONTEXT * GLOBAL_BATCH / DATA);
    }
}

TEST(a_global_batch_is_divided_by_data_ranks_only)
{
    config c = {0};
    const char *text = "model: {layers: 2, hidden_size: 32, heads: 4, vocab_size: 64}\n"
                       "train: {sequence: 16, global_batch: 6, micro_batch: 1}\n";
    assert_int_equal(config_parse(&c, "a.yaml", text, strlen(text), 0, NULL), STATUS_OK);
    grid g;
    c.parallel.size[GRID_CONTEXT] = 4;
    assert_int_equal(config_make_grid(&g, &c, 12, 0), STATUS_OK); /* 6 samples for 3 data ranks, not for 12 */
    c.parallel.size[GRID_CONTEXT] = 1;
    assert_int_equal(config_make_grid(&g, &c, 12, 0), STATUS_USAGE);
    config_free(&c);
}

static int64_t state_bytes(int context)
{
    compile_options o = options_of(0, context);
    compiled c = {0};
    assert_int_equal(compile(&c, &o), STATUS_OK);
    int64_t bytes = c.class_bytes[CLASS_OPTIMIZER];
    compile_free(&c);
    return bytes;
}

/* ZeRO 1 gives each rank a part of the moments: of four ranks whose gradients sum it is the same part, whether they
 * divide samples or their tokens. */
TEST(state_is_divided_over_context_ranks_too)
{
    int64_t divided = state_bytes(CONTEXT);
    assert_true(divided > 0);
    assert_int_equal(divided, state_bytes(1));
    assert_int_equal(divided, state_bytes(CONTEXT * DATA));
}

TEST_MAIN(NULL, NULL)
