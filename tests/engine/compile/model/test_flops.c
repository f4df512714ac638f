/* FLOPs of a token are those of the recorded products and attention: beside the formula, and where layers differ. */
#include <math.h>

#include "engine/compile/compile.h"
#include "engine/compile/model/compile_model.h"
#include "engine/compile/model/flops.h"
#include "memory/log.h"
#include "models/presets.h"
#include "tests/test.h"

/* Weights of the products after attention, of all layers: the mlps, or the experts that a token has, those that all
 * share, and the router. */
static double mlp_weights(const model_shape *s)
{
    double h = (double)s->hidden_size, matrices = shape_has(s, TRAIT_GATED) ? 3 : 2;
    double dense = s->experts ? s->dense_layers : s->layers, computing = s->experts_per_token + s->shared_experts;
    double routed = h * s->experts + computing * matrices * h * (double)s->expert_ffn_size;
    return dense * matrices * h * (double)s->ffn_size + (s->layers - dense) * routed;
}

/* Weights of the products before attention and behind it, of a layer. */
static double attention_weights(const model_shape *s)
{
    double h = (double)s->hidden_size, heads = s->heads, q = heads * s->head_size, rank = s->kv_lora_rank;
    if (rank == 0)
        return h * (2 * q + 2 * (double)s->kv_heads * s->head_size);
    double queries = s->q_lora_rank ? s->q_lora_rank * (h + q) : h * q;
    double up = rank * heads * (s->head_size - s->rope_head_size + s->v_head_size);
    return queries + h * (rank + s->rope_head_size) + up + heads * s->v_head_size * h;
}

/* 6 FLOPs a weight of a product, 12 a head's element and key: 2204.02311's appendix, the mask's half of the keys left
 * out. */
static double formula(const model_shape *s, int64_t sequence)
{
    double n = (double)sequence, w = (double)s->sliding_window, h = (double)s->hidden_size;
    double all = (n + 1) / 2, some = w <= 0 || w >= n ? all : (w * (w + 1) / 2 + (n - w) * w) / n;
    double keys = (double)s->heads * s->head_size,
           values = (double)s->heads * (s->v_head_size ? s->v_head_size : s->head_size);
    double products = 2 * attention_weights(s), scores = 2 * (keys + values);
    int full = s->full_every > 0 ? s->layers / s->full_every : 0;
    double layers = (products + scores * all) * full + (products + scores * some) * (s->layers - full);
    return 3 * (layers + 2 * mlp_weights(s) + 2 * h * (double)s->vocab_size);
}

TEST(presets_have_the_formulas_flops_to_the_last_digit)
{
    for (int i = 0; i < presets_count(); i++)
        for (int64_t sequence = 128; sequence <= 131072; sequence *= 8) {
            const model_shape *s = &presets_at(i)->shape;
            double found = flops_per_token(s, sequence), expected = formula(s, sequence);
            if (found != expected)
                fail_msg("%s: %.17g, not %.17g", presets_at(i)->name, found, expected);
        }
}

static model_shape wide_attention(void)
{
    return (model_shape){.architecture = SHAPE_QWEN3,
                         .layers = 12,
                         .heads = 16,
                         .kv_heads = 16,
                         .head_size = 64,
                         .hidden_size = 256,
                         .ffn_size = 512,
                         .vocab_size = 1000,
                         .max_sequence = 4096,
                         .sliding_window = 100,
                         .rope_theta = 10000,
                         .norm_epsilon = 1e-6};
}

TEST(layers_count_as_what_they_are)
{
    enum { SEQUENCE = 4096 };
    model_shape windows = wide_attention(), none = windows, some = windows;
    none.sliding_window = 0;
    some.full_first = 2;
    some.full_every = 5; /* layers 0, 1, 4 and 9 */
    assert_true(fabs(flops_per_token(&windows, SEQUENCE) / formula(&windows, SEQUENCE) - 1) < 1e-15);
    double expected = (8 * formula(&windows, SEQUENCE) + 4 * formula(&none, SEQUENCE)) / 12;
    assert_true(fabs(flops_per_token(&some, SEQUENCE) / expected - 1) < 1e-15);
    flops_model f;
    flops_open(&f, &some, SEQUENCE);
    assert_int_equal(f.kind_count, 2);
    assert_int_equal(flops_layers_of(&f, 0, 0, 12), 4);
    assert_int_equal(flops_layers_of(&f, 0, 2, 5), 1);
    assert_true(f.kinds[0].attention > 4 * f.kinds[1].attention && f.kinds[0].products == f.kinds[1].products);
    flops_close(&f);
}

/* The chunk of the layers that see all tokens has fewer of them. */
TEST(stages_divide_by_the_cost_of_each_layer)
{
    int alike[2], unlike[2];
    compile_options o = {
        .shape = wide_attention(), .sequence = 4096, .layout.virtual_stages = 1, .layout.schedule = SCHEDULE_1F1B};
    assert_int_equal(grid_make(&o.grid, 2, 0, GRID_SIZES(1, 1, 1, 2)), STATUS_OK);
    assert_int_equal(compile_divide_layers(alike, &o), STATUS_OK);
    assert_int_equal(alike[0], 6);
    o.shape.full_first = 6;
    assert_int_equal(compile_divide_layers(unlike, &o), STATUS_OK);
    assert_int_equal(unlike[0] + unlike[1], 12);
    assert_true(unlike[0] < 5);
    double stage[2] = {0};
    flops_model f;
    flops_open(&f, &o.shape, o.sequence);
    for (int i = 0; i < 12; i++) {
        const flops_layer *l = &f.kinds[f.kind_of[i]];
        stage[i >= unlike[0]] += l->products + l->attention;
    }
    stage[1] += f.head;
    double most = f.kinds[0].products + f.kinds[0].attention;
    assert_true(fabs(stage[0] - stage[1]) <= most); /* one more layer would tip it over */
    flops_close(&f);
}

TEST_MAIN(NULL, NULL)
