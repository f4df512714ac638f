#include "models/parts.h"

#include <inttypes.h>
#include <stddef.h>

#include "memory/log.h"

static const parts_row rows[SLOT_COUNT] = {
#define HAS(name) UINT64_C(1) << TRAIT_##name
#define ALWAYS    0
#define PART(slot, place_, member, rows_, columns_, divided_, initial_, decays_, needs_, label_, ...)                  \
    [SLOT_##slot] = {.place = PARTS_AT_##place_,                                                                       \
                     .rows = PARTS_SIZE_##rows_,                                                                       \
                     .columns = PARTS_SIZE_##columns_,                                                                 \
                     .divided = PARTS_##divided_,                                                                      \
                     .initial = PARTS_##initial_,                                                                      \
                     .decays = decays_,                                                                                \
                     .needs = needs_,                                                                                  \
                     .label = label_,                                                                                  \
                     .names = {__VA_ARGS__}},
#include "models/parts.def"
#undef HAS
#undef ALWAYS
};

const parts_row *parts_row_of(parts_slot slot)
{
    MUST((int)slot >= 0 && slot < SLOT_COUNT, "no weight %d", (int)slot);
    return &rows[slot];
}

bool parts_in(parts_slot slot, const layer_shape *layer)
{
    uint64_t needs = parts_row_of(slot)->needs;
    return (layer->traits & needs) == needs;
}

parts_extent parts_extent_of(parts_size size, const model_shape *s, const layer_shape *l)
{
    const parts_extent all[PARTS_SIZES] = {
        [PARTS_SIZE_VECTOR] = {1, 1, PARTS_RULE_WHOLE},
#define SIZE(name, count, unit, rule) [PARTS_SIZE_##name] = {count, unit, PARTS_RULE_##rule},
#include "models/parts.def"
    };
    return all[size];
}

int64_t parts_length(parts_size size, const model_shape *s, const layer_shape *l)
{
    parts_extent e = parts_extent_of(size, s, l);
    return e.count * e.unit;
}

/* Elements of the weights of one layer, or of the ones outside the layers; `active`: with one token's experts only. */
static int64_t count_elements(const model_shape *s, int layer, bool active)
{
    layer_shape l = shape_layer(s, layer);
    const int experts = active ? l.experts_per_token : l.experts;
    int64_t sum = 0;
    for (int i = 0; i < SLOT_COUNT; i++) {
        const parts_row *row = &rows[i];
        if ((row->place == PARTS_AT_BLOCK) == (layer >= 0) && parts_in((parts_slot)i, &l))
            sum += (row->divided == PARTS_EXPERTS ? experts : 1) * parts_length(row->rows, s, &l) *
                   parts_length(row->columns, s, &l);
    }
    return sum;
}

int parts_head_size(parts_slot slot, const model_shape *shape, const layer_shape *layer)
{
    return (int)parts_extent_of(parts_row_of(slot)->rows, shape, layer).unit;
}

static int64_t count_all(const model_shape *s, bool active)
{
    int64_t sum = 0;
    for (int i = -1; i < shape_blocks(s); i++)
        sum += count_elements(s, i, active);
    return sum;
}

int64_t parts_parameters(const model_shape *s)
{
    return count_all(s, false);
}

int64_t parts_active_parameters(const model_shape *s)
{
    return count_all(s, true);
}

/* ---- a dense model that becomes one with experts ---------------------------------------------------------------- */

#define BIT(trait) (UINT64_C(1) << (trait))

static const char *const trait_words[TRAIT_COUNT] = {
#define TRAIT(name, words) [TRAIT_##name] = words,
#include "models/architectures.def"
};

/* Traits that a layer with experts may have and its dense one not, or the other way round. */
static const uint64_t own_traits = BIT(TRAIT_DENSE) | BIT(TRAIT_EXPERTS) | BIT(TRAIT_APART) | BIT(TRAIT_RENORMALISED);

static status check_layer(const model_shape *shape, const model_shape *dense, int layer, const char *folder)
{
    const layer_shape mine = shape_layer(shape, layer), its = shape_layer(dense, layer);
    const bool experts = mine.traits & BIT(TRAIT_EXPERTS);
    const struct {
        const char *key;
        int64_t value, dense;
    } sizes[] = {{"model.hidden_size", mine.hidden_size, its.hidden_size},
                 {"model.heads", mine.heads, its.heads},
                 {"model.kv_heads", mine.kv_heads, its.kv_heads},
                 {"model.head_size", mine.head_size, its.head_size},
                 {experts ? "model.expert_ffn_size" : "model.ffn_size", experts ? mine.expert_ffn_size : mine.ffn_size,
                  its.ffn_size}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value != sizes[i].dense)
            return status_fail(STATUS_USAGE,
                               "model.upcycle: %s is %" PRId64 ", but %" PRId64
                               " in the dense model of %s: experts are copies of its mlp, so use %" PRId64,
                               sizes[i].key, sizes[i].value, sizes[i].dense, folder, sizes[i].dense);
    const uint64_t other = (mine.traits ^ its.traits) & ~own_traits;
    for (int trait = 0; trait < TRAIT_COUNT; trait++)
        if (other >> trait & 1)
            return status_fail(STATUS_USAGE,
                               "model.upcycle: of %s and the %s model of %s only one has this: %s; choose a "
                               "model.architecture that differs in the experts alone",
                               shape_traits_of(shape->architecture)->name, shape_traits_of(dense->architecture)->name,
                               folder, trait_words[trait]);
    return STATUS_OK;
}

status parts_check_dense(const model_shape *shape, const model_shape *dense, const char *folder)
{
    if (dense->experts > 0)
        return status_fail(
            STATUS_USAGE,
            "model.upcycle: the model of %s has experts already: leave model.upcycle out to start from it", folder);
    if (shape->mtp_layers > 0)
        return status_fail(STATUS_USAGE,
                           "model.upcycle: the model of %s has no block behind its last layer: leave model.mtp_layers "
                           "out",
                           folder);
    if (shape->layers != dense->layers || shape->vocab_size != dense->vocab_size)
        return status_fail(STATUS_USAGE,
                           "model.upcycle: a model of %d layers and %" PRId64
                           " tokens cannot begin as that of %s, which "
                           "has %d and %" PRId64,
                           shape->layers, shape->vocab_size, folder, dense->layers, dense->vocab_size);
    for (int layer = 0; layer < shape->layers; layer++)
        TRY(check_layer(shape, dense, layer, folder));
    return STATUS_OK;
}

parts_slot parts_dense_slot(parts_slot slot)
{
    return slot == SLOT_EXPERT_GATE   ? SLOT_GATE
           : slot == SLOT_EXPERT_UP   ? SLOT_UP
           : slot == SLOT_EXPERT_DOWN ? SLOT_DOWN
                                      : slot;
}
