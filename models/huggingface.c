#include "models/huggingface.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "models/huggingface_keys.h"
#include "models/names.h"

const char *const huggingface_token_keys[] = {"bos_token_id", "eos_token_id", "pad_token_id", NULL};

#define HAS(name)  UINT64_C(1) << TRAIT_##name
#define WITH(name) UINT64_C(1) << KEY_##name

/* Sets of keys: no architecture has all of them. UNREAD: a key that is written only, because the forward pass does not
 * depend on it. */
#define ALWAYS 0
#define NEVER  UINT64_MAX
#define UNREAD (UINT64_MAX - 1)

enum { EVERY = FAMILY_COUNT };

/* Keys that must have one of these values, as JSON, in the family's files (of EVERY one), where the architecture has
 * the trait `needs` and lacks `unless`; absent and null are allowed. The first value is written for architectures with
 * the key `written`. */
static const struct {
    int family;
    uint64_t needs, unless, written;
    const char *key, *value[2];
} demands[] = {
    {EVERY, 0, HAS(CLAMPED), NEVER, "quantization_config", {NULL}},
    {FAMILY_GPT2, 0, 0, ALWAYS, "activation_function", {"\"gelu_new\"", "\"gelu_pytorch_tanh\""}},
    {FAMILY_GPT2, 0, 0, ALWAYS, "scale_attn_weights", {"true"}},
    {FAMILY_GPT2, 0, 0, ALWAYS, "scale_attn_by_inverse_layer_idx", {"false"}},
    {FAMILY_GPT2, 0, 0, ALWAYS, "add_cross_attention", {"false"}},
    {FAMILY_GPT2, 0, UNREAD, ALWAYS, "attn_pdrop", {"0.0"}},
    {FAMILY_LLAMA, HAS(GATED), HAS(GELU_GATE), ALWAYS, "hidden_act", {"\"silu\"", "\"swish\""}},
    {FAMILY_LLAMA, 0, HAS(GATED), ALWAYS, "hidden_act", {"\"gelu_pytorch_tanh\"", "\"gelu_new\""}},
    /* An architecture that always has the bias has it without a key; latent attention reads the key. */
    {FAMILY_LLAMA, 0, HAS(QKV_BIAS) | HAS(LATENT_KEYS), WITH(ATTENTION_BIAS), "attention_bias", {"false"}},
    {FAMILY_LLAMA, 0, HAS(MLP_BIAS), WITH(MLP_BIAS), "mlp_bias", {"false"}},
    {FAMILY_STARCODER2, 0, 0, ALWAYS, "use_bias", {"true"}},
    {FAMILY_GLM4, 0, 0, ALWAYS, "attention_bias", {"true"}},
    {FAMILY_GLM4_MOE, 0, 0, ALWAYS, "attention_bias", {"true"}},
    {FAMILY_GLM4_MOE, 0, 0, ALWAYS, "norm_topk_prob", {"true"}},
    {FAMILY_DEEPSEEK, 0, 0, ALWAYS, "moe_layer_freq", {"1"}},
    {FAMILY_DEEPSEEK, HAS(SIGMOID_ROUTER), 0, ALWAYS, "rope_interleave", {"true"}},
    {FAMILY_DEEPSEEK, HAS(SIGMOID_ROUTER), 0, ALWAYS, "scoring_func", {"\"sigmoid\""}},
    {FAMILY_DEEPSEEK, HAS(SIGMOID_ROUTER), 0, ALWAYS, "topk_method", {"\"noaux_tc\""}},
    {FAMILY_DEEPSEEK, HAS(SIGMOID_ROUTER), 0, ALWAYS, "norm_topk_prob", {"true"}},
    {FAMILY_DEEPSEEK, 0, HAS(SIGMOID_ROUTER), ALWAYS, "scoring_func", {"\"softmax\""}},
    {FAMILY_DEEPSEEK, 0, HAS(SIGMOID_ROUTER), ALWAYS, "norm_topk_prob", {"false"}},
    {FAMILY_GPT_OSS, 0, 0, ALWAYS, "attention_bias", {"true"}},
    {FAMILY_NEOX, 0, 0, ALWAYS, "hidden_act", {"\"gelu\""}},
    {FAMILY_NEOX, 0, 0, ALWAYS, "use_parallel_residual", {"true"}},
    {FAMILY_NEOX, 0, 0, ALWAYS, "attention_bias", {"true"}},
    {FAMILY_GEMMA, 0, 0, ALWAYS, "hidden_activation", {"\"gelu_pytorch_tanh\""}},
    {FAMILY_GEMMA, HAS(QK_NORM), 0, NEVER, "attn_logit_softcapping", {"null"}},
    {FAMILY_GEMMA, HAS(QK_NORM), 0, NEVER, "final_logit_softcapping", {"null"}},
    {FAMILY_GEMMA, 0, 0, NEVER, "use_bidirectional_attention", {"false"}},
    {FAMILY_SMOLLM3, 0, 0, ALWAYS, "use_sliding_window", {"false"}},
    {FAMILY_QWEN3_MOE, 0, 0, ALWAYS, "use_sliding_window", {"false"}},
    {FAMILY_MIXTRAL, 0, 0, NEVER, "router_jitter_noise", {"0.0", "0"}},
    {FAMILY_OLMOE, 0, 0, NEVER, "clip_qkv", {"null"}},
};

typedef enum kind { INT, LONG, NUMBER } kind;

/* Keys that are numbers, by family; NULL: the family has no such key. */
static const struct {
    size_t offset;
    kind kind;
    uint64_t needed;
    const char *becomes; /* the configuration's key */
    const char *keys[FAMILY_COUNT];
} numbers[] = {
#define HUGGINGFACE(kind, member, needed, ...)                                                                         \
    {offsetof(model_shape, member), kind, needed, "model." #member, {__VA_ARGS__}},
#include "models/sizes.def"
};

enum { NUMBERS = sizeof numbers / sizeof *numbers, DEMANDS = sizeof demands / sizeof *demands };

/* Defaults of transformers where config.json is silent. */
#define DEFAULT_SCALAR     256.0
#define DEFAULT_SCORES_CAP 50.0
#define DEFAULT_LOGITS_CAP 30.0
#define DEFAULT_EPSILON    1e-6 /* epsilon of architectures that do not default to their row's */

/* ---- reading ---- */

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

static status check_demands(const huggingface_reader *r, shape_architecture a)
{
    for (int i = 0; i < DEMANDS; i++) {
        if (!is_demanded(i, a) || demands[i].unless == UNREAD)
            continue;
        const json_t *value = huggingface_key(r, demands[i].key);
        if (!value)
            continue;
        AUTO_FREE char *text = huggingface_value_text(value);
        char why[128];
        bool good = false;
        for (int k = 0; k < 2 && demands[i].value[k]; k++)
            good = good || !strcmp(text, demands[i].value[k]);
        snprintf(why, sizeof why,
                 demands[i].value[0] ? "phalanx has only %s" : "phalanx reads unquantized weights only",
                 demands[i].value[0]);
        if (!good)
            return huggingface_refuse(r, demands[i].key, value, why);
    }
    return STATUS_OK;
}

static status read_numbers(const huggingface_reader *r, model_shape *s)
{
    for (int i = 0; i < NUMBERS; i++) {
        const char *key = names_choose(s->architecture, numbers[i].keys);
        if (!key || numbers[i].needed == UNREAD)
            continue;
        const json_t *value = huggingface_key(r, key);
        char *into = (char *)s + numbers[i].offset;
        if (!value && has_keys(s->architecture, numbers[i].needed))
            return huggingface_refuse_missing(r, s, key);
        if (!value)
            continue;
        if (numbers[i].kind == NUMBER) {
            if (!json_is_number(value))
                return huggingface_refuse(r, key, value, "it must be a number");
            *(double *)(void *)into = json_number_value(value);
            continue;
        }
        json_int_t n = json_is_integer(value) ? json_integer_value(value) : 0;
        if (n < 1 || n > (numbers[i].kind == INT ? INT_MAX : 1LL << 48))
            return huggingface_refuse(r, key, value, "it must be a whole number from 1 and not absurdly large");
        if (numbers[i].kind == INT)
            *(int *)(void *)into = (int)n;
        else
            *(int64_t *)(void *)into = n;
    }
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

/* Kimi K2's files have a model_type that transformers lacks, and a class that it has. */
static const char kimi_k2[] = "kimi_k2";

static status read_architecture(const huggingface_reader *r, model_shape *s)
{
    const json_t *type = huggingface_raw_key(r, "model_type"), *list = huggingface_key(r, "architectures");
    if (!type)
        return status_fail(STATUS_FAILED, "%s: model_type is missing: is this a Hugging Face config.json?", r->path);
    const char *word = json_is_string(type) ? json_string_value(type) : "";
    s->architecture = shape_architecture_named(strcmp(word, kimi_k2) ? word : "deepseek_v3");
    if (s->architecture == SHAPE_ARCHITECTURES) {
        AUTO_FREE char *known = list_architectures(0), *why = must_format("phalanx knows %s", known);
        return huggingface_refuse(r, "model_type", type, why);
    }
    const shape_traits *row = shape_traits_of(s->architecture);
    const json_t *first = json_array_get(list, 0);
    const char *name = json_is_string(first) ? json_string_value(first) : "";
    if (list && strcmp(name, row->causal) != 0 && strcmp(name, row->bare) != 0) {
        char why[128];
        snprintf(why, sizeof why, "phalanx reads %s", row->causal);
        return huggingface_refuse(r, "architectures", list, why);
    }
    return STATUS_OK;
}

static status read_scalar(const huggingface_reader *r, model_shape *s)
{
    double scalar;
    TRY(huggingface_read_number(r, &scalar, r->root, "query_pre_attn_scalar", DEFAULT_SCALAR));
    if (!(scalar > 0))
        return huggingface_refuse(r, "query_pre_attn_scalar", huggingface_key(r, "query_pre_attn_scalar"),
                                  "it must be positive");
    s->attention_multiplier = 1 / sqrt(scalar);
    return STATUS_OK;
}

/* A key that is absent means transformers' own cap, null none. */
static status read_cap(const huggingface_reader *r, double *cap, const char *key, double unsaid)
{
    const json_t *value = huggingface_raw_key(r, key);
    *cap = !value ? unsaid : json_is_number(value) ? json_number_value(value) : 0;
    return *cap > 0 || json_is_null(value) ? STATUS_OK
                                           : huggingface_refuse(r, key, value, "it must be a positive number or null");
}

static status read_tokens(const huggingface_reader *r, json_t *tokens)
{
    for (const char *const *key = huggingface_token_keys; *key; key++) {
        const json_t *value = huggingface_key(r, *key);
        if (!value)
            continue;
        bool good = json_is_integer(value) || (json_is_array(value) && json_array_size(value) > 0);
        for (size_t i = 0; good && i < json_array_size(value); i++)
            good = json_is_integer(json_array_get(value, i));
        if (!good)
            return huggingface_refuse(r, *key, value, "it must be a token id or a list of them");
        json_object_set(tokens, *key, (json_t *)(uintptr_t)value);
    }
    return STATUS_OK;
}

static status read_shape(const huggingface_reader *r, model_shape *s)
{
    TRY(read_architecture(r, s));
    TRY(check_demands(r, s->architecture));
    TRY(read_numbers(r, s));
    if (shape_has_key(s->architecture, KEY_LATENT))
        TRY(huggingface_read_latent(r, s));
    bool tied = shape_traits_of(s->architecture)->tied_embeddings;
    TRY(huggingface_read_bool(r, &s->tied_embeddings, "tie_word_embeddings", tied));
    if (s->norm_epsilon == 0)
        s->norm_epsilon = shape_has_key(s->architecture, KEY_EPSILON_UNSAID)
                              ? DEFAULT_EPSILON
                              : shape_traits_of(s->architecture)->norm_epsilon;
    if (shape_has(s, TRAIT_ROTARY))
        TRY(huggingface_read_rope(r, s));
    if (shape_has_key(s->architecture, KEY_SCALAR))
        TRY(read_scalar(r, s));
    if (shape_has_key(s->architecture, KEY_CAPS)) {
        TRY(read_cap(r, &s->attention_cap, "attn_logit_softcapping", DEFAULT_SCORES_CAP));
        TRY(read_cap(r, &s->logits_cap, "final_logit_softcapping", DEFAULT_LOGITS_CAP));
    }
    if (shape_has_key(s->architecture, KEY_UNROTATED))
        TRY(huggingface_read_unrotated(r, s));
    if (shape_has_key(s->architecture, KEY_EXPERTS))
        TRY(huggingface_read_experts(r, s));
    if (shape_has_key(s->architecture, KEY_QK_NORM))
        TRY(huggingface_read_bool(r, &s->qk_norm, "use_qk_norm", false));
    TRY(huggingface_read_window(r, s));
    if (!s->head_size && s->hidden_size % s->heads)
        return status_fail(STATUS_FAILED,
                           "%s: the hidden size %lld is no multiple of the %d heads, and head_dim is not given",
                           r->path, (long long)s->hidden_size, s->heads);
    shape_fill(s);
    return shape_check(s) == STATUS_OK ? STATUS_OK : status_context(STATUS_FAILED, "%s", r->path);
}

status huggingface_parse(model_shape *shape, json_t **tokens, const char *text, size_t bytes, const char *path)
{
    return huggingface_parse_asking(shape, tokens, NULL, text, bytes, path);
}

status huggingface_parse_asking(model_shape *shape, json_t **tokens, json_t *asked, const char *text, size_t bytes,
                                const char *path)
{
    json_error_t error;
    json_auto_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error), *ids = json_object();
    huggingface_reader r = {root, path, asked};
    model_shape result = {0};
    if (!root) {
        error.text[strcspn(error.text, "\n")] = 0;
        for (char *c = error.text; *c; c++)
            *c = (unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c;
        return status_fail(STATUS_FAILED, "%s:%d: no JSON: %s", path, error.line > 0 ? error.line : 1, error.text);
    }
    if (!json_is_object(root))
        return status_fail(STATUS_FAILED, "%s: it must hold a JSON object", path);
    TRY(read_shape(&r, &result));
    TRY(read_tokens(&r, ids));
    *shape = result;
    if (tokens)
        *tokens = TAKE(ids);
    return STATUS_OK;
}

/* ---- meanings of keys ---- */

static const struct {
    const char *key, *becomes, *meaning; /* becomes NULL: silent */
} known[] = {
#define CONFIG_KEY(key, becomes, meaning) {key, becomes, meaning},
#define SILENT_KEY(key)                   {key, NULL, ""},
#include "models/keys.def"
};

enum { KNOWN = sizeof known / sizeof *known };

static bool find_demand(huggingface_meaning *out, shape_architecture a, const char *key)
{
    for (int i = 0; i < DEMANDS; i++) {
        if (strcmp(demands[i].key, key) != 0 || !is_demanded(i, a))
            continue;
        out->role = demands[i].unless == UNREAD ? HUGGINGFACE_SILENT : HUGGINGFACE_DEMANDED;
        for (int k = 0; k < 2; k++)
            out->only[k] = demands[i].value[k];
        return true;
    }
    return false;
}

huggingface_meaning huggingface_means(shape_architecture a, const char *key)
{
    huggingface_meaning m = {HUGGINGFACE_UNKNOWN, "", "", {NULL}};
    for (int i = 0; i < NUMBERS; i++) {
        const char *name = names_choose(a, numbers[i].keys);
        if (!name || strcmp(name, key) != 0)
            continue;
        m.role = numbers[i].needed == UNREAD ? HUGGINGFACE_SILENT : HUGGINGFACE_TAKEN;
        m.becomes = numbers[i].needed == UNREAD ? "" : numbers[i].becomes;
        return m;
    }
    if (find_demand(&m, a, key))
        return m;
    for (int i = 0; i < KNOWN; i++)
        if (!strcmp(known[i].key, key)) {
            m.role = known[i].becomes ? HUGGINGFACE_TAKEN : HUGGINGFACE_SILENT;
            m.becomes = known[i].becomes ? known[i].becomes : "";
            m.meaning = known[i].meaning;
            return m;
        }
    return m;
}

const char *huggingface_silent(int index)
{
    for (int i = 0; i < KNOWN; i++)
        if (!known[i].becomes && index-- == 0)
            return known[i].key;
    return NULL;
}

/* ---- writing ---- */

/* True if config.json of the architecture has this size. */
static bool has_number(shape_architecture a, size_t offset)
{
    for (int i = 0; i < NUMBERS; i++)
        if (numbers[i].offset == offset && names_choose(a, numbers[i].keys))
            return true;
    return false;
}

/* Refuses shapes that phalanx has and transformers' class of that name lacks. */
static status check_representable(const model_shape *s)
{
    const char *name = shape_traits_of(s->architecture)->name;
    const uint64_t windows = WITH(WINDOW) | WITH(LAYER_WINDOWS) | WITH(WINDOW_PATTERN);
    if (s->sliding_window && !(shape_traits_of(s->architecture)->keys & windows)) {
        AUTO_FREE char *have = list_architectures(windows);
        return status_fail(STATUS_FAILED, "model.sliding_window is %lld: Hugging Face's %s has no window (%s have)",
                           (long long)s->sliding_window, name, have);
    }
    if (s->unrotated_every && !shape_has_key(s->architecture, KEY_UNROTATED))
        return status_fail(STATUS_FAILED, "model.unrotated_every is %d: Hugging Face's %s rotates in every layer",
                           s->unrotated_every, name);
    if (s->rope_scaling.factor != 0 && s->rope_scaling.kind != ROPE_LONGROPE &&
        shape_has_key(s->architecture, KEY_LONGROPE))
        return status_fail(STATUS_FAILED, "model.rope_scaling.kind is %s: Hugging Face's %s has none but longrope",
                           shape_rope_words[s->rope_scaling.kind], name);
    if (s->rotary_size && !shape_has_key(s->architecture, KEY_PARTIAL))
        return status_fail(STATUS_FAILED, "model.rotary_size is %d: Hugging Face's %s rotates whole heads",
                           s->rotary_size, name);
    bool scaled = shape_has_key(s->architecture, KEY_SCALED_EMBEDDING);
    bool multiplies = (s->embedding_multiplier != 0 && !scaled) || s->residual_multiplier != 0 ||
                      (s->attention_multiplier != 0 && !shape_has_key(s->architecture, KEY_SCALAR)) ||
                      s->logits_scaling != 0;
    if (multiplies && !shape_has_key(s->architecture, KEY_MULTIPLIERS))
        return status_fail(STATUS_FAILED,
                           "model.embedding_multiplier, residual_multiplier, attention_multiplier or logits_scaling is "
                           "set: Hugging Face's %s has none of them",
                           name);
    if ((s->attention_cap != 0 || s->logits_cap != 0) && !shape_has_key(s->architecture, KEY_CAPS))
        return status_fail(STATUS_FAILED, "model.attention_cap or logits_cap is set: Hugging Face's %s has neither",
                           name);
    bool by_layer = shape_traits_of(s->architecture)->keys & (WITH(LAYER_WINDOWS) | WITH(WINDOW_PATTERN));
    if (s->sliding_window && !by_layer && (s->full_first || s->full_every))
        return status_fail(STATUS_FAILED,
                           "model.full_first is %d and model.full_every %d: Hugging Face's %s has one window for all "
                           "layers",
                           s->full_first, s->full_every, name);
    const uint64_t first = WITH(SPARSE_LAYERS) | WITH(DENSE_FIRST);
    if ((s->dense_layers && !(shape_traits_of(s->architecture)->keys & first)) ||
        (s->experts_every > 1 && !shape_has_key(s->architecture, KEY_SPARSE_LAYERS)))
        return status_fail(STATUS_FAILED,
                           "model.dense_layers is %d and model.experts_every %d: Hugging Face's %s has experts in "
                           "every layer, or in all behind the first",
                           s->dense_layers, s->experts_every, name);
    if ((s->router_groups || s->router_scale > 0) && !shape_has_key(s->architecture, KEY_GROUPS))
        return status_fail(STATUS_FAILED,
                           "model.router_groups is %d and model.router_scale %g: Hugging Face's %s has neither",
                           s->router_groups, s->router_scale, name);
    if (s->router_renormalise && !shape_has(s, TRAIT_RENORMALISED) && !shape_has_key(s->architecture, KEY_NORM_TOPK))
        return status_fail(STATUS_FAILED, "model.router_renormalise is true: the weights of Hugging Face's %s are not",
                           name);
    bool grouped = has_number(s->architecture, offsetof(model_shape, kv_heads));
    bool sized = has_number(s->architecture, offsetof(model_shape, head_size)) || s->kv_lora_rank > 0;
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

static bool is_short(double value)
{
    char text[40];
    snprintf(text, sizeof text, "%.15g", value);
    return strtod(text, NULL) == value;
}

static void put_cap(json_t *root, const char *key, double cap)
{
    json_object_set_new(root, key, cap > 0 ? json_real(cap) : json_null());
}

/* Digits of reals: as few as give back the same double. */
static int precision(const model_shape *s)
{
    bool all = is_short(s->dropout);
#define SHORT_INT(member)
#define SHORT_LONG(member)
#define SHORT_BOOL(member)
#define SHORT_NUMBER(member)          all = all && is_short(s->member);
#define MODEL_SIZE(kind, member, ...) SHORT_##kind(member)
#include "models/sizes.def"
    for (int i = 0; i < SHAPE_ROPE_FACTORS; i++)
        all = all && is_short(s->rope_scaling.short_factor[i]) && is_short(s->rope_scaling.long_factor[i]);
    return all ? 15 : 17;
}

status huggingface_text(char **out, const model_shape *s, dtype type, const json_t *tokens)
{
    static const char *const dtypes[DTYPE_COUNT] = {
        [DTYPE_FP32] = "float32", [DTYPE_BF16] = "bfloat16", [DTYPE_FP16] = "float16", [DTYPE_FP64] = "float64"};
    TRY(check_representable(s));
    MUST(dtypes[type], "weights of type %s", dtype_name(type));
    json_auto_t *root =
        json_pack("{s:[s], s:s, s:s, s:b, s:b}", "architectures", shape_traits_of(s->architecture)->causal,
                  "model_type", shape_traits_of(s->architecture)->name, "torch_dtype", dtypes[type],
                  "tie_word_embeddings", s->tied_embeddings, "use_cache", 1);
    put_numbers(root, s);
    for (int i = 0; i < DEMANDS; i++)
        if (is_demanded(i, s->architecture) && has_keys(s->architecture, demands[i].written))
            json_object_set_new(root, demands[i].key, json_loads(demands[i].value[0], JSON_DECODE_ANY, NULL));
    if (shape_has(s, TRAIT_ROTARY))
        huggingface_put_rope(root, s);
    if (shape_has_key(s->architecture, KEY_UNROTATED))
        huggingface_put_unrotated(root, s);
    if (shape_has_key(s->architecture, KEY_EXPERTS))
        huggingface_put_experts(root, s);
    if (shape_has_key(s->architecture, KEY_QK_NORM))
        json_object_set_new(root, "use_qk_norm", json_boolean(s->qk_norm));
    if (shape_has_key(s->architecture, KEY_LATENT))
        huggingface_put_latent(root, s);
    if (shape_has_key(s->architecture, KEY_MTP))
        json_object_set_new(root, "num_nextn_predict_layers", json_integer(s->mtp_layers));
    if (shape_has_key(s->architecture, KEY_SCALAR)) { /* a whole number, where that gives exactly the multiplier */
        const double scalar = 1 / (s->attention_multiplier * s->attention_multiplier), whole = rint(scalar);
        bool is_root = 1 / sqrt(whole) == s->attention_multiplier;
        json_object_set_new(root, "query_pre_attn_scalar",
                            is_root ? json_integer((json_int_t)whole) : json_real(scalar));
    }
    if (shape_has_key(s->architecture, KEY_CAPS)) {
        put_cap(root, "attn_logit_softcapping", s->attention_cap);
        put_cap(root, "final_logit_softcapping", s->logits_cap);
    }
    huggingface_put_window(root, s);
    /* An absent key would mean the class's own default, an id that may be none of this vocabulary's. */
    for (const char *const *key = huggingface_token_keys; *key; key++)
        json_object_set_new(root, *key,
                            json_object_get(tokens, *key) ? json_incref(json_object_get(tokens, *key)) : json_null());
    AUTO_FREE char *text = json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(precision(s)));
    *out = must_format("%s\n", text);
    return STATUS_OK;
}
