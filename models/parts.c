#include "models/parts.h"

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

/* Elements of the weights of one layer, or of those that are of no layer; `active`: of one token's experts. */
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
