#include "models/shape.h"

#include <inttypes.h>
#include <string.h>

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

static bool sees_all(const model_shape *s, int layer)
{
    return layer < s->full_first || (s->full_every > 0 && (layer + 1) % s->full_every == 0);
}

layer_shape shape_layer(const model_shape *s, int layer)
{
    MUST(layer >= -1 && layer < s->layers, "layer %d of %d", layer, s->layers);
    uint64_t own_head = s->tied_embeddings ? 0 : UINT64_C(1) << TRAIT_OWN_HEAD;
    return (layer_shape){.traits = shape_traits_of(s->architecture)->traits | own_head,
                         .heads = s->heads,
                         .kv_heads = s->kv_heads,
                         .head_size = s->head_size,
                         .hidden_size = s->hidden_size,
                         .ffn_size = s->ffn_size,
                         .window = sees_all(s, layer) ? 0 : s->sliding_window,
                         .rope_theta = shape_has(s, TRAIT_ROTARY) ? s->rope_theta : 0};
}

/* Do layers of these shapes record the same ops? */
static bool layers_alike(const layer_shape *a, const layer_shape *b)
{
    return a->traits == b->traits && a->heads == b->heads && a->kv_heads == b->kv_heads &&
           a->head_size == b->head_size && a->hidden_size == b->hidden_size && a->ffn_size == b->ffn_size &&
           a->window == b->window && a->rope_theta == b->rope_theta;
}

model_shape shape_repeating(const model_shape *s, int layer, int layers)
{
    model_shape all = *s;
    all.layers = layers;
    all.sliding_window = shape_layer(s, layer).window;
    all.full_first = all.full_every = 0;
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

void shape_fill(model_shape *shape)
{
    const shape_traits *t = shape_traits_of(shape->architecture);
    if (!shape->head_size && shape->heads > 0 && shape->hidden_size % shape->heads == 0)
        shape->head_size = (int)(shape->hidden_size / shape->heads);
    if (!shape->kv_heads)
        shape->kv_heads = shape->heads;
    if (!shape->ffn_size)
        shape->ffn_size =
            shape_has(shape, TRAIT_GATED) ? (shape->hidden_size * 8 / 3 + 255) / 256 * 256 : 4 * shape->hidden_size;
    if (shape->rope_theta == 0)
        shape->rope_theta = t->rope_theta;
    if (shape->norm_epsilon == 0)
        shape->norm_epsilon = t->norm_epsilon;
}

/* The upper limits keep every product of sizes, and the number of parameters, within 63 bits; they are far above any
 * model that exists. Token ids are 32-bit in data files. */
static status check_ranges(const model_shape *s)
{
    const struct {
        const char *key;
        int64_t value, low, high;
    } ranges[] = {
        {"layers", s->layers, 1, 1 << 14},
        {"hidden_size", s->hidden_size, 1, 1 << 20},
        {"heads", s->heads, 1, 1 << 16},
        {"kv_heads", s->kv_heads, 1, 1 << 16},
        {"head_size", s->head_size, 1, 1 << 12},
        {"ffn_size", s->ffn_size, 1, 1 << 24},
        {"vocab_size", s->vocab_size, 2, INT32_MAX},
        {"max_sequence", s->max_sequence, 1, 1 << 30},
        {"sliding_window", s->sliding_window, 0, 1 << 30},
        {"full_first", s->full_first, 0, 1 << 14},
        {"full_every", s->full_every, 0, 1 << 14},
    };
    for (unsigned long i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (ranges[i].value < ranges[i].low || ranges[i].value > ranges[i].high)
            return status_fail(STATUS_USAGE, "model.%s is %" PRId64 ": it must be from %" PRId64 " to %" PRId64,
                               ranges[i].key, ranges[i].value, ranges[i].low, ranges[i].high);
    return STATUS_OK;
}

static status check_rope(const model_shape *s)
{
    if (!shape_has(s, TRAIT_ROTARY))
        return STATUS_OK;
    if (!(s->rope_theta > 0))
        return status_fail(STATUS_USAGE, "model.rope_theta is %g: it must be positive", s->rope_theta);
    if (s->head_size % 2)
        return status_fail(STATUS_USAGE, "model.head_size is %d: rotary positions need an even size", s->head_size);
    const shape_rope_scaling *r = &s->rope_scaling;
    if (r->factor == 0)
        return STATUS_OK;
    if (!(r->factor >= 1))
        return status_fail(STATUS_USAGE, "model.rope_scaling.factor is %g: it must be at least 1, or 0 for none",
                           r->factor);
    if (!(r->low_frequency_factor > 0 && r->high_frequency_factor > r->low_frequency_factor))
        return status_fail(STATUS_USAGE,
                           "model.rope_scaling: low_frequency_factor %g must be positive and below "
                           "high_frequency_factor %g",
                           r->low_frequency_factor, r->high_frequency_factor);
    if (r->original_max_sequence < 1)
        return status_fail(STATUS_USAGE,
                           "model.rope_scaling.original_max_sequence is %" PRId64
                           ": give the sequence length before scaling",
                           r->original_max_sequence);
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
    if (s->heads % s->kv_heads)
        return status_fail(STATUS_USAGE, "model.heads %d must be a multiple of model.kv_heads %d", s->heads,
                           s->kv_heads);
    if ((int64_t)s->heads * s->head_size > 1 << 24)
        return status_fail(STATUS_USAGE, "model.heads %d x model.head_size %d must be at most %d", s->heads,
                           s->head_size, 1 << 24);
    TRY(check_rope(s));
    if (!(s->norm_epsilon > 0 && s->norm_epsilon < 1))
        return status_fail(STATUS_USAGE, "model.norm_epsilon is %g: it must be above 0 and below 1", s->norm_epsilon);
    if (!(s->dropout >= 0 && s->dropout < 1))
        return status_fail(STATUS_USAGE, "train.dropout is %g: it must be at least 0 and below 1", s->dropout);
    return STATUS_OK;
}
