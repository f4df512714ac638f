/* Keys of config.json about latent attention that are no size of their own: a head's elements are said in two parts,
 * and a missing latent of queries is null. */
#include <limits.h>
#include <stddef.h>

#include "models/huggingface_keys.h"

/* Where these are absent, transformers takes the sizes of one large model. */
static const char *const needed[] = {"n_shared_experts", "first_k_dense_replace", "routed_scaling_factor", NULL};

static status check_needed(const huggingface_reader *r, const model_shape *s)
{
    const char *name = shape_traits_of(s->architecture)->name;
    for (const char *const *key = needed; *key; key++)
        if (!huggingface_ask(r, *key))
            return status_fail(STATUS_FAILED, "%s: %s is missing: a %s model needs it", r->path, *key, name);
    if (!huggingface_said(r, "q_lora_rank"))
        return status_fail(STATUS_FAILED, "%s: q_lora_rank is missing: a %s model needs it, or null", r->path, name);
    for (int i = 0; i < 2 && !shape_has_key(s->architecture, KEY_TOPK_METHOD); i++) {
        const char *const key = i ? "topk_group" : "n_group";
        if (!huggingface_ask(r, key))
            return status_fail(STATUS_FAILED, "%s: %s is missing: a %s model needs it", r->path, key, name);
    }
    return STATUS_OK;
}

status huggingface_read_latent(const huggingface_reader *r, model_shape *s)
{
    static const char key[] = "qk_nope_head_dim";
    const json_t *value = huggingface_ask(r, key);
    TRY(check_needed(r, s));
    if (!value)
        return status_fail(STATUS_FAILED, "%s: %s is missing: a %s model needs it", r->path, key,
                           shape_traits_of(s->architecture)->name);
    const json_int_t n = json_is_integer(value) ? json_integer_value(value) : 0;
    if (n < 1 || n > INT_MAX - s->rope_head_size)
        return huggingface_refuse(r, key, value, "it must be a whole number from 1 and not absurdly large");
    s->head_size = (int)n + s->rope_head_size;
    return huggingface_read_bool(r, &s->attention_bias, "attention_bias", false);
}

void huggingface_put_latent(json_t *root, const model_shape *s)
{
    json_object_set_new(root, "qk_nope_head_dim", json_integer(s->head_size - s->rope_head_size));
    json_object_set_new(root, "attention_bias", json_boolean(s->attention_bias));
    json_object_set_new(root, "v_head_dim", json_integer(s->v_head_size ? s->v_head_size : s->head_size));
    json_object_set_new(root, "q_lora_rank", s->q_lora_rank ? json_integer(s->q_lora_rank) : json_null());
}
