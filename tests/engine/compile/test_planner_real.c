/* Programs of real layouts, compiled but never run: their transient arenas beside the lower bound. These small
 * pipelines are the hard ones: a few blocks of scratch on top of all that is kept. */
#include <stdio.h>

#include "engine/compile/compile.h"
#include "tests/test.h"

enum { HIDDEN = 48, SEQUENCE = 32, VOCABULARY = 131 };

typedef struct layout {
    bool gpt2;
    int layers, tensor, pipeline, microbatches, chunks;
    schedule_kind schedule;
    recompute recompute;
} layout;

static const layout layouts[] = {
    {true, 6, 2, 2, 6, 1, SCHEDULE_1F1B, RECOMPUTE_NONE},
    {true, 6, 1, 2, 6, 3, SCHEDULE_INTERLEAVED, RECOMPUTE_SELECTIVE},
    {true, 6, 1, 3, 4, 1, SCHEDULE_1F1B, RECOMPUTE_NONE},
    {true, 6, 3, 2, 6, 1, SCHEDULE_ZB_H1, RECOMPUTE_FULL},
    {false, 8, 1, 4, 6, 1, SCHEDULE_1F1B, RECOMPUTE_NONE},
    {false, 8, 1, 4, 12, 2, SCHEDULE_INTERLEAVED, RECOMPUTE_SELECTIVE},
    {false, 8, 2, 2, 6, 2, SCHEDULE_INTERLEAVED, RECOMPUTE_NONE},
    {false, 8, 4, 2, 6, 2, SCHEDULE_INTERLEAVED, RECOMPUTE_NONE},
    {false, 6, 1, 3, 6, 2, SCHEDULE_INTERLEAVED, RECOMPUTE_NONE},
    {false, 6, 2, 2, 6, 1, SCHEDULE_1F1B, RECOMPUTE_NONE},
    {false, 8, 2, 2, 6, 1, SCHEDULE_GPIPE, RECOMPUTE_NONE},
    {false, 8, 1, 4, 6, 1, SCHEDULE_ZB_H1, RECOMPUTE_NONE},
    {true, 6, 4, 2, 6, 1, SCHEDULE_GPIPE, RECOMPUTE_NONE},
    {true, 6, 2, 3, 6, 1, SCHEDULE_ZB_H1, RECOMPUTE_SELECTIVE},
    {true, 6, 2, 3, 6, 2, SCHEDULE_INTERLEAVED, RECOMPUTE_FULL},
    {true, 6, 1, 2, 12, 1, SCHEDULE_1F1B, RECOMPUTE_SELECTIVE},
    {false, 8, 2, 4, 6, 1, SCHEDULE_1F1B, RECOMPUTE_FULL},
    {false, 8, 4, 2, 4, 1, SCHEDULE_ZB_H1, RECOMPUTE_NONE},
    {false, 6, 1, 3, 12, 1, SCHEDULE_GPIPE, RECOMPUTE_SELECTIVE},
    {false, 6, 2, 3, 6, 1, SCHEDULE_1F1B, RECOMPUTE_SELECTIVE},
};

static double ratio_of(const layout *l, int rank)
{
    model_shape s = {.architecture = l->gpt2 ? SHAPE_GPT2 : SHAPE_LLAMA,
                     .layers = l->layers,
                     .hidden_size = HIDDEN,
                     .heads = 12,
                     .kv_heads = l->gpt2 ? 12 : 2,
                     .head_size = l->gpt2 ? 0 : 8,
                     .ffn_size = l->gpt2 ? 0 : 100,
                     .vocab_size = VOCABULARY,
                     .max_sequence = SEQUENCE,
                     .tied_embeddings = l->gpt2};
    shape_fill(&s);
    compile_options o = {.shape = s,
                         .precision = PRECISION_FP32,
                         .sequence = SEQUENCE,
                         .micro_batch = 2,
                         .microbatches = l->microbatches,
                         .layout.schedule = l->schedule,
                         .layout.virtual_stages = l->chunks,
                         .layout.sequence = true,
                         .layout.zero = 1,
                         .recompute = l->recompute,
                         .threads = 1,
                         .backend = &cpu_backend,
                         .train = true};
    assert_int_equal(grid_make(&o.grid, l->tensor * l->pipeline, rank, GRID_SIZES(l->tensor, 1, 1, l->pipeline)),
                     STATUS_OK);
    compiled c = {0};
    assert_int_equal(compile(&c, &o), STATUS_OK);
    double ratio = (double)c.training.transient_bytes / (double)c.training.lower_bound;
    compile_free(&c);
    return ratio;
}

TEST(small_pipelines_plan_close_to_the_bound)
{
    int plans = 0, within = 0;
    double worst = 0;
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
        for (int stage = 0; stage < layouts[i].pipeline; stage++) {
            double ratio = ratio_of(layouts + i, stage * layouts[i].tensor);
            if (!(ratio <= 1.02))
                printf("%.4f: layout %zu, stage %d\n", ratio, i, stage);
            plans++;
            within += ratio <= 1.02;
            worst = ratio > worst ? ratio : worst;
        }
    printf("%d of %d stages within 1.02, worst %.4f\n", within, plans, worst);
    assert_true(plans >= 30);
    assert_true(within >= plans * 85 / 100); /* scratch is the library's: 49 of 54 with oneDNN 2.6, 47 with 3.7 */
    assert_true(worst <= 1.05);
}

TEST_MAIN(NULL, NULL)
