/* Keys of config.json about experts: how many there are, which layers have them, how a router weighs them and whether a
 * loss balances it. */
#include <limits.h>

#include "memory/log.h"
#include "models/huggingface_keys.h"

/* What transformers takes where config.json is silent about the coefficient. */
#define DEFAULT_LOSS   0.001
#define HUNDREDTH_LOSS 0.01

/* transformers 5 writes one of these keys where 4 wrote the other; it reads both. */
static status read_count(const huggingface_reader *r, model_shape *s)
{
    static const char *const keys[] = {"num_experts", "num_local_experts"};
    for (int i = 0; i < 2; i++) {
        const json_t *value = huggingface_ask(r, keys[i]);
        json_int_t n = json_is_integer(value) ? json_integer_value(value) : 0;
        if (value && (n < 1 || n > INT_MAX))
            return huggingface_refuse(r, keys[i], value, "it must be a whole number from 1 and not absurdly large");
        if (value && s->experts && n != s->experts)
            return huggingface_refuse(r, keys[i], value, "num_experts and num_local_experts must be the same");
        s->experts = value ? (int)n : s->experts;
    }
    return s->experts
               ? STATUS_OK
               : status_fail(STATUS_FAILED, "%s: num_local_experts or num_experts is missing: a %s model needs it",
                             r->path, shape_traits_of(s->architecture)->name);
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
    const json_t *list = huggingface_ask(r, "mlp_only_layers");
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

static status read_sparse(const huggingface_reader *r, model_shape *s)
{
    const json_t *step = huggingface_ask(r, "decoder_sparse_step");
    if (step && !(json_is_integer(step) && json_integer_value(step) > 0 && json_integer_value(step) <= INT_MAX))
        return huggingface_refuse(r, "decoder_sparse_step", step, "it must be a number of layers");
    s->experts_every = step ? (int)json_integer_value(step) : 1;
    return read_dense(r, s);
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
                            : huggingface_refuse(r, "router_aux_loss_coef", huggingface_ask(r, "router_aux_loss_coef"),
                                                 "it must not be negative");
}

status huggingface_read_experts(const huggingface_reader *r, model_shape *s)
{
    s->experts_every = 1;
    if (shape_has_key(s->architecture, KEY_EXPERTS_TWICE))
        TRY(read_count(r, s));
    if (shape_has_key(s->architecture, KEY_SPARSE_LAYERS))
        TRY(read_sparse(r, s));
    if (shape_has_key(s->architecture, KEY_NORM_TOPK))
        TRY(huggingface_read_bool(r, &s->router_renormalise, "norm_topk_prob", false));
    return read_loss(r, s);
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
    json_object_set_new(root, "output_router_logits", json_boolean(s->router_loss > 0));
    if (s->router_loss > 0)
        json_object_set_new(root, "router_aux_loss_coef", json_real(s->router_loss));
}
