/* Keys of config.json about rotary positions: bases and scaling, in the words of transformers 4 and 5. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "models/huggingface_keys.h"
#include "models/rope.h"

/* Defaults of transformers where config.json is silent; the original length is Phi-3's. */
#define DEFAULT_THETA    10000.0
#define DEFAULT_ORIGINAL 4096

/* Keys of each kind of scaling, and whether it must have them. */
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
    {ROPE_LONGROPE, false, "factor", offsetof(shape_rope_scaling, factor)},
    {ROPE_LONGROPE, false, "attention_factor", offsetof(shape_rope_scaling, attention_factor)},
};

enum { SCALES = sizeof scales / sizeof *scales };

static const char original_key[] = "original_max_position_embeddings";

static bool has_original(shape_rope_kind of)
{
    return of == ROPE_LLAMA3 || of == ROPE_YARN || of == ROPE_LONGROPE;
}

/* Phi-3's class always has the key beside the others, where it goes before the one within. */
static status read_original(const huggingface_reader *r, model_shape *s, const json_t *rope, const json_t *outer)
{
    shape_rope_scaling *out = &s->rope_scaling;
    const bool phi3 = shape_has_key(s->architecture, KEY_LONGROPE);
    const json_t *inner = phi3 ? NULL : huggingface_item(rope, original_key), *original = outer ? outer : inner;
    if (original ? !json_is_integer(original) : out->kind == ROPE_LLAMA3)
        return status_fail(STATUS_FAILED, "%s: rope_scaling of type %s needs a whole number %s", r->path,
                           shape_rope_words[out->kind], original_key);
    out->original_max_sequence = original ? json_integer_value(original) : phi3 ? DEFAULT_ORIGINAL : s->max_sequence;
    if (out->factor == 0) /* yarn and longrope: transformers takes this, too */
        out->factor = (double)s->max_sequence / (double)out->original_max_sequence;
    if (out->kind == ROPE_LONGROPE) /* longrope scales by its lists alone; a factor below 1 means the same as 1 */
        out->factor = fmax(out->factor, 1);
    return STATUS_OK;
}

static status read_factors(const huggingface_reader *r, double *out, const json_t *rope, const char *key)
{
    const json_t *list = huggingface_item(rope, key);
    size_t count = json_array_size(list);
    bool good = count > 0 && count <= SHAPE_ROPE_FACTORS;
    for (size_t i = 0; good && i < count; i++) {
        out[i] = json_number_value(json_array_get(list, i)); /* 0 where the entry is no number */
        good = out[i] > 0;
    }
    return good ? STATUS_OK
                : status_fail(STATUS_FAILED,
                              "%s: rope_scaling of type longrope needs a list of at most %d positive numbers %s",
                              r->path, SHAPE_ROPE_FACTORS, key);
}

/* A pair of keys gives one factor of cosines and sines; in latent attention one of the two gives a factor of scores. */
static status read_yarn(const huggingface_reader *r, model_shape *s, const json_t *rope)
{
    shape_rope_scaling *out = &s->rope_scaling;
    const json_t *scale = huggingface_item(rope, "mscale"), *all = huggingface_item(rope, "mscale_all_dim"),
                 *whole = huggingface_item(rope, "truncate");
    if (whole && !json_is_boolean(whole))
        return huggingface_refuse(r, "truncate", whole, "it must be true or false");
    out->fractional = whole && !json_is_true(whole);
    if ((scale && !json_is_number(scale)) || (all && !json_is_number(all)))
        return huggingface_refuse(r, "mscale", scale ? scale : all, "mscale and mscale_all_dim must be numbers");
    if (json_number_value(scale) < 0 || json_number_value(all) < 0)
        return huggingface_refuse(r, "mscale", scale ? scale : all, "mscale and mscale_all_dim must not be negative");
    out->mscale = all ? json_number_value(scale) : 0; /* mscale has no effect without mscale_all_dim */
    out->mscale_all_dim = json_number_value(all);
    if (out->attention_factor == 0)
        out->attention_factor = shape_attention_factor(s);
    if (!shape_has_key(s->architecture, KEY_LATENT)) /* elsewhere they add no more than attention_factor does */
        out->mscale = out->mscale_all_dim = 0;
    return STATUS_OK;
}

/* `original` is the key of that name beside the others, or NULL. */
static status read_scaling(const huggingface_reader *r, model_shape *s, const json_t *rope, const json_t *original)
{
    shape_rope_scaling *out = &s->rope_scaling;
    for (int i = 0; i < SCALES; i++) {
        const json_t *value = huggingface_item(rope, scales[i].key);
        if (scales[i].kind != out->kind || (!value && !scales[i].needed))
            continue;
        if (!json_is_number(value))
            return status_fail(STATUS_FAILED, "%s: rope_scaling of type %s needs a number %s", r->path,
                               shape_rope_words[out->kind], scales[i].key);
        *(double *)(void *)((char *)out + scales[i].offset) = json_number_value(value);
    }
    if (has_original(out->kind))
        TRY(read_original(r, s, rope, original));
    if (out->kind == ROPE_LONGROPE) {
        TRY(read_factors(r, out->short_factor, rope, "short_factor"));
        return read_factors(r, out->long_factor, rope, "long_factor");
    }
    if (out->kind == ROPE_YARN)
        return read_yarn(r, s, rope);
    const json_t *all = shape_has_key(s->architecture, KEY_LATENT) ? huggingface_item(rope, "mscale_all_dim") : NULL;
    return all ? huggingface_refuse(r, "mscale_all_dim", all, "phalanx multiplies scores where rope_type is yarn only")
               : STATUS_OK;
}

/* True if each type of layers has a table of its own. */
static bool has_tables(const model_shape *s)
{
    return shape_has_key(s->architecture, KEY_LOCAL_THETA) || shape_has_key(s->architecture, KEY_LOCAL_TABLE);
}

/* Returns transformers' base where none is given. */
static double unsaid_theta(const model_shape *s)
{
    return has_tables(s) ? shape_traits_of(s->architecture)->rope_theta : DEFAULT_THETA;
}

/* Reads OLMo 3's base: folders of transformers 4 have one base for all layers, which transformers 5 gives only to the
 * layers without a window. */
static status read_one_base(const huggingface_reader *r, model_shape *s)
{
    const json_t *theta = huggingface_key(r, "rope_theta");
    s->rope_local_theta = unsaid_theta(s);
    if (!theta || (json_is_number(theta) && json_number_value(theta) == s->rope_local_theta))
        return STATUS_OK;
    return huggingface_refuse(r, "rope_theta", theta,
                              "transformers 4 and 5 disagree about its layers with a window: rope_parameters must have "
                              "full_attention and sliding_attention");
}

/* The base of layers with a window: beside the other keys (transformers 4), or one of two tables (5). */
static status read_local(const huggingface_reader *r, model_shape *s)
{
    const json_t *local = huggingface_item(huggingface_key(r, "rope_parameters"), "sliding_attention"),
                 *type = huggingface_item(local, "rope_type");
    const bool one = shape_has_key(s->architecture, KEY_LOCAL_TABLE);
    if (type && strcmp(json_is_string(type) ? json_string_value(type) : "", "default") != 0)
        return huggingface_refuse(r, "rope_parameters.sliding_attention.rope_type", type, "phalanx has default");
    if (!local && one)
        return read_one_base(r, s);
    double unsaid = one ? unsaid_theta(s) : DEFAULT_THETA;
    return local ? huggingface_read_number(r, &s->rope_local_theta, local, "rope_theta", unsaid)
                 : huggingface_read_number(r, &s->rope_local_theta, r->root, "rope_local_base_freq", unsaid);
}

/* Chooses, from tables by types of layers, the one of the layers without a window; else the table of all layers. */
static status choose_table(const huggingface_reader *r, const model_shape *s, const json_t **rope, const char *key)
{
    const json_t *full = huggingface_item(*rope, "full_attention"),
                 *local = huggingface_item(*rope, "sliding_attention");
    if (*rope && !json_is_object(*rope))
        return huggingface_refuse(r, key, *rope, "it must be an object");
    if (has_tables(s) && full && local)
        *rope = full;
    else if (full || local)
        return huggingface_refuse(r, key, *rope,
                                  has_tables(s) ? "it must have full_attention and sliding_attention"
                                                : "rotary tables that differ between layers are none of phalanx's");
    else if (*rope && shape_has_key(s->architecture, KEY_LOCAL_TABLE) && !strcmp(key, "rope_parameters"))
        return huggingface_refuse(r, key, *rope, "it must have full_attention and sliding_attention");
    return STATUS_OK;
}

/* GPT-NeoX has words of its own. */
static const char *theta_key(const model_shape *s)
{
    return shape_has_key(s->architecture, KEY_ROTARY_SHARE) ? "rotary_emb_base" : "rope_theta";
}

static const char *share_key(const model_shape *s)
{
    return shape_has_key(s->architecture, KEY_ROTARY_SHARE) ? "rotary_pct" : "partial_rotary_factor";
}

/* Reads the share of a head that rotates: beside the other keys (transformers 4), or with the base (5). */
static status read_partial(const huggingface_reader *r, model_shape *s, const json_t *rope)
{
    const json_t *inner = huggingface_item(rope, "partial_rotary_factor");
    const char *key = inner ? "partial_rotary_factor" : share_key(s);
    const json_t *value = inner ? inner : huggingface_key(r, key);
    double unsaid = shape_has_key(s->architecture, KEY_ROTARY_SHARE)   ? 0.25
                    : shape_has_key(s->architecture, KEY_PARTIAL_HALF) ? 0.5
                                                                       : 1;
    double share = !value ? unsaid : json_is_number(value) ? json_number_value(value) : 0;
    if (share == 1)
        return STATUS_OK;
    if (!shape_has_key(s->architecture, KEY_PARTIAL))
        return huggingface_refuse(r, key, value, "phalanx rotates whole heads of this architecture");
    int64_t size = s->head_size ? s->head_size : s->hidden_size / s->heads;
    s->rotary_size = (int)((double)size * share);
    if (share > 0 && share < 1 && s->rotary_size > 0)
        return STATUS_OK;
    return value ? huggingface_refuse(r, key, value, "it must be a share of a head, at most 1")
                 : status_fail(STATUS_FAILED, "%s: %s is missing, and heads have %lld elements only", r->path, key,
                               (long long)size);
}

/* Reads rope_theta and rope_scaling (transformers 4) or both in rope_parameters (5). */
status huggingface_read_rope(const huggingface_reader *r, model_shape *s)
{
    if (has_tables(s))
        TRY(read_local(r, s));
    const json_t *scaling = huggingface_key(r, "rope_scaling"), *both = huggingface_key(r, "rope_parameters"),
                 *original = huggingface_key(r, original_key);
    const char *key = scaling ? "rope_scaling" : "rope_parameters";
    const json_t *rope = scaling ? scaling : both, *theta = huggingface_item(scaling, "rope_theta");
    s->rope_parameters = !scaling && both;
    if (!rope && shape_has_key(s->architecture, KEY_NEEDS_SCALING))
        return huggingface_refuse_missing(r, s, "rope_scaling or rope_parameters");
    TRY(choose_table(r, s, &rope, key));
    theta = theta ? theta : huggingface_item(scaling ? both : rope, "rope_theta");
    theta = theta ? theta : huggingface_key(r, theta_key(s));
    if (!theta && shape_has_key(s->architecture, KEY_NEEDS_THETA))
        return huggingface_refuse_missing(r, s, "rope_theta");
    if (theta && !json_is_number(theta))
        return huggingface_refuse(r, "rope_theta", theta, "it must be a number");
    s->rope_theta = theta ? json_number_value(theta) : unsaid_theta(s);
    TRY(read_partial(r, s, rope));
    const json_t *type = huggingface_item(rope, "rope_type");
    type = type ? type : huggingface_item(rope, "type");
    const char *name = !type ? "default" : json_is_string(type) ? json_string_value(type) : "";
    if (!strcmp(name, "default"))
        return STATUS_OK;
    const bool phi3 = shape_has_key(s->architecture, KEY_LONGROPE);
    if (phi3 && (!strcmp(name, "su") || !strcmp(name, "yarn")))
        name = shape_rope_words[ROPE_LONGROPE];
    for (int k = phi3 ? ROPE_LONGROPE : 0; k < ROPE_KINDS; k++)
        if (!strcmp(name, shape_rope_words[k])) {
            s->rope_scaling.kind = (shape_rope_kind)k;
            return read_scaling(r, s, rope, original);
        }
    AUTO_FREE char *path = must_format("%s.%s", key, huggingface_item(rope, "rope_type") ? "rope_type" : "type");
    return huggingface_refuse(r, path, type,
                              phi3 ? "phalanx has default and longrope of this architecture"
                                   : "phalanx has default, llama3, linear, dynamic, yarn and longrope");
}

/* Returns the factor by which transformers multiplies a head's size before rounding down. */
static double share_of(const model_shape *s)
{
    double share = (double)shape_rotated(s) / s->head_size;
    return share * s->head_size < shape_rotated(s) ? nextafter(share, 1) : share;
}

static json_t *list_of(const double factor[SHAPE_ROPE_FACTORS])
{
    json_t *list = json_array();
    for (int i = 0; i < SHAPE_ROPE_FACTORS && factor[i] > 0; i++)
        json_array_append_new(list, json_real(factor[i]));
    return list;
}

/* Writes longrope as published: transformers 4 takes Phi-3's type and two lists, and no other key; the rest follows
 * from the sizes. */
static json_t *longrope_of(json_t *root, const model_shape *s)
{
    const shape_rope_scaling *r = &s->rope_scaling;
    const bool phi3 = shape_has_key(s->architecture, KEY_LONGROPE), older = phi3 && !s->rope_parameters;
    json_t *rope = json_pack("{s:s, s:o, s:o}", older ? "type" : "rope_type", shape_rope_words[r->kind], "short_factor",
                             list_of(r->short_factor), "long_factor", list_of(r->long_factor));
    if (phi3)
        json_object_set_new(root, original_key, json_integer(r->original_max_sequence));
    if (!older)
        json_object_set_new(rope, original_key, json_integer(r->original_max_sequence));
    if (r->factor != fmax((double)s->max_sequence / (double)r->original_max_sequence, 1))
        json_object_set_new(rope, "factor", json_real(r->factor));
    if (r->attention_factor != shape_attention_factor(s))
        json_object_set_new(rope, "attention_factor", json_real(r->attention_factor));
    return rope;
}

static const size_t attention_offset = offsetof(shape_rope_scaling, attention_factor);

static json_t *scaling_of(json_t *root, const model_shape *s)
{
    const shape_rope_scaling *r = &s->rope_scaling;
    if (r->factor == 0)
        return json_null();
    if (r->kind == ROPE_LONGROPE)
        return longrope_of(root, s);
    json_t *rope = json_pack("{s:s}", "rope_type", shape_rope_words[r->kind]);
    /* published files have no attention_factor where it follows from the others */
    const bool follows = r->mscale != 0 && r->mscale_all_dim != 0 && r->attention_factor == shape_attention_factor(s);
    for (int i = 0; i < SCALES; i++)
        if (scales[i].kind == r->kind && !(follows && scales[i].offset == attention_offset))
            json_object_set_new(rope, scales[i].key,
                                json_real(*(const double *)(const void *)((const char *)r + scales[i].offset)));
    if (has_original(r->kind))
        json_object_set_new(rope, original_key, json_integer(r->original_max_sequence));
    if (r->mscale != 0)
        json_object_set_new(rope, "mscale", json_real(r->mscale));
    if (r->mscale_all_dim != 0)
        json_object_set_new(rope, "mscale_all_dim", json_real(r->mscale_all_dim));
    if (r->kind == ROPE_YARN)
        json_object_set_new(rope, "truncate", json_boolean(!r->fractional));
    return rope;
}

void huggingface_put_rope(json_t *root, const model_shape *s)
{
    /* 4's words, which transformers 5 reads too, lack two bases of OLMo 3, and no scaling where an absent one is one */
    const bool unscaled = s->rope_scaling.factor == 0 && shape_has_key(s->architecture, KEY_NEEDS_SCALING);
    const bool two = shape_has_key(s->architecture, KEY_LOCAL_TABLE) &&
                     !(s->rope_theta == unsaid_theta(s) && s->rope_local_theta == s->rope_theta);
    if (s->rope_parameters || unscaled || two) {
        /* Everything in one object, or in one for each type of layers: transformers 5's words. */
        json_t *rope = s->rope_scaling.factor == 0 ? json_pack("{s:s}", "rope_type", "default") : scaling_of(root, s);
        json_object_set_new(rope, "rope_theta", json_real(s->rope_theta));
        if (shape_has_key(s->architecture, KEY_PARTIAL))
            json_object_set_new(rope, "partial_rotary_factor", json_real(share_of(s)));
        if (has_tables(s))
            rope = json_pack("{s:o, s:{s:s, s:f}}", "full_attention", rope, "sliding_attention", "rope_type", "default",
                             "rope_theta", s->rope_local_theta);
        json_object_set_new(root, "rope_parameters", rope);
        return;
    }
    json_object_set_new(root, theta_key(s), json_real(s->rope_theta));
    if (shape_has_key(s->architecture, KEY_LOCAL_THETA))
        json_object_set_new(root, "rope_local_base_freq", json_real(s->rope_local_theta));
    if (shape_has_key(s->architecture, KEY_PARTIAL))
        json_object_set_new(root, share_key(s), json_real(share_of(s)));
    json_object_set_new(root, "rope_scaling", scaling_of(root, s));
}
