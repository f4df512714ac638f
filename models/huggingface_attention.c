/* Keys of config.json about attention: which layers have a window, which rotate, and the sizes of latents. */
#include <limits.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "models/huggingface_keys.h"

/* Defaults of transformers where config.json is silent. */
#define DEFAULT_WINDOW        4096
#define SHORT_WINDOW          128
#define DEFAULT_WINDOW_LAYERS 28
#define DEFAULT_UNROTATED     4
#define DEFAULT_PATTERN       6
#define DEFAULT_FOURTH        4
#define DEFAULT_SECOND        2

/* Finds the full_first and full_every under which exactly the layers that are not `full` have a window: the layers at
 * the beginning that see all tokens, and after the first with a window either none, or one at equal distances. */
static bool find_pattern(model_shape *s, const bool *full)
{
    int first = 0, at[2], found = 0;
    while (first < s->layers && full[first])
        first++;
    for (int i = first; i < s->layers && found < 2; i++)
        if (full[i])
            at[found++] = i;
    const int every[] = {0, found ? at[0] + 1 : 0, found == 2 ? at[1] - at[0] : 0};
    for (int i = 0; i < 6; i++) {
        s->full_first = i % 2 ? first : 0;
        s->full_every = every[i / 2];
        bool same = true;
        for (int k = 0; k < s->layers; k++)
            same = same && (shape_layer(s, k).window == 0) == full[k];
        if (same)
            return true;
    }
    return false;
}

/* Reads which layers have the window, by name. */
static status read_layer_types(const huggingface_reader *r, model_shape *s, const json_t *types)
{
    size_t count = json_array_size(types), sliding = 0, every = 0;
    AUTO_FREE bool *full = must_calloc(count + 1, sizeof *full);
    for (size_t i = 0; i < count; i++) {
        const char *name = json_string_value(json_array_get(types, i));
        full[i] = name && !strcmp(name, "full_attention");
        every += full[i];
        sliding += name && !strcmp(name, "sliding_attention");
    }
    const char *wrong = NULL;
    if (!json_is_array(types) || sliding + every != count || count != (size_t)s->layers)
        wrong = "it must name full_attention or sliding_attention for every layer";
    else if (sliding && !s->sliding_window)
        wrong = "sliding_attention needs sliding_window and use_sliding_window";
    else if (!sliding)
        s->sliding_window = 0;
    else if (!find_pattern(s, full))
        wrong = "phalanx has windows but for some first layers, or one layer of each so many";
    return wrong ? huggingface_refuse(r, "layer_types", types, wrong) : STATUS_OK;
}

static status read_pattern(const huggingface_reader *r, model_shape *s)
{
    s->full_every = DEFAULT_FOURTH;
    if (shape_has_key(s->architecture, KEY_FULL_FOURTH))
        return STATUS_OK;
    static const char key[] = "sliding_window_pattern";
    const bool second = shape_has_key(s->architecture, KEY_ALTERNATING);
    const json_t *every = huggingface_key(r, key);
    if (second && every && !(json_is_integer(every) && json_integer_value(every) == DEFAULT_SECOND))
        return huggingface_refuse(r, key, every, "this architecture has 2 where there is no layer_types");
    return huggingface_read_count(r, &s->full_every, key, 1, second ? DEFAULT_SECOND : DEFAULT_PATTERN,
                                  "it must be a number of layers");
}

status huggingface_read_window(const huggingface_reader *r, model_shape *s)
{
    bool by_layer = shape_has_key(s->architecture, KEY_LAYER_WINDOWS), use = true;
    bool pattern = shape_has_key(s->architecture, KEY_WINDOW_PATTERN);
    if (!by_layer && !pattern && !shape_has_key(s->architecture, KEY_WINDOW))
        return STATUS_OK;
    if (by_layer)
        TRY(huggingface_read_bool(r, &use, "use_sliding_window", false));
    const json_t *window = huggingface_raw_key(r, "sliding_window");
    if (use && window && !json_is_null(window) && !(json_is_integer(window) && json_integer_value(window) > 0))
        return huggingface_refuse(r, "sliding_window", window, "it must be a number of tokens or null");
    int64_t unsaid = shape_has_key(s->architecture, KEY_SHORT_WINDOW)    ? SHORT_WINDOW
                     : shape_has_key(s->architecture, KEY_WINDOW_UNSAID) ? DEFAULT_WINDOW
                                                                         : 0;
    s->sliding_window = !use ? 0 : window ? json_integer_value(window) : unsaid; /* null means 0 */
    if (!by_layer && !pattern)
        return STATUS_OK;
    const json_t *types = huggingface_key(r, "layer_types");
    if (types)
        return read_layer_types(r, s, types);
    if (pattern)
        return read_pattern(r, s);
    const json_t *below = huggingface_key(r, "max_window_layers");
    if (below && !json_is_integer(below))
        return huggingface_refuse(r, "max_window_layers", below, "it must be a number of layers");
    int64_t first = below ? json_integer_value(below) : DEFAULT_WINDOW_LAYERS;
    if (first >= s->layers)
        s->sliding_window = 0;
    if (s->sliding_window)
        s->full_first = first > 0 ? (int)first : 0;
    return STATUS_OK;
}

void huggingface_put_window(json_t *root, const model_shape *s)
{
    bool by_layer = shape_has_key(s->architecture, KEY_LAYER_WINDOWS);
    bool pattern = shape_has_key(s->architecture, KEY_WINDOW_PATTERN);
    if (by_layer || pattern || shape_has_key(s->architecture, KEY_WINDOW))
        json_object_set_new(root, "sliding_window", s->sliding_window ? json_integer(s->sliding_window) : json_null());
    if (!by_layer && !pattern)
        return;
    if (by_layer) {
        json_object_set_new(root, "use_sliding_window", json_boolean(s->sliding_window > 0));
        json_object_set_new(root, "max_window_layers", json_integer(s->sliding_window ? s->full_first : s->layers));
    }
    if (by_layer && (!s->sliding_window || !s->full_every))
        return;
    json_t *types = json_array();
    for (int i = 0; i < s->layers; i++)
        json_array_append_new(types, json_string(shape_layer(s, i).window ? "sliding_attention" : "full_attention"));
    json_object_set_new(root, "layer_types", types);
}

/* Reads which layers rotate queries and keys: 1, or 0 for the last of each group of layers. */
status huggingface_read_unrotated(const huggingface_reader *r, model_shape *s)
{
    const json_t *list = huggingface_key(r, "no_rope_layers");
    TRY(huggingface_read_count(r, &s->unrotated_every, "no_rope_layer_interval", 1, DEFAULT_UNROTATED,
                               "it must be a number of layers"));
    if (!list)
        return STATUS_OK;
    size_t count = json_array_size(list), first = 0;
    while (first < count && json_integer_value(json_array_get(list, first)) == 1)
        first++;
    s->unrotated_every = first < count ? (int)first + 1 : 0;
    bool good = json_is_array(list) && count == (size_t)s->layers;
    for (size_t i = 0; good && i < count; i++) {
        const json_t *rotates = json_array_get(list, i);
        good = json_is_integer(rotates) && json_integer_value(rotates) == (shape_layer(s, (int)i).rope_theta > 0);
    }
    return good ? STATUS_OK
                : huggingface_refuse(r, "no_rope_layers", list,
                                     "phalanx has 1 for every layer, but 0 for the last of each so many, if any");
}

void huggingface_put_unrotated(json_t *root, const model_shape *s)
{
    json_t *list = json_array();
    for (int i = 0; i < s->layers; i++)
        json_array_append_new(list, json_integer(shape_layer(s, i).rope_theta > 0));
    json_object_set_new(root, "no_rope_layers", list);
    json_object_set_new(root, "no_rope_layer_interval",
                        json_integer(s->unrotated_every ? s->unrotated_every : s->layers + 1));
}

/* ---- latent attention: a head's elements are said in two parts, and a missing latent of queries is null ---- */

/* Where these are absent, transformers takes the sizes of one large model. */
static const char *const needed[] = {"n_shared_experts", "first_k_dense_replace", "routed_scaling_factor", NULL};

static status check_needed(const huggingface_reader *r, const model_shape *s)
{
    for (const char *const *key = needed; *key; key++)
        if (!huggingface_key(r, *key))
            return huggingface_refuse_missing(r, s, *key);
    if (!huggingface_raw_key(r, "q_lora_rank"))
        return status_fail(STATUS_FAILED, "%s: q_lora_rank is missing: a %s model needs it, or null", r->path,
                           shape_traits_of(s->architecture)->name);
    for (int i = 0; i < 2 && !shape_has_key(s->architecture, KEY_TOPK_METHOD); i++) {
        const char *const key = i ? "topk_group" : "n_group";
        if (!huggingface_key(r, key))
            return huggingface_refuse_missing(r, s, key);
    }
    return STATUS_OK;
}

status huggingface_read_latent(const huggingface_reader *r, model_shape *s)
{
    static const char key[] = "qk_nope_head_dim";
    const json_t *value = huggingface_key(r, key);
    TRY(check_needed(r, s));
    if (!value)
        return huggingface_refuse_missing(r, s, key);
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
