#include "models/huggingface.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

/* Sets of architectures. */
#define ONE(a) (1u << (a))
#define GPT2   ONE(SHAPE_GPT2)
#define QWEN   (ONE(SHAPE_QWEN2) | ONE(SHAPE_QWEN3))
#define ROTARY (ONE(SHAPE_LLAMA) | ONE(SHAPE_MISTRAL) | QWEN)
#define ALL    (GPT2 | ROTARY)

const char *const huggingface_token_keys[] = {"bos_token_id", "eos_token_id", "pad_token_id", NULL};

/* The classes whose weights are those of the decoder with its head, and of the decoder alone. */
static const struct {
    const char *causal, *bare;
} classes[SHAPE_ARCHITECTURES] = {
    [SHAPE_GPT2] = {"GPT2LMHeadModel", "GPT2Model"},          [SHAPE_LLAMA] = {"LlamaForCausalLM", "LlamaModel"},
    [SHAPE_MISTRAL] = {"MistralForCausalLM", "MistralModel"}, [SHAPE_QWEN2] = {"Qwen2ForCausalLM", "Qwen2Model"},
    [SHAPE_QWEN3] = {"Qwen3ForCausalLM", "Qwen3Model"},
};

/* Keys that must have one of these values, as JSON; absent or null is well. The first value is written. */
static const struct {
    unsigned of, write;
    const char *key, *value[2];
} demands[] = {
    {ALL, 0, "quantization_config", {NULL}},
    {GPT2, GPT2, "activation_function", {"\"gelu_new\"", "\"gelu_pytorch_tanh\""}},
    {GPT2, GPT2, "scale_attn_weights", {"true"}},
    {GPT2, GPT2, "scale_attn_by_inverse_layer_idx", {"false"}},
    {GPT2, GPT2, "add_cross_attention", {"false"}},
    {ROTARY, ROTARY, "hidden_act", {"\"silu\"", "\"swish\""}},
    {ROTARY, 0, "partial_rotary_factor", {"1.0", "1"}},
    /* Qwen2 has the bias by name. */
    {ROTARY & ~ONE(SHAPE_QWEN2), ONE(SHAPE_LLAMA) | ONE(SHAPE_QWEN3), "attention_bias", {"false"}},
    {ROTARY, ONE(SHAPE_LLAMA), "mlp_bias", {"false"}},
};

typedef enum kind { INT, LONG, NUMBER } kind;

/* Keys that are numbers. One that is absent (or null) is left 0 for the architectures in `may_lack`. */
static const struct {
    unsigned of, may_lack;
    const char *key;
    kind kind;
    size_t offset;
} numbers[] = {
    {ALL, 0, "vocab_size", LONG, offsetof(model_shape, vocab_size)},
    {GPT2, 0, "n_layer", INT, offsetof(model_shape, layers)},
    {GPT2, 0, "n_head", INT, offsetof(model_shape, heads)},
    {GPT2, 0, "n_embd", LONG, offsetof(model_shape, hidden_size)},
    {GPT2, 0, "n_positions", LONG, offsetof(model_shape, max_sequence)},
    {GPT2, GPT2, "n_inner", LONG, offsetof(model_shape, ffn_size)},
    {GPT2, GPT2, "layer_norm_epsilon", NUMBER, offsetof(model_shape, norm_epsilon)},
    {ROTARY, 0, "num_hidden_layers", INT, offsetof(model_shape, layers)},
    {ROTARY, 0, "num_attention_heads", INT, offsetof(model_shape, heads)},
    {ROTARY, ONE(SHAPE_LLAMA), "num_key_value_heads", INT, offsetof(model_shape, kv_heads)},
    {ROTARY, ROTARY & ~ONE(SHAPE_QWEN3), "head_dim", INT, offsetof(model_shape, head_size)},
    {ROTARY, 0, "hidden_size", LONG, offsetof(model_shape, hidden_size)},
    {ROTARY, 0, "intermediate_size", LONG, offsetof(model_shape, ffn_size)},
    {ROTARY, 0, "max_position_embeddings", LONG, offsetof(model_shape, max_sequence)},
    {ROTARY, ROTARY, "rms_norm_eps", NUMBER, offsetof(model_shape, norm_epsilon)},
};

enum { NUMBERS = sizeof numbers / sizeof *numbers, DEMANDS = sizeof demands / sizeof *demands };

/* What transformers takes where config.json is silent. */
#define DEFAULT_THETA         10000.0
#define DEFAULT_WINDOW        4096
#define DEFAULT_WINDOW_LAYERS 28
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

static status check_demands(const reader *r, unsigned architecture)
{
    for (int i = 0; i < DEMANDS; i++) {
        const json_t *value = get(r->root, demands[i].key);
        if (!value || !(demands[i].of & architecture))
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
    unsigned architecture = ONE(s->architecture);
    for (int i = 0; i < NUMBERS; i++) {
        if (!(numbers[i].of & architecture))
            continue;
        const char *key = numbers[i].key;
        const json_t *value = get(r->root, key);
        char *into = (char *)s + numbers[i].offset;
        if (!value && !(numbers[i].may_lack & architecture))
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

static status read_architecture(const reader *r, model_shape *s)
{
    const json_t *type = json_object_get(r->root, "model_type"), *list = get(r->root, "architectures");
    if (!type)
        return status_fail(STATUS_FAILED, "%s: model_type is missing: is this a Hugging Face config.json?", r->path);
    s->architecture = shape_architecture_named(json_is_string(type) ? json_string_value(type) : "");
    if (s->architecture == SHAPE_ARCHITECTURES)
        return refuse(r, "model_type", type, "phalanx knows gpt2, llama, mistral, qwen2 and qwen3");
    const json_t *first = json_array_get(list, 0);
    const char *name = json_is_string(first) ? json_string_value(first) : "";
    if (list && strcmp(name, classes[s->architecture].causal) != 0 &&
        strcmp(name, classes[s->architecture].bare) != 0) {
        char why[128];
        snprintf(why, sizeof why, "phalanx reads %s", classes[s->architecture].causal);
        return refuse(r, "architectures", list, why);
    }
    return STATUS_OK;
}

static status read_stretch(const reader *r, shape_rope_scaling *out, const json_t *rope)
{
    const struct {
        const char *key;
        double *into;
    } factors[] = {{"factor", &out->factor},
                   {"low_freq_factor", &out->low_frequency_factor},
                   {"high_freq_factor", &out->high_frequency_factor}};
    for (int i = 0; i < 3; i++) {
        const json_t *value = get(rope, factors[i].key);
        if (!json_is_number(value))
            return status_fail(STATUS_FAILED, "%s: rope_scaling of type llama3 needs a number %s", r->path,
                               factors[i].key);
        *factors[i].into = json_number_value(value);
    }
    const json_t *original = get(rope, "original_max_position_embeddings");
    if (!json_is_integer(original))
        return status_fail(STATUS_FAILED,
                           "%s: rope_scaling of type llama3 needs a whole number original_max_position_embeddings",
                           r->path);
    out->original_max_sequence = json_integer_value(original);
    return STATUS_OK;
}

/* rope_theta and rope_scaling (transformers 4) or both in rope_parameters (5). */
static status read_rope(const reader *r, model_shape *s)
{
    const json_t *scaling = get(r->root, "rope_scaling"), *both = get(r->root, "rope_parameters");
    const char *key = scaling ? "rope_scaling" : "rope_parameters";
    const json_t *rope = scaling ? scaling : both, *theta = get(scaling, "rope_theta");
    if (rope && !json_is_object(rope))
        return refuse(r, key, rope, "it must be an object");
    if (get(rope, "full_attention") || get(rope, "sliding_attention"))
        return refuse(r, key, rope, "rotary tables that differ between layers are none of phalanx's");
    theta = theta ? theta : get(both, "rope_theta");
    theta = theta ? theta : get(r->root, "rope_theta");
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
    if (!strcmp(name, "llama3"))
        return read_stretch(r, &s->rope_scaling, rope);
    char *full = must_format("%s.%s", key, get(rope, "rope_type") ? "rope_type" : "type");
    status result = refuse(r, full, type, "phalanx has default and llama3");
    free(full);
    return result;
}

/* The window of every layer, or a refusal if layers differ. */
static status read_layer_types(const reader *r, model_shape *s, const json_t *types)
{
    size_t count = json_array_size(types), sliding = 0, full = 0;
    for (size_t i = 0; i < count; i++) {
        const char *name = json_string_value(json_array_get(types, i));
        sliding += name && !strcmp(name, "sliding_attention");
        full += name && !strcmp(name, "full_attention");
    }
    if (!json_is_array(types) || sliding + full != count || count != (size_t)s->layers)
        return refuse(r, "layer_types", types, "it must name full_attention or sliding_attention for every layer");
    if (sliding && full)
        return refuse(r, "layer_types", types, "phalanx has one kind of attention for all layers");
    if (full)
        s->sliding_window = 0;
    else if (!s->sliding_window)
        return refuse(r, "layer_types", types, "sliding_attention needs sliding_window and use_sliding_window");
    return STATUS_OK;
}

static status read_window(const reader *r, model_shape *s)
{
    bool qwen = (QWEN & ONE(s->architecture)) != 0, use = true;
    if (!qwen && s->architecture != SHAPE_MISTRAL)
        return STATUS_OK;
    if (qwen)
        TRY(read_bool(r, &use, "use_sliding_window", false));
    const json_t *window = json_object_get(r->root, "sliding_window");
    if (use && window && !json_is_null(window) && !(json_is_integer(window) && json_integer_value(window) > 0))
        return refuse(r, "sliding_window", window, "it must be a number of tokens or null");
    s->sliding_window = !use ? 0 : window ? json_integer_value(window) : DEFAULT_WINDOW; /* of null: 0 */
    const json_t *types = get(r->root, "layer_types"), *below = get(r->root, "max_window_layers");
    if (!qwen)
        return STATUS_OK;
    if (types)
        return read_layer_types(r, s, types);
    if (below && !json_is_integer(below))
        return refuse(r, "max_window_layers", below, "it must be a number of layers");
    int64_t first = below ? json_integer_value(below) : DEFAULT_WINDOW_LAYERS;
    if (first >= s->layers)
        s->sliding_window = 0;
    if (s->sliding_window && first > 0)
        return status_fail(
            STATUS_FAILED,
            "%s: max_window_layers is %lld with use_sliding_window: phalanx has one kind of attention for "
            "all layers (0, or num_hidden_layers)",
            r->path, (long long)first);
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
    TRY(check_demands(r, ONE(s->architecture)));
    TRY(read_numbers(r, s));
    TRY(read_bool(r, &s->tied_embeddings, "tie_word_embeddings", s->architecture == SHAPE_GPT2));
    if (s->norm_epsilon == 0)
        s->norm_epsilon = s->architecture == SHAPE_GPT2 ? DEFAULT_LAYER_EPSILON : DEFAULT_RMS_EPSILON;
    if (s->architecture != SHAPE_GPT2)
        TRY(read_rope(r, s));
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

/* Shapes that phalanx has and transformers' class of that name has not. */
static status check_representable(const model_shape *s)
{
    const char *name = shape_traits_of(s->architecture)->name;
    bool windows = s->architecture == SHAPE_MISTRAL || (QWEN & ONE(s->architecture));
    if (s->sliding_window && !windows)
        return status_fail(
            STATUS_FAILED,
            "model.sliding_window is %lld: Hugging Face's %s has no window (mistral, qwen2 and qwen3 have)",
            (long long)s->sliding_window, name);
    if (s->architecture == SHAPE_GPT2 &&
        (s->kv_heads != s->heads || (int64_t)s->heads * s->head_size != s->hidden_size))
        return status_fail(
            STATUS_FAILED,
            "Hugging Face's gpt2 needs kv_heads = heads and heads x head_size = hidden_size; the model has "
            "%d, %d, %d and %lld",
            s->kv_heads, s->heads, s->head_size, (long long)s->hidden_size);
    return STATUS_OK;
}

static void put_numbers(json_t *root, const model_shape *s)
{
    for (int i = 0; i < NUMBERS; i++) {
        if (!(numbers[i].of & ONE(s->architecture)))
            continue;
        const char *from = (const char *)s + numbers[i].offset;
        json_t *value = numbers[i].kind == NUMBER ? json_real(*(const double *)(const void *)from)
                        : numbers[i].kind == INT  ? json_integer(*(const int *)(const void *)from)
                                                  : json_integer(*(const int64_t *)(const void *)from);
        json_object_set_new(root, numbers[i].key, value);
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
    json_object_set_new(root, "rope_scaling",
                        r->factor == 0
                            ? json_null()
                            : json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor", r->factor,
                                        "low_freq_factor", r->low_frequency_factor, "high_freq_factor",
                                        r->high_frequency_factor, "original_max_position_embeddings",
                                        (json_int_t)r->original_max_sequence));
}

static void put_window(json_t *root, const model_shape *s)
{
    bool qwen = (QWEN & ONE(s->architecture)) != 0;
    if (qwen || s->architecture == SHAPE_MISTRAL)
        json_object_set_new(root, "sliding_window", s->sliding_window ? json_integer(s->sliding_window) : json_null());
    if (!qwen)
        return;
    json_object_set_new(root, "use_sliding_window", json_boolean(s->sliding_window > 0));
    json_object_set_new(root, "max_window_layers", json_integer(s->sliding_window ? 0 : s->layers));
}

/* Digits of reals: as few as give back the same double. */
static int precision(const model_shape *s)
{
    const double value[] = {s->norm_epsilon,
                            s->rope_theta,
                            s->rope_scaling.factor,
                            s->rope_scaling.low_frequency_factor,
                            s->rope_scaling.high_frequency_factor,
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
    json_t *root = json_pack("{s:[s], s:s, s:s, s:b, s:b}", "architectures", classes[s->architecture].causal,
                             "model_type", shape_traits_of(s->architecture)->name, "torch_dtype", dtypes[type],
                             "tie_word_embeddings", s->tied_embeddings, "use_cache", 1);
    put_numbers(root, s);
    for (int i = 0; i < DEMANDS; i++)
        if (demands[i].write & ONE(s->architecture))
            json_object_set_new(root, demands[i].key, parse_constant(demands[i].value[0]));
    if (s->architecture == SHAPE_GPT2) {
        json_object_set_new(root, "embd_pdrop", json_real(s->dropout));
        json_object_set_new(root, "resid_pdrop", json_real(s->dropout));
        json_object_set_new(root, "attn_pdrop", json_real(0));
    } else
        put_rope(root, s);
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
