#include "models/huggingface.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "models/names.h"

const char *const huggingface_token_keys[] = {"bos_token_id", "eos_token_id", "pad_token_id", NULL};

#define HAS(name)  UINT64_C(1) << TRAIT_##name
#define WITH(name) UINT64_C(1) << KEY_##name

/* Sets of keys: no architecture has all of them. UNREAD: a key that is written only, for it says nothing about the
 * forward pass. */
#define ALWAYS 0
#define NEVER  UINT64_MAX
#define UNREAD (UINT64_MAX - 1)

enum { EVERY = FAMILY_COUNT };

/* Keys that must have one of these values, as JSON, in the family's files (of EVERY one), where the architecture has
 * the trait `needs` and lacks `unless`; absent or null is well. The first value is written for architectures with the
 * key `written`. */
static const struct {
    int family;
    uint64_t needs, unless, written;
    const char *key, *value[2];
} demands[] = {
    {EVERY, 0, 0, NEVER, "quantization_config", {NULL}},
    {FAMILY_GPT2, 0, 0, ALWAYS, "activation_function", {"\"gelu_new\"", "\"gelu_pytorch_tanh\""}},
    {FAMILY_GPT2, 0, 0, ALWAYS, "scale_attn_weights", {"true"}},
    {FAMILY_GPT2, 0, 0, ALWAYS, "scale_attn_by_inverse_layer_idx", {"false"}},
    {FAMILY_GPT2, 0, 0, ALWAYS, "add_cross_attention", {"false"}},
    {FAMILY_GPT2, 0, UNREAD, ALWAYS, "attn_pdrop", {"0.0"}},
    {FAMILY_LLAMA, HAS(GATED), HAS(GELU_GATE), ALWAYS, "hidden_act", {"\"silu\"", "\"swish\""}},
    {FAMILY_LLAMA, 0, HAS(GATED), ALWAYS, "hidden_act", {"\"gelu_pytorch_tanh\"", "\"gelu_new\""}},
    {FAMILY_LLAMA, 0, 0, NEVER, "partial_rotary_factor", {"1.0", "1"}},
    /* An architecture that always has the bias has it without a key. */
    {FAMILY_LLAMA, 0, HAS(QKV_BIAS), WITH(ATTENTION_BIAS), "attention_bias", {"false"}},
    {FAMILY_LLAMA, 0, HAS(MLP_BIAS), WITH(MLP_BIAS), "mlp_bias", {"false"}},
    {FAMILY_STARCODER2, 0, 0, ALWAYS, "use_bias", {"true"}},
    {FAMILY_GEMMA, 0, 0, ALWAYS, "hidden_activation", {"\"gelu_pytorch_tanh\""}},
    {FAMILY_GEMMA, 0, 0, NEVER, "attn_logit_softcapping", {"null"}},
    {FAMILY_GEMMA, 0, 0, NEVER, "final_logit_softcapping", {"null"}},
    {FAMILY_GEMMA, 0, 0, NEVER, "use_bidirectional_attention", {"false"}},
    {FAMILY_SMOLLM3, 0, 0, ALWAYS, "use_sliding_window", {"false"}},
};

typedef enum kind { INT, LONG, NUMBER } kind;

/* Keys that are numbers, by family; NULL: the family has no such key. */
static const struct {
    size_t offset;
    kind kind;
    uint64_t needed;
    const char *keys[FAMILY_COUNT];
} numbers[] = {
#define HUGGINGFACE(kind, member, needed, ...) {offsetof(model_shape, member), kind, needed, {__VA_ARGS__}},
#include "models/sizes.def"
};

enum { NUMBERS = sizeof numbers / sizeof *numbers, DEMANDS = sizeof demands / sizeof *demands };

/* What transformers takes where config.json is silent. */
#define DEFAULT_THETA         10000.0
#define DEFAULT_WINDOW        4096
#define DEFAULT_WINDOW_LAYERS 28
#define DEFAULT_UNROTATED     4
#define DEFAULT_PATTERN       6
#define DEFAULT_SCALAR        256.0
#define DEFAULT_RMS_EPSILON   1e-6
#define DEFAULT_LAYER_EPSILON 1e-5

/* ---- reading ---- */

typedef struct reader {
    const json_t *root;
    const char *path;
} reader;

/* NULL if absent or null */
static const json_t *get(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

static char *dump(const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6));
    return text ? text : must_strdup("?");
}

static status refuse(const reader *r, const char *key, const json_t *value, const char *why)
{
    char *text = dump(value);
    status s = status_fail(STATUS_FAILED, "%s: %s is %.60s: %s", r->path, key, text, why);
    free(text);
    return s;
}

static bool has_keys(shape_architecture a, uint64_t keys)
{
    return (shape_traits_of(a)->keys & keys) == keys;
}

static bool is_demanded(int demand, shape_architecture a)
{
    int family = demands[demand].family;
    uint64_t traits = shape_traits_of(a)->traits, needs = demands[demand].needs, unless = demands[demand].unless;
    if (family != EVERY && !names_of_family(a, (shape_family)family))
        return false;
    return (traits & needs) == needs && (unless == UNREAD || !(traits & unless));
}

static status check_demands(const reader *r, shape_architecture a)
{
    for (int i = 0; i < DEMANDS; i++) {
        const json_t *value = get(r->root, demands[i].key);
        if (!value || !is_demanded(i, a) || demands[i].unless == UNREAD)
            continue;
        char *text = dump(value), why[128];
        bool good = false;
        for (int k = 0; k < 2 && demands[i].value[k]; k++)
            good = good || !strcmp(text, demands[i].value[k]);
        free(text);
        snprintf(why, sizeof why,
                 demands[i].value[0] ? "phalanx has only %s" : "phalanx reads unquantized weights only",
                 demands[i].value[0]);
        if (!good)
            return refuse(r, demands[i].key, value, why);
    }
    return STATUS_OK;
}

static status read_numbers(const reader *r, model_shape *s)
{
    for (int i = 0; i < NUMBERS; i++) {
        const char *key = names_choose(s->architecture, numbers[i].keys);
        if (!key || numbers[i].needed == UNREAD)
            continue;
        const json_t *value = get(r->root, key);
        char *into = (char *)s + numbers[i].offset;
        if (!value && has_keys(s->architecture, numbers[i].needed))
            return status_fail(STATUS_FAILED, "%s: %s is missing: a %s model needs it", r->path, key,
                               shape_traits_of(s->architecture)->name);
        if (!value)
            continue;
        if (numbers[i].kind == NUMBER) {
            if (!json_is_number(value))
                return refuse(r, key, value, "it must be a number");
            *(double *)(void *)into = json_number_value(value);
            continue;
        }
        json_int_t n = json_is_integer(value) ? json_integer_value(value) : 0;
        if (n < 1 || n > (numbers[i].kind == INT ? INT_MAX : 1LL << 48))
            return refuse(r, key, value, "it must be a whole number from 1 and not absurdly large");
        if (numbers[i].kind == INT)
            *(int *)(void *)into = (int)n;
        else
            *(int64_t *)(void *)into = n;
    }
    return STATUS_OK;
}

static status read_bool(const reader *r, bool *out, const char *key, bool fallback)
{
    const json_t *value = get(r->root, key);
    if (value && !json_is_boolean(value))
        return refuse(r, key, value, "it must be true or false");
    *out = value ? json_is_true(value) : fallback;
    return STATUS_OK;
}

/* "gpt2, llama and mistral": those with one of the keys; 0: all. */
static char *list_architectures(uint64_t keys)
{
    char *text = must_strdup("");
    int left = 0;
    for (int a = 0; a < SHAPE_ARCHITECTURES; a++)
        left += !keys || shape_traits_of((shape_architecture)a)->keys & keys;
    for (int a = 0; a < SHAPE_ARCHITECTURES; a++) {
        const shape_traits *row = shape_traits_of((shape_architecture)a);
        if (keys && !(row->keys & keys))
            continue;
        char *longer = must_format("%s%s%s", text, row->name, --left > 1 ? ", " : left ? " and " : "");
        free(text);
        text = longer;
    }
    return text;
}

static status read_architecture(const reader *r, model_shape *s)
{
    const json_t *type = json_object_get(r->root, "model_type"), *list = get(r->root, "architectures");
    if (!type)
        return status_fail(STATUS_FAILED, "%s: model_type is missing: is this a Hugging Face config.json?", r->path);
    s->architecture = shape_architecture_named(json_is_string(type) ? json_string_value(type) : "");
    if (s->architecture == SHAPE_ARCHITECTURES) {
        char *known = list_architectures(0), *why = must_format("phalanx knows %s", known);
        status result = refuse(r, "model_type", type, why);
        free(known);
        free(why);
        return result;
    }
    const shape_traits *row = shape_traits_of(s->architecture);
    const json_t *first = json_array_get(list, 0);
    const char *name = json_is_string(first) ? json_string_value(first) : "";
    if (list && strcmp(name, row->causal) != 0 && strcmp(name, row->bare) != 0) {
        char why[128];
        snprintf(why, sizeof why, "phalanx reads %s", row->causal);
        return refuse(r, "architectures", list, why);
    }
    return STATUS_OK;
}

/* What each kind of scaling says, and whether it must. */
static const struct {
    shape_rope_kind kind;
    bool needed;
    const char *key;
    size_t offset;
} scales[] = {
    {ROPE_LLAMA3, true, "factor", offsetof(shape_rope_scaling, factor)},
    {ROPE_LLAMA3, true, "low_freq_factor", offsetof(shape_rope_scaling, low_frequency_factor)},
    {ROPE_LLAMA3, true, "high_freq_factor", offsetof(shape_rope_scaling, high_frequency_factor)},
    {ROPE_LINEAR, true, "factor", offsetof(shape_rope_scaling, factor)},
    {ROPE_DYNAMIC, true, "factor", offsetof(shape_rope_scaling, factor)},
    {ROPE_YARN, false, "factor", offsetof(shape_rope_scaling, factor)},
    {ROPE_YARN, false, "beta_fast", offsetof(shape_rope_scaling, beta_fast)},
    {ROPE_YARN, false, "beta_slow", offsetof(shape_rope_scaling, beta_slow)},
    {ROPE_YARN, false, "attention_factor", offsetof(shape_rope_scaling, attention_factor)},
};

enum { SCALES = sizeof scales / sizeof *scales };

static const char original_key[] = "original_max_position_embeddings";

static bool has_original(shape_rope_kind of)
{
    return of == ROPE_LLAMA3 || of == ROPE_YARN;
}

static status read_original(const reader *r, model_shape *s, const json_t *rope)
{
    shape_rope_scaling *out = &s->rope_scaling;
    const json_t *original = get(rope, original_key);
    if (original ? !json_is_integer(original) : out->kind == ROPE_LLAMA3)
        return status_fail(STATUS_FAILED, "%s: rope_scaling of type %s needs a whole number %s", r->path,
                           shape_rope_words[out->kind], original_key);
    out->original_max_sequence = original ? json_integer_value(original) : s->max_sequence;
    if (out->factor == 0) /* of yarn: what transformers takes, too */
        out->factor = (double)s->max_sequence / (double)out->original_max_sequence;
    return STATUS_OK;
}

/* DeepSeek's pair of keys is one factor. */
static status read_yarn(const reader *r, shape_rope_scaling *out, const json_t *rope)
{
    const json_t *scale = get(rope, "mscale"), *all = get(rope, "mscale_all_dim"), *whole = get(rope, "truncate");
    if (whole && !json_is_boolean(whole))
        return refuse(r, "truncate", whole, "it must be true or false");
    out->fractional = whole && !json_is_true(whole);
    if ((scale && !json_is_number(scale)) || (all && !json_is_number(all)))
        return refuse(r, "mscale", scale ? scale : all, "mscale and mscale_all_dim must be numbers");
    double a = scale ? json_number_value(scale) : 0, b = all ? json_number_value(all) : 0, ln = log(out->factor);
    if (out->attention_factor == 0 && a != 0 && b != 0)
        out->attention_factor = out->factor <= 1 ? 1 : (0.1 * a * ln + 1) / (0.1 * b * ln + 1);
    return STATUS_OK;
}

static status read_scaling(const reader *r, model_shape *s, const json_t *rope)
{
    shape_rope_scaling *out = &s->rope_scaling;
    for (int i = 0; i < SCALES; i++) {
        const json_t *value = get(rope, scales[i].key);
        if (scales[i].kind != out->kind || (!value && !scales[i].needed))
            continue;
        if (!json_is_number(value))
            return status_fail(STATUS_FAILED, "%s: rope_scaling of type %s needs a number %s", r->path,
                               shape_rope_words[out->kind], scales[i].key);
        *(double *)(void *)((char *)out + scales[i].offset) = json_number_value(value);
    }
    if (has_original(out->kind))
        TRY(read_original(r, s, rope));
    return out->kind == ROPE_YARN ? read_yarn(r, out, rope) : STATUS_OK;
}

static status read_number(const reader *r, double *out, const json_t *of, const char *key, double fallback)
{
    const json_t *value = get(of, key);
    if (value && !json_is_number(value))
        return refuse(r, key, value, "it must be a number");
    *out = value ? json_number_value(value) : fallback;
    return STATUS_OK;
}

/* The base of layers with a window: beside the other keys (transformers 4), or one of two tables (5). */
static status read_local(const reader *r, model_shape *s)
{
    const json_t *local = get(get(r->root, "rope_parameters"), "sliding_attention"), *type = get(local, "rope_type");
    if (type && strcmp(json_is_string(type) ? json_string_value(type) : "", "default") != 0)
        return refuse(r, "rope_parameters.sliding_attention.rope_type", type, "phalanx has default");
    return local ? read_number(r, &s->rope_local_theta, local, "rope_theta", DEFAULT_THETA)
                 : read_number(r, &s->rope_local_theta, r->root, "rope_local_base_freq", DEFAULT_THETA);
}

/* rope_theta and rope_scaling (transformers 4) or both in rope_parameters (5). */
static status read_rope(const reader *r, model_shape *s)
{
    const json_t *scaling = get(r->root, "rope_scaling"), *both = get(r->root, "rope_parameters");
    const char *key = scaling ? "rope_scaling" : "rope_parameters";
    const json_t *rope = scaling ? scaling : both, *theta = get(scaling, "rope_theta");
    if (rope && !json_is_object(rope))
        return refuse(r, key, rope, "it must be an object");
    const json_t *full = get(rope, "full_attention");
    if (full && get(rope, "sliding_attention") && shape_has_key(s->architecture, KEY_LOCAL_THETA))
        rope = both = full;
    else if (full || get(rope, "sliding_attention"))
        return refuse(r, key, rope, "rotary tables that differ between layers are none of phalanx's");
    theta = theta ? theta : get(both, "rope_theta");
    theta = theta ? theta : get(r->root, "rope_theta");
    if (!theta && shape_has_key(s->architecture, KEY_NEEDS_THETA))
        return status_fail(STATUS_FAILED, "%s: rope_theta is missing: a %s model needs it", r->path,
                           shape_traits_of(s->architecture)->name);
    if (theta && !json_is_number(theta))
        return refuse(r, "rope_theta", theta, "it must be a number");
    s->rope_theta = theta ? json_number_value(theta) : DEFAULT_THETA;
    const json_t *partial = get(rope, "partial_rotary_factor"), *type = get(rope, "rope_type");
    if (partial && !(json_is_number(partial) && json_number_value(partial) == 1))
        return refuse(r, "partial_rotary_factor", partial, "phalanx rotates whole heads");
    type = type ? type : get(rope, "type");
    const char *name = !type ? "default" : json_is_string(type) ? json_string_value(type) : "";
    if (!strcmp(name, "default"))
        return STATUS_OK;
    for (int k = 0; k < ROPE_KINDS; k++)
        if (!strcmp(name, shape_rope_words[k])) {
            s->rope_scaling.kind = (shape_rope_kind)k;
            return read_scaling(r, s, rope);
        }
    char *path = must_format("%s.%s", key, get(rope, "rope_type") ? "rope_type" : "type");
    status result = refuse(r, path, type, "phalanx has default, llama3, linear, dynamic and yarn");
    free(path);
    return result;
}

/* Which layers rotate queries and keys: 1, or 0 for the last of each so many. */
static status read_unrotated(const reader *r, model_shape *s)
{
    const json_t *list = get(r->root, "no_rope_layers"), *every = get(r->root, "no_rope_layer_interval");
    if (every && !(json_is_integer(every) && json_integer_value(every) > 0 && json_integer_value(every) <= INT_MAX))
        return refuse(r, "no_rope_layer_interval", every, "it must be a number of layers");
    s->unrotated_every = every ? (int)json_integer_value(every) : DEFAULT_UNROTATED;
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
                : refuse(r, "no_rope_layers", list,
                         "phalanx has 1 for every layer, but 0 for the last of each so many, if any");
}

/* Do full_first and full_every say of each layer whether it sees all tokens? */
static bool repeats(const model_shape *s, const bool *full)
{
    bool same = true;
    for (int i = 0; i < s->layers; i++)
        same = same && (shape_layer(s, i).window == 0) == full[i];
    return same;
}

/* Finds the full_first and full_every that make the layers with a window those that are not `full`: the layers at the
 * beginning that see all tokens, and after the first with a window either none, or one at equal distances. */
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
        if (repeats(s, full))
            return true;
    }
    return false;
}

/* Which layers have the window, by name. */
static status read_layer_types(const reader *r, model_shape *s, const json_t *types)
{
    size_t count = json_array_size(types), sliding = 0, every = 0;
    bool *full = must_calloc(count + 1, sizeof *full);
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
    free(full);
    return wrong ? refuse(r, "layer_types", types, wrong) : STATUS_OK;
}

static status read_pattern(const reader *r, model_shape *s)
{
    const json_t *every = get(r->root, "sliding_window_pattern");
    if (every && !(json_is_integer(every) && json_integer_value(every) > 0 && json_integer_value(every) <= INT_MAX))
        return refuse(r, "sliding_window_pattern", every, "it must be a number of layers");
    s->full_every = every ? (int)json_integer_value(every) : DEFAULT_PATTERN;
    return STATUS_OK;
}

static status read_scalar(const reader *r, model_shape *s)
{
    double scalar;
    TRY(read_number(r, &scalar, r->root, "query_pre_attn_scalar", DEFAULT_SCALAR));
    if (!(scalar > 0))
        return refuse(r, "query_pre_attn_scalar", get(r->root, "query_pre_attn_scalar"), "it must be positive");
    s->attention_multiplier = 1 / sqrt(scalar);
    return STATUS_OK;
}

static status read_window(const reader *r, model_shape *s)
{
    bool by_layer = shape_has_key(s->architecture, KEY_LAYER_WINDOWS), use = true;
    bool pattern = shape_has_key(s->architecture, KEY_WINDOW_PATTERN);
    if (!by_layer && !pattern && !shape_has_key(s->architecture, KEY_WINDOW))
        return STATUS_OK;
    if (by_layer)
        TRY(read_bool(r, &use, "use_sliding_window", false));
    const json_t *window = json_object_get(r->root, "sliding_window");
    if (use && window && !json_is_null(window) && !(json_is_integer(window) && json_integer_value(window) > 0))
        return refuse(r, "sliding_window", window, "it must be a number of tokens or null");
    int64_t unsaid = shape_has_key(s->architecture, KEY_WINDOW_UNSAID) ? DEFAULT_WINDOW : 0;
    s->sliding_window = !use ? 0 : window ? json_integer_value(window) : unsaid; /* of null: 0 */
    const json_t *types = get(r->root, "layer_types"), *below = get(r->root, "max_window_layers");
    if (!by_layer && !pattern)
        return STATUS_OK;
    if (types)
        return read_layer_types(r, s, types);
    if (pattern)
        return read_pattern(r, s);
    if (below && !json_is_integer(below))
        return refuse(r, "max_window_layers", below, "it must be a number of layers");
    int64_t first = below ? json_integer_value(below) : DEFAULT_WINDOW_LAYERS;
    if (first >= s->layers)
        s->sliding_window = 0;
    if (s->sliding_window)
        s->full_first = first > 0 ? (int)first : 0;
    return STATUS_OK;
}

static status read_tokens(const reader *r, json_t *tokens)
{
    for (const char *const *key = huggingface_token_keys; *key; key++) {
        json_t *value = json_object_get(r->root, *key);
        if (!value || json_is_null(value))
            continue;
        bool good = json_is_integer(value) || (json_is_array(value) && json_array_size(value) > 0);
        for (size_t i = 0; good && i < json_array_size(value); i++)
            good = json_is_integer(json_array_get(value, i));
        if (!good)
            return refuse(r, *key, value, "it must be a token id or a list of them");
        json_object_set(tokens, *key, value);
    }
    return STATUS_OK;
}

static status read_shape(const reader *r, model_shape *s)
{
    TRY(read_architecture(r, s));
    TRY(check_demands(r, s->architecture));
    TRY(read_numbers(r, s));
    bool tied = shape_traits_of(s->architecture)->tied_embeddings;
    TRY(read_bool(r, &s->tied_embeddings, "tie_word_embeddings", tied));
    if (s->norm_epsilon == 0)
        s->norm_epsilon = shape_has(s, TRAIT_LAYER_NORM) ? DEFAULT_LAYER_EPSILON : DEFAULT_RMS_EPSILON;
    if (shape_has(s, TRAIT_ROTARY))
        TRY(read_rope(r, s));
    if (shape_has_key(s->architecture, KEY_LOCAL_THETA))
        TRY(read_local(r, s));
    if (shape_has_key(s->architecture, KEY_SCALAR))
        TRY(read_scalar(r, s));
    if (shape_has_key(s->architecture, KEY_UNROTATED))
        TRY(read_unrotated(r, s));
    TRY(read_window(r, s));
    if (!s->head_size && s->hidden_size % s->heads)
        return status_fail(STATUS_FAILED,
                           "%s: the hidden size %lld is no multiple of the %d heads, and head_dim is not given",
                           r->path, (long long)s->hidden_size, s->heads);
    shape_fill(s);
    if (shape_check(s) != STATUS_OK) {
        char *message = must_strdup(status_message());
        status result = status_fail(STATUS_FAILED, "%s: %s", r->path, message);
        free(message);
        return result;
    }
    return STATUS_OK;
}

status huggingface_parse(model_shape *shape, json_t **tokens, const char *text, size_t bytes, const char *path)
{
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error), *ids = json_object();
    reader r = {root, path};
    model_shape result = {0};
    status s;
    if (!root) {
        error.text[strcspn(error.text, "\n")] = 0;
        for (char *c = error.text; *c; c++)
            *c = (unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c;
        s = status_fail(STATUS_FAILED, "%s:%d: no JSON: %s", path, error.line > 0 ? error.line : 1, error.text);
    } else if (!json_is_object(root))
        s = status_fail(STATUS_FAILED, "%s: it must hold a JSON object", path);
    else
        s = read_shape(&r, &result);
    if (s == STATUS_OK)
        s = read_tokens(&r, ids);
    if (s == STATUS_OK)
        *shape = result;
    if (s == STATUS_OK && tokens)
        *tokens = json_incref(ids);
    json_decref(ids);
    json_decref(root);
    return s;
}

/* ---- writing ---- */

/* Does config.json of the architecture say this size? */
static bool has_number(shape_architecture a, size_t offset)
{
    for (int i = 0; i < NUMBERS; i++)
        if (numbers[i].offset == offset && names_choose(a, numbers[i].keys))
            return true;
    return false;
}

/* Shapes that phalanx has and transformers' class of that name has not. */
static status check_representable(const model_shape *s)
{
    const char *name = shape_traits_of(s->architecture)->name;
    const uint64_t windows = WITH(WINDOW) | WITH(LAYER_WINDOWS) | WITH(WINDOW_PATTERN);
    if (s->sliding_window && !(shape_traits_of(s->architecture)->keys & windows)) {
        char *have = list_architectures(windows);
        status result =
            status_fail(STATUS_FAILED, "model.sliding_window is %lld: Hugging Face's %s has no window (%s have)",
                        (long long)s->sliding_window, name, have);
        free(have);
        return result;
    }
    if (s->unrotated_every && !shape_has_key(s->architecture, KEY_UNROTATED))
        return status_fail(STATUS_FAILED, "model.unrotated_every is %d: Hugging Face's %s rotates in every layer",
                           s->unrotated_every, name);
    bool scaled = shape_has_key(s->architecture, KEY_SCALED_EMBEDDING);
    bool multiplies = (s->embedding_multiplier != 0 && !scaled) || s->residual_multiplier != 0 ||
                      (s->attention_multiplier != 0 && !shape_has_key(s->architecture, KEY_SCALAR)) ||
                      s->logits_scaling != 0;
    if (multiplies && !shape_has_key(s->architecture, KEY_MULTIPLIERS))
        return status_fail(STATUS_FAILED,
                           "model.embedding_multiplier, residual_multiplier, attention_multiplier or logits_scaling is "
                           "set: Hugging Face's %s has none of them",
                           name);
    bool by_layer = shape_traits_of(s->architecture)->keys & (WITH(LAYER_WINDOWS) | WITH(WINDOW_PATTERN));
    if (s->sliding_window && !by_layer && (s->full_first || s->full_every))
        return status_fail(STATUS_FAILED,
                           "model.full_first is %d and model.full_every %d: Hugging Face's %s has one window for all "
                           "layers",
                           s->full_first, s->full_every, name);
    bool grouped = has_number(s->architecture, offsetof(model_shape, kv_heads));
    bool sized = has_number(s->architecture, offsetof(model_shape, head_size));
    if ((!grouped && s->kv_heads != s->heads) || (!sized && (int64_t)s->heads * s->head_size != s->hidden_size))
        return status_fail(
            STATUS_FAILED,
            "Hugging Face's %s needs kv_heads = heads and heads x head_size = hidden_size; the model has "
            "%d, %d, %d and %lld",
            name, s->kv_heads, s->heads, s->head_size, (long long)s->hidden_size);
    return STATUS_OK;
}

static void put_numbers(json_t *root, const model_shape *s)
{
    for (int i = 0; i < NUMBERS; i++) {
        const char *key = names_choose(s->architecture, numbers[i].keys);
        if (!key)
            continue;
        const char *from = (const char *)s + numbers[i].offset;
        json_t *value = numbers[i].kind == NUMBER ? json_real(*(const double *)(const void *)from)
                        : numbers[i].kind == INT  ? json_integer(*(const int *)(const void *)from)
                                                  : json_integer(*(const int64_t *)(const void *)from);
        json_object_set_new(root, key, value);
    }
}

static json_t *parse_constant(const char *text)
{
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    MUST(value, "%s is no JSON", text);
    return value;
}

/* In transformers 4's words, which 5 reads too. */
static void put_rope(json_t *root, const model_shape *s)
{
    const shape_rope_scaling *r = &s->rope_scaling;
    json_object_set_new(root, "rope_theta", json_real(s->rope_theta));
    if (shape_has_key(s->architecture, KEY_LOCAL_THETA))
        json_object_set_new(root, "rope_local_base_freq", json_real(s->rope_local_theta));
    if (r->factor == 0) {
        json_object_set_new(root, "rope_scaling", json_null());
        return;
    }
    json_t *rope = json_pack("{s:s}", "rope_type", shape_rope_words[r->kind]);
    for (int i = 0; i < SCALES; i++)
        if (scales[i].kind == r->kind)
            json_object_set_new(rope, scales[i].key,
                                json_real(*(const double *)(const void *)((const char *)r + scales[i].offset)));
    if (has_original(r->kind))
        json_object_set_new(rope, original_key, json_integer(r->original_max_sequence));
    if (r->kind == ROPE_YARN)
        json_object_set_new(rope, "truncate", json_boolean(!r->fractional));
    json_object_set_new(root, "rope_scaling", rope);
}

/* The whole number whose root it is, where there is one. */
static void put_scalar(json_t *root, const model_shape *s)
{
    double scalar = 1 / (s->attention_multiplier * s->attention_multiplier);
    json_object_set_new(root, "query_pre_attn_scalar",
                        1 / sqrt(rint(scalar)) == s->attention_multiplier ? json_integer((json_int_t)rint(scalar))
                                                                          : json_real(scalar));
}

static void put_unrotated(json_t *root, const model_shape *s)
{
    json_t *list = json_array();
    for (int i = 0; i < s->layers; i++)
        json_array_append_new(list, json_integer(shape_layer(s, i).rope_theta > 0));
    json_object_set_new(root, "no_rope_layers", list);
    json_object_set_new(root, "no_rope_layer_interval",
                        json_integer(s->unrotated_every ? s->unrotated_every : s->layers + 1));
}

static void put_window(json_t *root, const model_shape *s)
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

/* Digits of reals: as few as give back the same double. */
static int precision(const model_shape *s)
{
    const double value[] = {s->norm_epsilon,
                            s->rope_theta,
                            s->rope_scaling.factor,
                            s->rope_scaling.low_frequency_factor,
                            s->rope_scaling.high_frequency_factor,
                            s->rope_scaling.beta_fast,
                            s->rope_scaling.beta_slow,
                            s->rope_scaling.attention_factor,
                            s->embedding_multiplier,
                            s->residual_multiplier,
                            s->attention_multiplier,
                            s->logits_scaling,
                            s->dropout};
    for (unsigned long i = 0; i < sizeof value / sizeof *value; i++) {
        char text[40];
        snprintf(text, sizeof text, "%.15g", value[i]);
        if (strtod(text, NULL) != value[i])
            return 17;
    }
    return 15;
}

status huggingface_text(char **out, const model_shape *s, dtype type, const json_t *tokens)
{
    static const char *const dtypes[DTYPE_COUNT] = {
        [DTYPE_FP32] = "float32", [DTYPE_BF16] = "bfloat16", [DTYPE_FP16] = "float16", [DTYPE_FP64] = "float64"};
    TRY(check_representable(s));
    MUST(dtypes[type], "weights of type %s", dtype_name(type));
    json_t *root = json_pack("{s:[s], s:s, s:s, s:b, s:b}", "architectures", shape_traits_of(s->architecture)->causal,
                             "model_type", shape_traits_of(s->architecture)->name, "torch_dtype", dtypes[type],
                             "tie_word_embeddings", s->tied_embeddings, "use_cache", 1);
    put_numbers(root, s);
    for (int i = 0; i < DEMANDS; i++)
        if (is_demanded(i, s->architecture) && has_keys(s->architecture, demands[i].written))
            json_object_set_new(root, demands[i].key, parse_constant(demands[i].value[0]));
    if (shape_has(s, TRAIT_ROTARY))
        put_rope(root, s);
    if (shape_has_key(s->architecture, KEY_UNROTATED))
        put_unrotated(root, s);
    if (shape_has_key(s->architecture, KEY_SCALAR))
        put_scalar(root, s);
    put_window(root, s);
    /* An absent key would mean the class's own default, an id that may be none of this vocabulary's. */
    for (const char *const *key = huggingface_token_keys; *key; key++)
        json_object_set_new(root, *key,
                            json_object_get(tokens, *key) ? json_incref(json_object_get(tokens, *key)) : json_null());
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(precision(s)));
    MUST(text, "out of host memory");
    *out = must_format("%s\n", text);
    free(text);
    json_decref(root);
    return STATUS_OK;
}
