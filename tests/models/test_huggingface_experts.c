/* Experts in config.json: how many there are, which layers have them, how they are weighed; where files have them. */
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "models/huggingface.h"
#include "models/names.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

static status parse(model_shape *shape, const char *text)
{
    return huggingface_parse(shape, NULL, text, strlen(text), "config.json");
}

#define SIZES                                                                                                          \
    "\"hidden_size\":64,\"intermediate_size\":100,\"num_hidden_layers\":2,\"num_attention_heads\":8,\"vocab_size\":"   \
    "99,\"max_position_embeddings\":128"
#define KV ",\"num_key_value_heads\":2"
#define MIXTRAL(more)                                                                                                  \
    "{\"model_type\":\"mixtral\"," SIZES KV                                                                            \
    ",\"rope_theta\":1e6,\"num_local_experts\":4,\"num_experts_per_tok\":2," more "}"
#define OLMOE(more) "{\"model_type\":\"olmoe\"," SIZES ",\"num_experts\":6,\"num_experts_per_tok\":3," more "}"
#define QWEN3_MOE(more)                                                                                                \
    "{\"model_type\":\"qwen3_moe\"," SIZES KV                                                                          \
    ",\"num_experts\":6,\"num_experts_per_tok\":3,\"moe_intermediate_size\":20," more "}"
#define GRANITE_MOE(more)                                                                                              \
    "{\"model_type\":\"granitemoe\"," SIZES ",\"num_local_experts\":4,\"num_experts_per_tok\":2," more "}"

static const struct {
    const char *text, *part;
} refused[] = {
    {MIXTRAL("\"router_jitter_noise\":0.01"), "router_jitter_noise is 0.01"},
    {MIXTRAL("\"hidden_act\":\"gelu\""), "hidden_act is \"gelu\""},
    {MIXTRAL("\"num_experts\":5"), "num_experts and num_local_experts must be the same"},
    {MIXTRAL("\"output_router_logits\":1"), "output_router_logits is 1"},
    {MIXTRAL("\"router_aux_loss_coef\":-0.1"), "router_aux_loss_coef is -0.1"},
    {MIXTRAL("\"router_aux_loss_coef\":\"0.1\""), "router_aux_loss_coef is \"0.1\""},
    {"{\"model_type\":\"mixtral\"," SIZES KV ",\"rope_theta\":1e6,\"num_experts_per_tok\":2}",
     "num_experts is missing"},
    {"{\"model_type\":\"mixtral\"," SIZES KV ",\"rope_theta\":1e6,\"num_local_experts\":2}",
     "num_experts_per_tok is missing"},
    {"{\"model_type\":\"mixtral\"," SIZES KV ",\"rope_theta\":1e6,\"num_local_experts\":2,\"num_experts_per_tok\":3}",
     "experts_per_token is 3"},
    {"{\"model_type\":\"mixtral\"," SIZES KV ",\"num_local_experts\":4,\"num_experts_per_tok\":2}",
     "rope_theta is missing"},
    {"{\"model_type\":\"mixtral\"," SIZES ",\"num_local_experts\":4,\"num_experts_per_tok\":2}",
     "num_key_value_heads is missing"},
    {"{\"model_type\":\"granitemoe\"," SIZES ",\"num_experts\":4,\"num_experts_per_tok\":2}",
     "num_local_experts is missing"},
    {OLMOE("\"clip_qkv\":8.0"), "clip_qkv is 8.0"},
    {OLMOE("\"norm_topk_prob\":\"no\""), "norm_topk_prob is \"no\""},
    {QWEN3_MOE("\"use_sliding_window\":true"), "use_sliding_window is true"},
    {QWEN3_MOE("\"attention_bias\":true"), "attention_bias is true"},
    {QWEN3_MOE("\"num_local_experts\":0"), "num_local_experts is 0"},
    {QWEN3_MOE("\"decoder_sparse_step\":0"), "decoder_sparse_step is 0"},
    {QWEN3_MOE("\"mlp_only_layers\":[1]"), "mlp_only_layers is [1]: phalanx has layers without experts first"},
    {QWEN3_MOE("\"mlp_only_layers\":[0.5]"), "mlp_only_layers is [0.5]"},
    {QWEN3_MOE("\"mlp_only_layers\":1"), "mlp_only_layers is 1"},
    {"{\"model_type\":\"qwen3_moe\"," SIZES KV ",\"num_experts\":6,\"num_experts_per_tok\":3}",
     "moe_intermediate_size is missing"},
};

TEST(what_cannot_be_computed_is_refused_by_key_and_value)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        model_shape s;
        if (parse(&s, refused[i].text) != STATUS_FAILED)
            fail_msg("accepted: %s", refused[i].text);
        workfolder_message_has(refused[i].part);
        workfolder_message_has("config.json");
    }
}

/* The layers are the same after the way there and back. */
static void survives(const model_shape *s)
{
    char *text;
    model_shape back;
    assert_int_equal(huggingface_text(&text, s, DTYPE_BF16, NULL), STATUS_OK);
    assert_int_equal(parse(&back, text), STATUS_OK);
    assert_int_equal(s->dense_layers, back.dense_layers);
    assert_int_equal(s->experts_every, back.experts_every);
    free(text);
}

/* Which layers have experts, S, by decoder_sparse_step and mlp_only_layers. */
TEST(layers_may_differ_in_having_experts)
{
    static const struct {
        const char *keys, *layers; /* layers NULL: refused */
        int dense_layers, experts_every;
    } cases[] = {
        {"\"decoder_sparse_step\":1,\"mlp_only_layers\":[]", "SSSSSS", 0, 1},
        {"\"mlp_only_layers\":null", "SSSSSS", 0, 1},
        {"\"decoder_sparse_step\":2", "DSDSDS", 0, 2},
        {"\"mlp_only_layers\":[0,1]", "DDSSSS", 2, 1},
        {"\"mlp_only_layers\":[1,0,17]", "DDSSSS", 2, 1},
        {"\"decoder_sparse_step\":2,\"mlp_only_layers\":[4,1,0]", "DDDSDS", 2, 2},
        {"\"decoder_sparse_step\":3,\"mlp_only_layers\":[0,1,2]", "DDDDDS", 3, 3},
        {"\"mlp_only_layers\":[0,1,2,3,4,5]", "DDDDDD", 6, 1},
        {"\"mlp_only_layers\":[5]", NULL, 0, 0},
        {"\"decoder_sparse_step\":2,\"mlp_only_layers\":[3]", NULL, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_shape s;
        AUTO_FREE char *text =
            must_format("{\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"intermediate_size\":100,"
                        "\"moe_intermediate_size\":20,\"num_hidden_layers\":6,\"num_attention_heads\":8,"
                        "\"num_key_value_heads\":8,\"vocab_size\":99,\"max_position_embeddings\":128,"
                        "\"num_experts\":5,\"num_experts_per_tok\":2,%s}",
                        cases[i].keys);
        assert_int_equal(parse(&s, text), cases[i].layers ? STATUS_OK : STATUS_FAILED);
        for (int k = 0; cases[i].layers && k < 6; k++)
            assert_int_equal(shape_layer(&s, k).experts, cases[i].layers[k] == 'S' ? 5 : 0);
        if (cases[i].layers) {
            assert_int_equal(s.dense_layers, cases[i].dense_layers);
            assert_int_equal(s.experts_every, cases[i].experts_every);
            survives(&s);
        }
    }
}

TEST(a_routers_loss_is_added_where_its_logits_are_asked_for)
{
    model_shape s;
    assert_int_equal(parse(&s, MIXTRAL("\"router_aux_loss_coef\":0.02")), STATUS_OK);
    assert_true(s.router_loss == 0 && s.router_renormalise);
    assert_int_equal(parse(&s, MIXTRAL("\"router_aux_loss_coef\":0.02,\"output_router_logits\":true")), STATUS_OK);
    assert_true(s.router_loss == 0.02);
    assert_int_equal(parse(&s, MIXTRAL("\"output_router_logits\":true")), STATUS_OK);
    assert_true(s.router_loss == 0.001);
    assert_int_equal(parse(&s, OLMOE("\"output_router_logits\":true")), STATUS_OK);
    assert_true(s.router_loss == 0.01 && !s.router_renormalise);
    assert_int_equal(parse(&s, OLMOE("\"clip_qkv\":null,\"norm_topk_prob\":true")), STATUS_OK);
    assert_true(s.router_renormalise && s.expert_ffn_size == 100 && s.norm_epsilon == 1e-5 && s.kv_heads == 8);
    assert_int_equal(parse(&s, QWEN3_MOE("\"num_local_experts\":6,\"sliding_window\":9")), STATUS_OK);
    assert_true(s.experts == 6 && s.ffn_size == 100 && s.expert_ffn_size == 20 && s.sliding_window == 0 &&
                !s.router_renormalise && s.head_size == 8 && s.norm_epsilon == 1e-6);
    assert_int_equal(parse(&s, GRANITE_MOE("\"use_cache\":true")), STATUS_OK);
    assert_true(s.router_renormalise && s.attention_multiplier == 1 && s.norm_epsilon == 1e-6);
}

/* Where files have a weight of an expert: alone, or one after the other. */
TEST(experts_are_found_alone_or_stacked)
{
    model_shape s;
    names_slice at;
    int count;
    assert_int_equal(parse(&s, MIXTRAL("\"use_cache\":true")), STATUS_OK);
    names_tensor *list = names_list(&count, &s), *up = NULL;
    for (int i = 0; i < count; i++)
        if (!strcmp(list[i].name, "model.layers.1.block_sparse_moe.experts.2.w3.weight"))
            up = &list[i];
    assert_non_null(up);
    assert_true(names_slice_of(&at, &s, up, 0));
    assert_string_equal(at.name, up->name);
    assert_true(at.first == 0 && at.rows == 100 && at.stacked == 0);
    assert_true(names_slice_of(&at, &s, up, 1));
    assert_string_equal(at.name, "model.layers.1.mlp.experts.gate_up_proj");
    assert_true(at.first == 500 && at.rows == 800 && at.stacked == 4);
    assert_false(names_slice_of(&at, &s, up, 2));
    assert_true(names_slice_of(&at, &s, &list[0], 0));
    assert_false(names_slice_of(&at, &s, &list[0], 1));
    names_free(list, count);
}

TEST_MAIN(NULL, NULL)
