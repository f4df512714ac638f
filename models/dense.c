#include "models/dense.h"

#include <inttypes.h>
#include <stddef.h>

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

status dense_check(const model_shape *shape, const model_shape *dense, const char *folder)
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

parts_slot dense_slot(parts_slot slot)
{
    return slot == SLOT_EXPERT_GATE   ? SLOT_GATE
           : slot == SLOT_EXPERT_UP   ? SLOT_UP
           : slot == SLOT_EXPERT_DOWN ? SLOT_DOWN
                                      : slot;
}
