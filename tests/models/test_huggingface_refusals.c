/* config.json: what the decoder cannot compute is refused by key and value. */
#include <math.h>

#include "tests/jobs/workfolder.h"
#include "tests/models/parsed.h"
#include "tests/test.h"

#define SIZES                                                                                                          \
    "\"hidden_size\":64,\"intermediate_size\":100,\"num_hidden_layers\":2,\"num_attention_heads\":8,\"vocab_size\":"   \
    "99,"                                                                                                              \
    "\"max_position_embeddings\":128"
#define KV               ",\"num_key_value_heads\":2"
#define LLAMA(more)      "{\"model_type\":\"llama\"," SIZES KV "," more "}"
#define QWEN2(more)      "{\"model_type\":\"qwen2\"," SIZES KV "," more "}"
#define STARCODER2(more) "{\"model_type\":\"starcoder2\"," SIZES KV "," more "}"
#define SMOLLM3(more)    "{\"model_type\":\"smollm3\"," SIZES KV "," more "}"
#define GEMMA2(more)     "{\"model_type\":\"gemma2\"," SIZES KV ",\"head_dim\":8,\"sliding_window\":9," more "}"
#define GEMMA3(more)     "{\"model_type\":\"gemma3_text\"," SIZES KV ",\"head_dim\":8,\"sliding_window\":9," more "}"
#define OLMO3(more)      "{\"model_type\":\"olmo3\"," SIZES "," more "}"
#define NEOX(more)                                                                                                     \
    "{\"model_type\":\"gpt_neox\",\"vocab_size\":99,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_"       \
    "heads\":8,"                                                                                                       \
    "\"intermediate_size\":99,\"max_position_embeddings\":128," more "}"
#define GLM4(more) "{\"model_type\":\"glm4\"," SIZES KV ",\"head_dim\":8,\"rms_norm_eps\":1e-5," more "}"
#define LATENT                                                                                                         \
    ",\"kv_lora_rank\":16,\"qk_nope_head_dim\":6,\"qk_rope_head_dim\":4,\"moe_intermediate_size\":20,"                 \
    "\"n_routed_experts\":8,\"num_experts_per_tok\":2,\"n_shared_experts\":1,\"routed_scaling_factor\":2,"
#define DEEPSEEK(more)                                                                                                 \
    "{\"model_type\":\"deepseek_v2\"," SIZES LATENT                                                                    \
    "\"v_head_dim\":9,\"q_lora_rank\":null,\"first_k_dense_replace\":1," more "}"
#define DEEPSEEK3(more)                                                                                                \
    "{\"model_type\":\"deepseek_v3\"," SIZES LATENT                                                                    \
    "\"v_head_dim\":9,\"first_k_dense_replace\":1,\"n_group\":1,\"topk_group\":1," more "}"
#define PHI3(more) "{\"model_type\":\"phi3\"," SIZES KV ",\"rms_norm_eps\":1e-5," more "}"
#define GPT2(more)                                                                                                     \
    "{\"model_type\":\"gpt2\",\"n_positions\":8,\"n_embd\":8,\"n_layer\":1,\"n_head\":2,\"vocab_size\":9," more "}"
static const struct {
    const char *text, *part;
} refused[] = {
    {"", "config.json:1: no JSON"},
    {"{\"model_type\":\"llama\",\n\"a\": }", "config.json:2: no JSON"},
    {"{\"a\":1,\"a\":2}", "no JSON: duplicate"},
    {"[]", "JSON object"},
    {"{}", "model_type is missing"},
    {"{\"model_type\":\"rwkv\"}", "model_type is \"rwkv\""},
    {"{\"model_type\":\"a\\nb\"}", "model_type is \"a\\nb\""},
    {"{\"model_type\":7}", "model_type is 7"},
    {LLAMA("\"architectures\":[\"LlamaForSequenceClassification\"]"),
     "architectures is [\"LlamaForSequenceClassification\"]"},
    {LLAMA("\"hidden_act\":\"gelu\""), "hidden_act is \"gelu\""},
    {LLAMA("\"attention_bias\":true"), "attention_bias is true"},
    {LLAMA("\"mlp_bias\":true"), "mlp_bias is true"},
    {LLAMA("\"quantization_config\":{\"bits\":4}"), "quantization_config is {\"bits\":4}"},
    {LLAMA("\"partial_rotary_factor\":0.5"), "partial_rotary_factor is 0.5"},
    {LLAMA("\"rope_scaling\":{\"type\":\"su\",\"factor\":2.0}"), "rope_scaling.type is \"su\""},
    {LLAMA("\"rope_scaling\":{\"rope_type\":\"longrope\"}"), "positive numbers short_factor"},
    {LLAMA("\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,1],\"long_factor\":[1,1,1]}"),
     "model.rope_scaling.long_factor has 3 positive numbers"},
    {LLAMA("\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,1],\"long_factor\":[1,1,1,\"1\"]}"),
     "positive numbers long_factor"},
    {LLAMA("\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1,-1,1],\"long_factor\":[1,1,1,1]}"),
     "positive numbers short_factor"},
    {LLAMA("\"rope_scaling\":{\"rope_type\":\"longrope\",\"short_factor\":[1,1,1,1],\"long_factor\":[1,1,1,1]},"
           "\"original_max_position_embeddings\":1"),
     "original_max_sequence is 1"},
    {LLAMA("\"rope_parameters\":{\"rope_type\":\"dynamic\"}"), "rope_scaling of type dynamic needs a number factor"},
    {LLAMA("\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":\"4\"}"), "yarn needs a number factor"},
    {LLAMA("\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"truncate\":0}"), "truncate is 0"},
    {LLAMA("\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"mscale\":\"1\"}"), "mscale is \"1\""},
    {LLAMA("\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"beta_fast\":0.5}"), "beta_slow 1 must be positive"},
    {SMOLLM3("\"use_cache\":true"), "rope_theta is missing"},
    {SMOLLM3("\"rope_theta\":1e6,\"use_sliding_window\":true"), "use_sliding_window is true"},
    {SMOLLM3("\"rope_theta\":1e6,\"no_rope_layers\":[0,1]"), "no_rope_layers is [0,1]"},
    {SMOLLM3("\"rope_theta\":1e6,\"no_rope_layers\":[1]"), "no_rope_layers is [1]"},
    {SMOLLM3("\"rope_theta\":1e6,\"no_rope_layer_interval\":0"), "no_rope_layer_interval is 0"},
    {LLAMA("\"rope_parameters\":{\"full_attention\":{}}"), "differ between layers"},
    {LLAMA("\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8}"), "low_freq_factor"},
    {LLAMA("\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4}"),
     "original_max_position_embeddings"},
    {LLAMA("\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":0.5,\"low_freq_factor\":1,\"high_freq_factor\":4,"
           "\"original_max_position_embeddings\":9}"),
     "factor is 0.5"},
    {LLAMA("\"rope_scaling\":7"), "rope_scaling is 7"},
    {LLAMA("\"rope_theta\":\"big\""), "rope_theta is \"big\""},
    {LLAMA("\"rope_theta\":-1"), "rope_theta is -1"},
    {LLAMA("\"tie_word_embeddings\":1"), "tie_word_embeddings is 1"},
    {LLAMA("\"rms_norm_eps\":\"1e-5\""), "rms_norm_eps is \"1e-5\""},
    {LLAMA("\"head_dim\":0"), "head_dim is 0"},
    {LLAMA("\"head_dim\":7"), "head_size is 7"},
    {LLAMA("\"bos_token_id\":\"<s>\""), "bos_token_id is \"<s>\""},
    {LLAMA("\"eos_token_id\":[1,null]"), "eos_token_id is [1,null]"},
    {"{\"model_type\":\"llama\"," SIZES ",\"num_key_value_heads\":3}", "model.heads 8 must be a multiple"},
    {"{\"model_type\":\"llama\"," SIZES ",\"num_key_value_heads\":4294967298}", "num_key_value_heads is 4294967298"},
    {"{\"model_type\":\"llama\"," SIZES ",\"num_key_value_heads\":2.0}", "num_key_value_heads is 2.0"},
    {"{\"model_type\":\"llama\",\"vocab_size\":9}", "num_hidden_layers is missing"},
    {"{\"model_type\":\"mistral\"," SIZES "}", "num_key_value_heads is missing"},
    {"{\"model_type\":\"qwen3\"," SIZES KV "}", "head_dim is missing"},
    {"{\"model_type\":\"qwen3\"," SIZES KV ",\"head_dim\":8,\"attention_bias\":true}", "attention_bias is true"},
    {"{\"model_type\":\"mistral\"," SIZES KV ",\"sliding_window\":0}", "sliding_window is 0"},
    {"{\"model_type\":\"mistral\"," SIZES KV ",\"sliding_window\":\"4k\"}", "sliding_window is \"4k\""},
    {QWEN2("\"use_sliding_window\":true,\"sliding_window\":9,\"max_window_layers\":\"1\""),
     "max_window_layers is \"1\""},
    {QWEN2("\"layer_types\":[\"full_attention\",\"sliding_attention\"]"), "layer_types is ["},
    {QWEN2("\"layer_types\":[\"full_attention\"]"), "layer_types is ["},
    {QWEN2("\"layer_types\":[\"sliding_attention\",\"sliding_attention\"]"), "layer_types is ["},
    {QWEN2("\"layer_types\":[\"linear_attention\",\"full_attention\"]"), "layer_types is ["},
    {QWEN2("\"layer_types\":{}"), "layer_types is {}"},
    {STARCODER2("\"use_bias\":false"), "use_bias is false"},
    {STARCODER2("\"hidden_act\":\"silu\""), "hidden_act is \"silu\""},
    {GEMMA2("\"attn_logit_softcapping\":0"), "attn_logit_softcapping is 0"},
    {GEMMA2("\"attn_logit_softcapping\":-50.0"), "attn_logit_softcapping is -50.0"},
    {GEMMA2("\"final_logit_softcapping\":\"30\""), "final_logit_softcapping is \"30\""},
    {GEMMA2("\"sliding_window_pattern\":6"), "sliding_window_pattern is 6"},
    {GEMMA3("\"hidden_activation\":\"gelu\""), "hidden_activation is \"gelu\""},
    {GEMMA3("\"attn_logit_softcapping\":50.0"), "attn_logit_softcapping is 50.0"},
    {GEMMA3("\"final_logit_softcapping\":30.0"), "final_logit_softcapping is 30.0"},
    {GEMMA3("\"use_bidirectional_attention\":true"), "use_bidirectional_attention is true"},
    {GEMMA3("\"query_pre_attn_scalar\":0"), "query_pre_attn_scalar is 0"},
    {GEMMA3("\"query_pre_attn_scalar\":\"256\""), "query_pre_attn_scalar is \"256\""},
    {GEMMA3("\"sliding_window_pattern\":0"), "sliding_window_pattern is 0"},
    {GEMMA3("\"rope_local_base_freq\":\"1e4\""), "rope_local_base_freq is \"1e4\""},
    {GEMMA3("\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"},"
            "\"sliding_attention\":{\"rope_type\":\"linear\",\"factor\":2}}"),
     "rope_parameters.sliding_attention.rope_type is \"linear\""},
    {"{\"model_type\":\"gemma3_text\"," SIZES KV "}", "head_dim is missing"},
    {"{\"model_type\":\"granite\"," SIZES ",\"logits_scaling\":\"8\"}", "logits_scaling is \"8\""},
    {OLMO3("\"rope_theta\":10000"), "rope_theta is 10000: transformers 4 and 5 disagree"},
    {OLMO3("\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":500000}"), "rope_parameters is {"},
    {OLMO3("\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}"), "rope_parameters is {"},
    {OLMO3("\"attention_bias\":true"), "attention_bias is true"},
    {PHI3("\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}"), "type longrope needs a list"},
    {PHI3("\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1],\"long_factor\":[1]}"),
     "short_factor has 1 positive"},
    {PHI3("\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}"), "rope_scaling.type is \"linear\""},
    {PHI3("\"partial_rotary_factor\":1.5"), "partial_rotary_factor is 1.5"},
    {PHI3("\"partial_rotary_factor\":0.1"), "partial_rotary_factor is 0.1"},
    {PHI3("\"partial_rotary_factor\":\"0.5\""), "partial_rotary_factor is \"0.5\""},
    {PHI3("\"rope_parameters\":{\"partial_rotary_factor\":0.4}"), "rotary_size is 3"},
    {GLM4("\"attention_bias\":false"), "attention_bias is false"},
    {GLM4("\"hidden_act\":\"gelu\""), "hidden_act is \"gelu\""},
    {GLM4("\"sliding_window\":0,\"partial_rotary_factor\":0"), "partial_rotary_factor is 0"},

    {"{\"model_type\":\"glm4\"," SIZES KV ",\"rms_norm_eps\":1e-5}", "head_dim is missing"},
    {"{\"model_type\":\"glm4\"," SIZES ",\"head_dim\":8,\"rms_norm_eps\":1e-5}", "num_key_value_heads is missing"},
    {DEEPSEEK("\"attention_bias\":1"), "attention_bias is 1"},
    {DEEPSEEK("\"moe_layer_freq\":2"), "moe_layer_freq is 2"},
    {DEEPSEEK("\"topk_method\":\"noaux_tc\""), "topk_method is \"noaux_tc\""},
    {DEEPSEEK("\"topk_method\":\"group_limited_greedy\",\"n_group\":3,\"topk_group\":1"), "router_groups is 3"},
    {DEEPSEEK("\"scoring_func\":\"sigmoid\""), "scoring_func is \"sigmoid\""},
    {DEEPSEEK("\"norm_topk_prob\":true"), "norm_topk_prob is true"},
    {DEEPSEEK("\"num_key_value_heads\":2"), "model.kv_heads is 2"},
    {DEEPSEEK("\"rope_scaling\":{\"type\":\"linear\",\"factor\":4,\"mscale_all_dim\":1}"), "mscale_all_dim is 1"},
    {DEEPSEEK("\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,\"mscale\":-1}"), "mscale is -1"},
    {DEEPSEEK3("\"q_lora_rank\":0"), "q_lora_rank is 0"},
    {DEEPSEEK3("\"use_cache\":true"), "q_lora_rank is missing"},
    {DEEPSEEK3("\"q_lora_rank\":8,\"rope_interleave\":false"), "rope_interleave is false"},
    {DEEPSEEK3("\"q_lora_rank\":8,\"topk_method\":\"greedy\""), "topk_method is \"greedy\""},
    {DEEPSEEK3("\"q_lora_rank\":8,\"norm_topk_prob\":false"), "norm_topk_prob is false"},
    {"{\"model_type\":\"deepseek_v2\"," SIZES LATENT "\"v_head_dim\":9,\"q_lora_rank\":null}",
     "first_k_dense_replace is missing"},
    {"{\"model_type\":\"deepseek_v3\"," SIZES LATENT
     "\"v_head_dim\":9,\"q_lora_rank\":null,\"first_k_dense_replace\":0}",
     "n_group is missing"},
    {"{\"model_type\":\"deepseek_v3\"," SIZES LATENT "\"q_lora_rank\":null}", "v_head_dim is missing"},
    {NEOX("\"hidden_act\":\"gelu_new\""), "hidden_act is \"gelu_new\""},
    {NEOX("\"use_parallel_residual\":false"), "use_parallel_residual is false"},
    {NEOX("\"attention_bias\":false"), "attention_bias is false"},
    {NEOX("\"rotary_pct\":0"), "rotary_pct is 0"},
    {GPT2("\"activation_function\":\"relu\""), "activation_function is \"relu\""},
    {GPT2("\"scale_attn_weights\":false"), "scale_attn_weights is false"},
    {GPT2("\"scale_attn_by_inverse_layer_idx\":true"), "scale_attn_by_inverse_layer_idx is true"},
    {GPT2("\"add_cross_attention\":true"), "add_cross_attention is true"},
    {GPT2("\"n_inner\":0"), "n_inner is 0"},
    {GPT2("\"layer_norm_epsilon\":2"), "norm_epsilon is 2"},
    {"{\"model_type\":\"gpt2\",\"n_positions\":8,\"n_embd\":9,\"n_layer\":1,\"n_head\":2,\"vocab_size\":9}",
     "no multiple"},
};

TEST(what_cannot_be_computed_is_refused_by_key_and_value)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        model_shape s;
        json_t *tokens = NULL;
        if (parsed_config(&s, &tokens, refused[i].text) != STATUS_FAILED)
            fail_msg("accepted: %s", refused[i].text);
        workfolder_message_has(refused[i].part);
        workfolder_message_has("config.json");
        assert_null(tokens);
    }
    model_shape s; /* and the frames they were put into are good ones */
    assert_int_equal(parsed_config(&s, NULL, LLAMA("\"use_cache\":true")), STATUS_OK);
    assert_int_equal(parsed_config(&s, NULL, QWEN2("\"use_cache\":true")), STATUS_OK);
    assert_int_equal(parsed_config(&s, NULL, GPT2("\"use_cache\":true")), STATUS_OK);
    assert_int_equal(parsed_config(&s, NULL, NEOX("\"use_cache\":true")), STATUS_OK);
    assert_int_equal(s.rotary_size, 2); /* a quarter of 8 */
    assert_int_equal(parsed_config(&s, NULL, NEOX("\"rotary_pct\":1.0,\"rotary_emb_base\":500")), STATUS_OK);
    assert_true(s.rotary_size == 0 && s.rope_theta == 500);
    assert_int_equal(parsed_config(&s, NULL, PHI3("\"partial_rotary_factor\":0.5,\"rope_scaling\":null")), STATUS_OK);
    assert_int_equal(s.rotary_size, 4);
    assert_int_equal(parsed_config(&s, NULL,
                                   PHI3("\"original_max_position_embeddings\":32,\"rope_scaling\":{\"type\":\"su\","
                                        "\"short_factor\":[1,2,3,4],\"long_factor\":[5,6,7,8]}")),
                     STATUS_OK);
    assert_true(s.rope_scaling.kind == ROPE_LONGROPE && s.rope_scaling.factor == 4); /* of 128 / 32 */
    assert_true(s.rope_scaling.short_factor[3] == 4 && s.rope_scaling.long_factor[3] == 8);
    assert_true(s.rope_scaling.attention_factor == sqrt(1 + log(4) / log(32)));
    assert_int_equal(parsed_config(&s, NULL, GLM4("\"use_cache\":true")), STATUS_OK);
    assert_int_equal(s.rotary_size, 4); /* half of 8 */
    assert_int_equal(parsed_config(&s, NULL, GLM4("\"partial_rotary_factor\":1.0")), STATUS_OK);
    assert_int_equal(s.rotary_size, 0);
    assert_int_equal(parsed_config(&s, NULL, GEMMA2("\"use_cache\":true")), STATUS_OK);
    assert_true(s.attention_cap == 50 && s.logits_cap == 30 && s.full_every == 2 && s.sliding_window == 9);
    assert_int_equal(parsed_config(&s, NULL, GEMMA2("\"attn_logit_softcapping\":null,\"final_logit_softcapping\":7")),
                     STATUS_OK);
    assert_true(s.attention_cap == 0 && s.logits_cap == 7);
    assert_int_equal(parsed_config(&s, NULL, GEMMA3("\"use_cache\":true")), STATUS_OK);
    assert_int_equal(parsed_config(&s, NULL, DEEPSEEK("\"head_dim\":64,\"n_group\":8,\"topk_group\":3")), STATUS_OK);
    assert_true(s.head_size == 10 && s.rope_head_size == 4 && s.v_head_size == 9 && s.kv_heads == 8);
    assert_true(s.router_groups == 0 && s.router_scale == 2 && !s.router_renormalise); /* greedy */
    assert_int_equal(parsed_config(&s, NULL,
                                   DEEPSEEK3("\"q_lora_rank\":7,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4,"
                                             "\"mscale\":1.0,\"mscale_all_dim\":1.0}")),
                     STATUS_OK);
    assert_true(s.q_lora_rank == 7 && s.router_renormalise && s.rope_scaling.attention_factor == 1);
    assert_true(shape_scores_factor(&s) == (0.1 * log(4) + 1) * (0.1 * log(4) + 1));
    assert_int_equal(parsed_config(&s, NULL, STARCODER2("\"use_bias\":true")), STATUS_OK);
    assert_int_equal(s.sliding_window, 0); /* unsaid, unlike Mistral's */
}

TEST_MAIN(NULL, NULL)
