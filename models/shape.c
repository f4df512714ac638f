#include "models/shape.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "kernels/heads.h"
#include "kernels/table/op.h"
#include "memory/log.h"

static const shape_traits traits[SHAPE_ARCHITECTURES] = {
#define HAS(name)  UINT64_C(1) << TRAIT_##name
#define WITH(name) UINT64_C(1) << KEY_##name
#define ARCHITECTURE(id, word, causal_, bare_, family_, traits_, keys_, tied, epsilon, theta)                          \
    [SHAPE_##id] = {.name = word,                                                                                      \
                    .causal = causal_,                                                                                 \
                    .bare = bare_,                                                                                     \
                    .family = FAMILY_##family_,                                                                        \
                    .traits = traits_,                                                                                 \
                    .keys = keys_,                                                                                     \
                    .tied_embeddings = tied,                                                                           \
                    .norm_epsilon = epsilon,                                                                           \
                    .rope_theta = theta},
#include "models/architectures.def"
#undef HAS
#undef WITH
};

const shape_traits *shape_traits_of(shape_architecture architecture)
{
    MUST((int)architecture >= 0 && architecture < SHAPE_ARCHITECTURES, "no architecture %d", (int)architecture);
    return &traits[architecture];
}

const char *const shape_rope_words[ROPE_KINDS + 1] = {[ROPE_LLAMA3] = "llama3",
                                                      [ROPE_LINEAR] = "linear",
                                                      [ROPE_DYNAMIC] = "dynamic",
                                                      [ROPE_YARN] = "yarn",
                                                      [ROPE_LONGROPE] = "longrope"};

bool shape_scales(const model_shape *shape, shape_rope_kind kind)
{
    return shape->rope_scaling.factor != 0 && shape->rope_scaling.kind == kind;
}

static double yarn_factor(double factor, double scale)
{
    return factor <= 1 ? 1 : 0.1 * scale * log(factor) + 1;
}

double shape_scores_factor(const model_shape *shape)
{
    const shape_rope_scaling *r = &shape->rope_scaling;
    if (shape->kv_lora_rank == 0 || !shape_scales(shape, ROPE_YARN) || r->mscale_all_dim == 0)
        return 1;
    const double once = yarn_factor(r->factor, r->mscale_all_dim);
    return once * once;
}

/* YaRN's (2309.00071), and LongRoPE's as Phi-3 has it (2402.13753). */
double shape_attention_factor(const model_shape *shape)
{
    const shape_rope_scaling *r = &shape->rope_scaling;
    if (shape_scales(shape, ROPE_YARN))
        return r->mscale != 0 && r->mscale_all_dim != 0
                   ? yarn_factor(r->factor, r->mscale) / yarn_factor(r->factor, r->mscale_all_dim)
                   : yarn_factor(r->factor, 1);
    if (!shape_scales(shape, ROPE_LONGROPE))
        return 0;
    return r->factor <= 1 ? 1 : sqrt(1 + log(r->factor) / log((double)r->original_max_sequence));
}

shape_architecture shape_architecture_named(const char *name)
{
    int a = 0;
    while (a < SHAPE_ARCHITECTURES && strcmp(traits[a].name, name) != 0)
        a++;
    return (shape_architecture)a;
}

bool shape_has(const model_shape *shape, shape_trait trait)
{
    return shape_traits_of(shape->architecture)->traits >> trait & 1;
}

bool shape_has_key(shape_architecture architecture, shape_key key)
{
    return shape_traits_of(architecture)->keys >> key & 1;
}

/* ---- layers ---- */

static bool rotates(const model_shape *s, int layer)
{
    bool left_out = layer >= 0 && s->unrotated_every > 0 && (layer + 1) % s->unrotated_every == 0;
    return shape_has(s, TRAIT_ROTARY) && !left_out;
}

static bool has_experts(const model_shape *s, int layer)
{
    return s->experts > 0 && s->experts_every > 0 && layer >= s->dense_layers && (layer + 1) % s->experts_every == 0;
}

int shape_value_size(const layer_shape *layer)
{
    return layer->v_head_size > 0 ? layer->v_head_size : layer->head_size;
}

int shape_latent_width(const layer_shape *layer)
{
    return layer->kv_lora_rank + layer->rope_head_size;
}

int shape_blocks(const model_shape *s)
{
    return s->layers + s->mtp_layers;
}

int shape_head_passes(const model_shape *s)
{
    return 1 + s->mtp_layers;
}

int shape_routers_before(const model_shape *s, int layer)
{
    int count = 0;
    for (int i = 0; i < layer; i++)
        count += has_experts(s, i < s->layers ? i : s->layers - 1);
    return count;
}

int shape_routers(const model_shape *s)
{
    return shape_routers_before(s, shape_blocks(s));
}

layer_shape shape_layer(const model_shape *s, int block)
{
    MUST(block >= -1 && block < shape_blocks(s), "layer %d of %d", block, shape_blocks(s));
    const int layer = block < s->layers ? block : s->layers - 1; /* the MTP module's block is like the last layer */
    const bool sees_all = layer < s->full_first || (s->full_every > 0 && (layer + 1) % s->full_every == 0);
    uint64_t own_head = s->tied_embeddings ? 0 : UINT64_C(1) << TRAIT_OWN_HEAD;
    layer_shape out = {.traits = shape_traits_of(s->architecture)->traits | own_head,
                       .window = sees_all ? 0 : s->sliding_window,
                       .rope_theta = rotates(s, layer) ? s->rope_theta : 0};
#define COPY_LAYER(member) out.member = s->member;
#define COPY_MODEL(member)
#define COPY_MEMBER(member)
#define MODEL_SIZE(kind, member, low, high, of, ...) COPY_##of(member)
#include "models/sizes.def"
    const bool experts = has_experts(s, layer);
    out.traits |= UINT64_C(1) << (experts ? TRAIT_EXPERTS : TRAIT_DENSE);
    out.traits |= (uint64_t)(block >= s->layers) << TRAIT_MTP;
    out.traits |= (uint64_t)(experts && s->router_bias_rate > 0) << TRAIT_BIASED;
    if (experts && !shape_has(s, TRAIT_CLAMPED))
        out.traits |= UINT64_C(1) << TRAIT_APART;
    if (experts && s->shared_experts > 0)
        out.traits |= UINT64_C(1) << TRAIT_SHARED;
    if (s->qk_norm)
        out.traits |= UINT64_C(1) << TRAIT_QK_NORM;
    out.traits |= UINT64_C(1) << (s->q_lora_rank > 0 ? TRAIT_LATENT_QUERIES : TRAIT_STREAM_QUERIES);
    if (!shape_has(s, TRAIT_LATENT_KEYS))
        out.traits |= UINT64_C(1) << TRAIT_STREAM_KEYS;
    out.traits |= UINT64_C(1) << TRAIT_ATTENDS;
    if (s->attention_bias)
        out.traits |= UINT64_C(1) << TRAIT_LATENT_BIAS | UINT64_C(1) << TRAIT_OUT_BIAS;
    if (!experts) {
        out.experts = out.experts_per_token = 0;
        out.expert_ffn_size = 0;
        out.router_renormalise = false;
        out.shared_experts = out.router_groups = out.router_groups_kept = 0;
        out.router_scale = out.swiglu_limit = out.swiglu_alpha = 0;
    }
    out.local = out.window > 0 && out.rope_theta > 0 && s->rope_local_theta > 0;
    out.rope_theta = out.local ? s->rope_local_theta : out.rope_theta;
    return out;
}

/* True if layers of these shapes record the same ops. */
static bool layers_alike(const layer_shape *a, const layer_shape *b)
{
    return a->traits == b->traits && a->window == b->window && a->rope_theta == b->rope_theta && a->local == b->local
#define SAME_LAYER(member) &&a->member == b->member
#define SAME_MODEL(member)
#define SAME_MEMBER(member)
#define MODEL_SIZE(kind, member, low, high, of, ...) SAME_##of(member)
#include "models/sizes.def"
        ;
}

model_shape shape_repeating(const model_shape *s, int layer, int layers)
{
    model_shape all = *s;
    all.layers = layers;
    all.sliding_window = shape_layer(s, layer).window;
    all.full_first = all.full_every = 0;
    all.dense_layers = s->experts > 0 && !has_experts(s, layer) ? layers : 0;
    all.experts_every = s->experts > 0;
    all.unrotated_every = s->unrotated_every > 0 && !rotates(s, layer);
    return all;
}

int shape_kinds(int *kind, const model_shape *s)
{
    int count = 0;
    for (int i = 0; i < s->layers; i++) {
        layer_shape layer = shape_layer(s, i);
        kind[i] = -1;
        for (int k = 0; k < i && kind[i] < 0; k++) {
            layer_shape before = shape_layer(s, k);
            if (layers_alike(&before, &layer))
                kind[i] = kind[k];
        }
        if (kind[i] < 0)
            kind[i] = count++;
    }
    return count;
}

/* ---- sizes that are 0 (sizes.def) ---- */

static int64_t even_head_size(const model_shape *s)
{
    return s->heads > 0 && s->hidden_size % s->heads == 0 ? s->hidden_size / s->heads : 0;
}

static int64_t usual_ffn_size(const model_shape *s)
{
    int64_t gated = (s->hidden_size * 8 / 3 + 255) / 256 * 256;
    return s->expert_ffn_size > 0 ? s->expert_ffn_size : shape_has(s, TRAIT_GATED) ? gated : 4 * s->hidden_size;
}

static double usual_local_theta(const model_shape *s)
{
    return shape_has_key(s->architecture, KEY_LOCAL_THETA)   ? 10000
           : shape_has_key(s->architecture, KEY_LOCAL_TABLE) ? s->rope_theta
                                                             : 0;
}

static double original_sequence(const model_shape *s)
{
    bool divides = shape_scales(s, ROPE_YARN) || shape_scales(s, ROPE_LONGROPE);
    return shape_scales(s, ROPE_LLAMA3) ? 8192 : divides ? (double)s->max_sequence / s->rope_scaling.factor : 0;
}

static double usual_embedding_multiplier(const model_shape *s)
{
    double root = shape_has_key(s->architecture, KEY_SCALED_EMBEDDING) ? sqrt((double)s->hidden_size) : 0;
    return shape_has_key(s->architecture, KEY_MULTIPLIERS) ? 1 : root;
}

static double usual_attention_multiplier(const model_shape *s)
{
    double root = shape_has_key(s->architecture, KEY_SCALAR) ? 1.0 / 16 : 0;
    return shape_has_key(s->architecture, KEY_MULTIPLIERS) ? 1 : root;
}

void shape_fill(model_shape *s)
{
    const shape_traits *t = shape_traits_of(s->architecture);
#define MODEL_SIZE(kind, member, low, high, of, fill, ...)                                                             \
    s->member = s->member != 0 ? s->member : (SHAPE_##kind)(fill);
#include "models/sizes.def"
}

/* The upper limits keep the number of parameters within 63 bits, too; they are far above any model that exists. */
static status check_ranges(const model_shape *s)
{
    const struct {
        const char *key;
        int64_t value, low, high;
    } ranges[] = {
#define RANGE_INT(member, low, high)  {#member, s->member, low, high},
#define RANGE_LONG(member, low, high) {#member, s->member, low, high},
#define RANGE_NUMBER(...)
#define RANGE_BOOL(...)
#define MODEL_SIZE(kind, member, low, high, ...) RANGE_##kind(member, low, high)
#include "models/sizes.def"
    };
    for (unsigned long i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high)
            return status_fail(STATUS_USAGE, "model.%s is %" PRId64 ": it must be from %" PRId64 " to %" PRId64,
                               ranges[i].key, ranges[i].value, ranges[i].low, ranges[i].high);
    return STATUS_OK;
}

int shape_rotated(const model_shape *s)
{
    return s->rope_head_size ? s->rope_head_size : s->rotary_size ? s->rotary_size : s->head_size;
}

/* One positive number a frequency. */
static status check_factors(const model_shape *s, const double *factor, const char *key)
{
    int count = 0, frequencies = shape_rotated(s) / 2;
    while (count < SHAPE_ROPE_FACTORS && factor[count] > 0)
        count++;
    if (count != frequencies || (count < SHAPE_ROPE_FACTORS && factor[count] != 0))
        return status_fail(STATUS_USAGE,
                           "model.rope_scaling.%s has %d positive numbers: longrope needs one for each of %d "
                           "frequencies, and has at most %d",
                           key, count, frequencies, SHAPE_ROPE_FACTORS);
    return STATUS_OK;
}

static status check_longrope(const model_shape *s)
{
    const shape_rope_scaling *r = &s->rope_scaling;
    if (r->original_max_sequence < 2)
        return status_fail(STATUS_USAGE,
                           "model.rope_scaling.original_max_sequence is %" PRId64 ": longrope needs at least 2",
                           r->original_max_sequence);
    TRY(check_factors(s, r->short_factor, "short_factor"));
    return check_factors(s, r->long_factor, "long_factor");
}

static status check_rope(const model_shape *s)
{
    if (!shape_has(s, TRAIT_ROTARY))
        return STATUS_OK;
    if (!(s->rope_theta > 0))
        return status_fail(STATUS_USAGE, "model.rope_theta is %g: it must be positive", s->rope_theta);
    if (s->rope_local_theta < 0)
        return status_fail(STATUS_USAGE, "model.rope_local_theta is %g: it must be positive, or 0 for none",
                           s->rope_local_theta);
    if (shape_rotated(s) == s->head_size && s->head_size % 2)
        return status_fail(STATUS_USAGE, "model.head_size is %d: rotary positions need an even size", s->head_size);
    if (s->rotary_size % 2 || s->rotary_size > s->head_size)
        return status_fail(STATUS_USAGE, "model.rotary_size is %d: it must be even, and at most model.head_size %d",
                           s->rotary_size, s->head_size);
    const shape_rope_scaling *r = &s->rope_scaling;
    if (r->factor == 0)
        return STATUS_OK;
    if (!(r->factor >= 1))
        return status_fail(STATUS_USAGE, "model.rope_scaling.factor is %g: it must be at least 1, or 0 for none",
                           r->factor);
    if (r->kind == ROPE_LLAMA3 && !(r->low_frequency_factor > 0 && r->high_frequency_factor > r->low_frequency_factor))
        return status_fail(STATUS_USAGE,
                           "model.rope_scaling: low_frequency_factor %g must be positive and below "
                           "high_frequency_factor %g",
                           r->low_frequency_factor, r->high_frequency_factor);
    if (r->kind == ROPE_YARN && !(r->beta_slow > 0 && r->beta_fast >= r->beta_slow))
        return status_fail(STATUS_USAGE, "model.rope_scaling: beta_slow %g must be positive and at most beta_fast %g",
                           r->beta_slow, r->beta_fast);
    if ((r->kind == ROPE_LLAMA3 || r->kind == ROPE_YARN) && r->original_max_sequence < 1)
        return status_fail(STATUS_USAGE,
                           "model.rope_scaling.original_max_sequence is %" PRId64
                           ": give the sequence length before scaling",
                           r->original_max_sequence);
    return r->kind == ROPE_LONGROPE ? check_longrope(s) : STATUS_OK;
}

/* A group's score is the sum of its two best ones, or the best. */
static status check_groups(const model_shape *s)
{
    const int groups = s->router_groups, kept = s->router_groups_kept;
    if (groups == 0)
        return STATUS_OK;
    const int best = shape_has(s, TRAIT_GROUP_MAXIMUM) ? 1 : 2;
    if (s->experts % groups || s->experts / groups < best)
        return status_fail(STATUS_USAGE, "model.router_groups is %d: model.experts %d must be a multiple%s", groups,
                           s->experts, best > 1 ? ", and at least twice it" : "");
    if (kept > groups || kept * (s->experts / groups) < s->experts_per_token)
        return status_fail(STATUS_USAGE,
                           "model.router_groups_kept is %d: it must be at most model.router_groups %d, and so many "
                           "groups must have model.experts_per_token %d experts",
                           kept, groups, s->experts_per_token);
    return STATUS_OK;
}

static status check_clamps(const model_shape *s)
{
    const bool clamped = shape_has(s, TRAIT_CLAMPED);
    const double value[] = {s->swiglu_limit, s->swiglu_alpha};
    for (int i = 0; i < 2; i++) {
        const char *key = i ? "swiglu_alpha" : "swiglu_limit";
        if (clamped && !(value[i] > 0 && value[i] <= 1e6))
            return status_fail(STATUS_USAGE, "model.%s is %g: it must be positive, and at most 1e6", key, value[i]);
        if (!clamped && value[i] != 0)
            return status_fail(STATUS_USAGE,
                               "model.%s is %g: experts of %s are not clamped; leave it out, or choose gpt_oss as "
                               "model.architecture",
                               key, value[i], shape_traits_of(s->architecture)->name);
    }
    return STATUS_OK;
}

static status check_no_experts(const model_shape *s, const char *name)
{
    const double routing[] = {s->router_loss, s->router_z_loss, s->router_bias_rate, s->router_scale};
    static const char *const keys[] = {"router_loss", "router_z_loss", "router_bias_rate", "router_scale"};
    if (s->experts != 0)
        return status_fail(STATUS_USAGE,
                           "model.experts is %d: layers of %s have none; leave it out, or choose another "
                           "model.architecture",
                           s->experts, name);
    for (int i = 0; i < 4; i++)
        if (routing[i] != 0)
            return status_fail(STATUS_USAGE,
                               "model.%s is %g: layers of %s have no experts; leave it out, or choose another "
                               "model.architecture",
                               keys[i], routing[i], name);
    return STATUS_OK;
}

static status check_experts(const model_shape *s)
{
    const char *name = shape_traits_of(s->architecture)->name;
    if (!shape_has_key(s->architecture, KEY_EXPERTS))
        return check_no_experts(s, name);
    if (s->experts < 1)
        return status_fail(STATUS_USAGE, "model.experts is %d: %s needs at least 1", s->experts, name);
    if (s->experts_per_token < 1 || s->experts_per_token > s->experts)
        return status_fail(STATUS_USAGE, "model.experts_per_token is %d: it must be from 1 to model.experts %d",
                           s->experts_per_token, s->experts);
    if (s->shared_experts > 0 && !shape_has_key(s->architecture, KEY_SHARED))
        return status_fail(STATUS_USAGE,
                           "model.shared_experts is %d: layers of %s have none; leave it out, or choose glm4_moe, "
                           "deepseek_v2 or deepseek_v3 as model.architecture",
                           s->shared_experts, name);
    TRY(check_groups(s));
    TRY(check_clamps(s));
    if (s->experts * s->expert_ffn_size > 1 << 24)
        return status_fail(STATUS_USAGE, "model.experts %d x model.expert_ffn_size %" PRId64 " must be at most %d",
                           s->experts, s->expert_ffn_size, 1 << 24);
    return STATUS_OK;
}

static status check_optional(const model_shape *s)
{
    if (s->mtp_layers > 0 && !shape_has_key(s->architecture, KEY_MTP))
        return status_fail(STATUS_USAGE,
                           "model.mtp_layers is %d: %s has no block behind its last layer; leave it out, or choose "
                           "glm4_moe or deepseek_v3 as model.architecture",
                           s->mtp_layers, shape_traits_of(s->architecture)->name);
    if (s->qk_norm && !shape_has_key(s->architecture, KEY_QK_NORM))
        return status_fail(STATUS_USAGE,
                           "model.qk_norm is true: of %s it is fixed; leave it out, or choose glm4_moe as "
                           "model.architecture",
                           shape_traits_of(s->architecture)->name);
    if (s->attention_bias && !shape_has_key(s->architecture, KEY_LATENT))
        return status_fail(STATUS_USAGE,
                           "model.attention_bias is true: of %s it is fixed which products have biases; leave it out, "
                           "or choose deepseek_v2 or deepseek_v3 as model.architecture",
                           shape_traits_of(s->architecture)->name);
    return STATUS_OK;
}

/* Checks heads of q and k: some elements do not rotate, and the rest do. */
static status check_latent(const model_shape *s)
{
    const char *name = shape_traits_of(s->architecture)->name;
    if (!shape_has_key(s->architecture, KEY_LATENT)) {
        if (s->kv_lora_rank || s->q_lora_rank || s->rope_head_size || s->v_head_size)
            return status_fail(STATUS_USAGE,
                               "model.kv_lora_rank is %d, q_lora_rank %d, rope_head_size %d and v_head_size %d: %s has "
                               "no latent attention; leave them out, or choose deepseek_v2 or deepseek_v3 as "
                               "model.architecture",
                               s->kv_lora_rank, s->q_lora_rank, s->rope_head_size, s->v_head_size, name);
        return STATUS_OK;
    }
    if (s->kv_lora_rank < 1)
        return status_fail(STATUS_USAGE, "model.kv_lora_rank is %d: %s needs at least 1", s->kv_lora_rank, name);
    if (s->rope_head_size < 2 || s->rope_head_size % 2 || s->rope_head_size >= s->head_size)
        return status_fail(STATUS_USAGE,
                           "model.rope_head_size is %d: it must be even, from 2, and below model.head_size %d, which "
                           "counts the elements that rotate and those that do not",
                           s->rope_head_size, s->head_size);
    if (s->kv_heads != s->heads)
        return status_fail(
            STATUS_USAGE,
            "model.kv_heads is %d: in latent attention every one of model.heads %d has a key of its own; "
            "leave it out",
            s->kv_heads, s->heads);
    if ((int64_t)s->heads * s->v_head_size > 1 << 24)
        return status_fail(STATUS_USAGE, "model.heads %d x model.v_head_size %d must be at most %d", s->heads,
                           s->v_head_size, 1 << 24);
    if (s->rotary_size)
        return status_fail(STATUS_USAGE, "model.rotary_size is %d: latent attention has model.rope_head_size",
                           s->rotary_size);
    return STATUS_OK;
}

status shape_check(const model_shape *s)
{
    if ((int)s->architecture < 0 || s->architecture >= SHAPE_ARCHITECTURES)
        return status_fail(STATUS_USAGE, "model.architecture is number %d of %d", (int)s->architecture,
                           SHAPE_ARCHITECTURES);
    if (!s->head_size && s->heads > 0 && s->hidden_size % s->heads)
        return status_fail(STATUS_USAGE,
                           "model.hidden_size %" PRId64
                           " is not a multiple of model.heads %d: change one, or set model.head_size",
                           s->hidden_size, s->heads);
    TRY(check_ranges(s));
    if (!heads_divide(s->heads, s->kv_heads))
        return status_fail(STATUS_USAGE, "model.heads %d must be a multiple of model.kv_heads %d", s->heads,
                           s->kv_heads);
    if ((int64_t)s->heads * s->head_size > 1 << 24)
        return status_fail(STATUS_USAGE, "model.heads %d x model.head_size %d must be at most %d", s->heads,
                           s->head_size, 1 << 24);
    TRY(check_experts(s));
    TRY(check_optional(s));
    TRY(check_latent(s));
    TRY(check_rope(s));
    if (!(s->norm_epsilon > 0 && s->norm_epsilon < 1))
        return status_fail(STATUS_USAGE, "model.norm_epsilon is %g: it must be above 0 and below 1", s->norm_epsilon);
    if (!(s->dropout >= 0 && s->dropout < 1))
        return status_fail(STATUS_USAGE, "train.dropout is %g: it must be at least 0 and below 1", s->dropout);
    return STATUS_OK;
}
