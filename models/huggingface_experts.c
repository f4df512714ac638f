/* Keys of config.json about experts: how many there are, which layers have them, how a router weighs them and whether a
 * loss balances it. */
#include <limits.h>
#include <string.h>

#include "memory/log.h"
#include "models/huggingface_keys.h"

/* Default coefficients of transformers where config.json is silent. */
#define DEFAULT_LOSS   0.001
#define HUNDREDTH_LOSS 0.01

static const char method_key[] = "topk_method", method_plain[] = "greedy", method_groups[] = "group_limited_greedy";

/* transformers 5 writes one of these keys where 4 wrote the other; it reads both. */
static status read_count(const huggingface_reader *r, model_shape *s)
{
    static const char *const keys[] = {"num_experts", "num_local_experts"};
    for (int i = 0; i < 2; i++) {
        const json_t *value = huggingface_key(r, keys[i]);
        json_int_t n = json_is_integer(value) ? json_integer_value(value) : 0;
        if (value && (n < 1 || n > INT_MAX))
            return huggingface_refuse(r, keys[i], value, "it must be a whole number from 1 and not absurdly large");
        if (value && s->experts && n != s->experts)
            return huggingface_refuse(r, keys[i], value, "num_experts and num_local_experts must be the same");
        s->experts = value ? (int)n : s->experts;
    }
    return s->experts ? STATUS_OK : huggingface_refuse_missing(r, s, "num_local_experts or num_experts");
}

static bool names(const json_t *list, json_int_t layer)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == layer)
            return true;
    return false;
}

/* mlp_only_layers has the first layers without experts, and may have others that have none anyway. */
static status read_dense(const huggingface_reader *r, model_shape *s)
{
    TRY(huggingface_read_count(r, &s->experts_every, "decoder_sparse_step", 1, 1, "it must be a number of layers"));
    const json_t *list = huggingface_key(r, "mlp_only_layers");
    bool good = !list || json_is_array(list);
    for (size_t i = 0; i < json_array_size(list); i++)
        good = good && json_is_integer(json_array_get(list, i));
    if (!good)
        return huggingface_refuse(r, "mlp_only_layers", list, "it must be a list of layers");
    while (s->dense_layers < s->layers && names(list, s->dense_layers))
        s->dense_layers++;
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_int_t layer = json_integer_value(json_array_get(list, i));
        if (layer >= s->dense_layers && layer < s->layers && (layer + 1) % s->experts_every == 0)
            return huggingface_refuse(r, "mlp_only_layers", list,
                                      "phalanx has layers without experts first, and those that decoder_sparse_step "
                                      "leaves out");
    }
    return STATUS_OK;
}

/* Reads whether topk_method, where there is one, asks for groups. */
static status read_method(const huggingface_reader *r, const model_shape *s, bool *groups)
{
    const json_t *value = shape_has_key(s->architecture, KEY_TOPK_METHOD) ? huggingface_key(r, method_key) : NULL;
    const char *word = json_is_string(value) ? json_string_value(value) : "";
    *groups = !shape_has_key(s->architecture, KEY_TOPK_METHOD) || !strcmp(word, method_groups);
    if (value && !*groups && strcmp(word, method_plain) != 0)
        return huggingface_refuse(r, method_key, value, "phalanx has greedy and group_limited_greedy");
    return STATUS_OK;
}

static status read_groups(const huggingface_reader *r, model_shape *s)
{
    bool groups;
    TRY(huggingface_read_number(r, &s->router_scale, r->root, "routed_scaling_factor", 1));
    if (!(s->router_scale > 0))
        return huggingface_refuse(r, "routed_scaling_factor", huggingface_key(r, "routed_scaling_factor"),
                                  "it must be positive");
    s->router_scale = s->router_scale == 1 ? 0 : s->router_scale;
    TRY(read_method(r, s, &groups));
    if (!groups)
        return STATUS_OK;
    TRY(huggingface_read_count(r, &s->router_groups, "n_group", 1, 1, "it must be a whole number from 1"));
    TRY(huggingface_read_count(r, &s->router_groups_kept, "topk_group", 1, 1, "it must be a whole number from 1"));
    if (s->router_groups > 1)
        return STATUS_OK;
    if (s->router_groups_kept > 1)
        return huggingface_refuse(r, "topk_group", huggingface_key(r, "topk_group"), "n_group is 1");
    s->router_groups = s->router_groups_kept = 0;
    return STATUS_OK;
}

/* transformers adds the loss to the model's only where it is asked for the router's logits. */
static status read_loss(const huggingface_reader *r, model_shape *s)
{
    const double unsaid = shape_has_key(s->architecture, KEY_LOSS_HUNDREDTH) ? HUNDREDTH_LOSS : DEFAULT_LOSS;
    bool asked;
    double coefficient;
    TRY(huggingface_read_bool(r, &asked, "output_router_logits", false));
    TRY(huggingface_read_number(r, &coefficient, r->root, "router_aux_loss_coef", unsaid));
    s->router_loss = asked ? coefficient : 0;
    return coefficient >= 0 ? STATUS_OK
                            : huggingface_refuse(r, "router_aux_loss_coef", huggingface_key(r, "router_aux_loss_coef"),
                                                 "it must not be negative");
}

status huggingface_read_experts(const huggingface_reader *r, model_shape *s)
{
    s->experts_every = 1;
    /* weights are stored as they are, or in mxfp4; the names of its tensors tell */
    const json_t *stored = shape_has_key(s->architecture, KEY_MXFP4) ? huggingface_key(r, "quantization_config") : NULL,
                 *method = json_object_get(stored, "quant_method");
    if (stored && !(json_is_string(method) && !strcmp(json_string_value(method), "mxfp4")))
        return huggingface_refuse(r, "quantization_config", stored, "phalanx reads unquantized weights, and mxfp4");
    if (shape_has_key(s->architecture, KEY_EXPERTS_TWICE))
        TRY(read_count(r, s));
    if (shape_has_key(s->architecture, KEY_SPARSE_LAYERS))
        TRY(read_dense(r, s));
    if (shape_has_key(s->architecture, KEY_NORM_TOPK))
        TRY(huggingface_read_bool(r, &s->router_renormalise, "norm_topk_prob", false));
    if (shape_has_key(s->architecture, KEY_SHARED))
        TRY(huggingface_read_count(r, &s->shared_experts, "n_shared_experts", 0, 1, "it must be a whole number"));
    if (shape_has_key(s->architecture, KEY_DENSE_FIRST))
        TRY(huggingface_read_count(r, &s->dense_layers, "first_k_dense_replace", 0, 1, "it must be a whole number"));
    if (shape_has_key(s->architecture, KEY_GROUPS))
        TRY(read_groups(r, s));
    int blocks = 0; /* one MTP module is trained here; several are left out */
    if (shape_has_key(s->architecture, KEY_MTP))
        TRY(huggingface_read_count(r, &blocks, "num_nextn_predict_layers", 0, 0, "it must be a whole number"));
    s->mtp_layers = blocks == 1;
    return shape_has_key(s->architecture, KEY_ROUTER_LOSS) ? read_loss(r, s) : STATUS_OK;
}

void huggingface_put_experts(json_t *root, const model_shape *s)
{
    if (shape_has_key(s->architecture, KEY_SPARSE_LAYERS)) {
        json_t *first = json_array();
        for (int i = 0; i < s->dense_layers && i < s->layers; i++)
            json_array_append_new(first, json_integer(i));
        json_object_set_new(root, "mlp_only_layers", first);
        json_object_set_new(root, "decoder_sparse_step", json_integer(s->experts_every ? s->experts_every : 1));
    }
    if (shape_has_key(s->architecture, KEY_NORM_TOPK))
        json_object_set_new(root, "norm_topk_prob", json_boolean(s->router_renormalise));
    if (shape_has_key(s->architecture, KEY_SHARED))
        json_object_set_new(root, "n_shared_experts", json_integer(s->shared_experts));
    if (shape_has_key(s->architecture, KEY_DENSE_FIRST))
        json_object_set_new(root, "first_k_dense_replace", json_integer(s->dense_layers));
    if (shape_has_key(s->architecture, KEY_GROUPS)) {
        json_object_set_new(root, "routed_scaling_factor", json_real(s->router_scale > 0 ? s->router_scale : 1));
        json_object_set_new(root, "n_group", json_integer(s->router_groups ? s->router_groups : 1));
        json_object_set_new(root, "topk_group", json_integer(s->router_groups ? s->router_groups_kept : 1));
    }
    if (shape_has_key(s->architecture, KEY_TOPK_METHOD))
        json_object_set_new(root, method_key, json_string(s->router_groups ? method_groups : method_plain));
    if (!shape_has_key(s->architecture, KEY_ROUTER_LOSS))
        return;
    json_object_set_new(root, "output_router_logits", json_boolean(s->router_loss > 0));
    if (s->router_loss > 0)
        json_object_set_new(root, "router_aux_loss_coef", json_real(s->router_loss));
}
