#include "models/names.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

typedef struct naming {
    shape_family base;
    const char *prefix;
    bool transposed, by_head;
} naming;

static const naming families[FAMILY_COUNT] = {
#define FAMILY(name, base, prefix, transposed, by_head) [FAMILY_##name] = {FAMILY_##base, prefix, transposed, by_head},
#include "models/architectures.def"
};

const char *names_choose(shape_architecture architecture, const char *const names[FAMILY_COUNT])
{
    shape_family f = shape_traits_of(architecture)->family;
    while (!names[f] && families[f].base != f)
        f = families[f].base;
    return names[f];
}

bool names_of_family(shape_architecture architecture, shape_family family)
{
    shape_family f = shape_traits_of(architecture)->family;
    while (f != family && families[f].base != f)
        f = families[f].base;
    return f == family;
}

const char *names_format(shape_architecture architecture, parts_slot slot)
{
    return names_choose(architecture, parts_row_of(slot)->names);
}

bool names_transposed(shape_architecture architecture, parts_slot slot)
{
    const parts_row *row = parts_row_of(slot);
    bool matrix = row->columns != PARTS_SIZE_VECTOR && row->place == PARTS_AT_BLOCK;
    return matrix && families[shape_traits_of(architecture)->family].transposed;
}

const char *names_prefix(shape_architecture architecture)
{
    return families[shape_traits_of(architecture)->family].prefix;
}

/* ---- several weights in one tensor ---- */

static bool same_name(shape_architecture a, parts_slot x, parts_slot y)
{
    const char *name = names_format(a, x), *other = names_format(a, y);
    return name && other && !strcmp(name, other);
}

/* The weight before (step -1) or after it (1) in the tensor of its name, or SLOT_COUNT. */
static parts_slot find_neighbour(parts_slot slot, int step, const model_shape *s, const layer_shape *l)
{
    int i = (int)slot + step;
    while (i >= 0 && i < SLOT_COUNT && !parts_in((parts_slot)i, l))
        i += step;
    bool one = i >= 0 && i < SLOT_COUNT && same_name(s->architecture, slot, (parts_slot)i);
    return one ? (parts_slot)i : SLOT_COUNT;
}

/* What comes of a weight before one of another: all of it, or what is of one key head. */
static int64_t stacked(parts_slot slot, const model_shape *s, const layer_shape *l)
{
    parts_extent e = parts_extent_of(parts_row_of(slot)->rows, s, l);
    bool by_head = families[shape_traits_of(s->architecture)->family].by_head && e.rule == PARTS_RULE_HEADS;
    return e.count * e.unit / (by_head ? l->kv_heads : 1);
}

names_span names_span_of(parts_slot slot, const model_shape *s, const layer_shape *l)
{
    names_span span = {.unit = stacked(slot, s, l), .rows = parts_length(parts_row_of(slot)->rows, s, l)};
    span.stride = span.unit;
    for (int step = -1; step <= 1; step += 2)
        for (parts_slot i = slot; (i = find_neighbour(i, step, s, l)) != SLOT_COUNT;) {
            span.first += step < 0 ? stacked(i, s, l) : 0;
            span.stride += stacked(i, s, l);
            span.rows += parts_length(parts_row_of(i)->rows, s, l);
        }
    return span;
}

/* ---- all parameters of a shape ---- */

typedef struct tensor_list {
    names_tensor *tensors;
    int count, capacity;
} tensor_list;

static void append_tensor(tensor_list *to, const model_shape *s, parts_slot slot, int layer)
{
    layer_shape l = shape_layer(s, layer);
    if (!parts_in(slot, &l) || find_neighbour(slot, -1, s, &l) != SLOT_COUNT)
        return;
    if (to->count == to->capacity) {
        to->capacity = to->capacity ? 2 * to->capacity : 64;
        to->tensors = must_realloc(to->tensors, (unsigned long)to->capacity * sizeof *to->tensors);
    }
    const parts_row *row = parts_row_of(slot);
    const char *format = names_format(s->architecture, slot);
    MUST(format, "%s has no name for %s", shape_traits_of(s->architecture)->name, row->label);
    const char *percent = strchr(format, '%');
    names_tensor *t = &to->tensors[to->count++];
    *t = (names_tensor){.slot = slot, .layer = layer, .dims = row->columns == PARTS_SIZE_VECTOR ? 1 : 2};
    t->name =
        percent ? must_format("%.*s%d%s", (int)(percent - format), format, layer, percent + 2) : must_strdup(format);
    bool swap = names_transposed(s->architecture, slot);
    t->shape[swap] = names_span_of(slot, s, &l).rows;
    if (t->dims == 2)
        t->shape[!swap] = parts_length(row->columns, s, &l);
}

names_tensor *names_list(int *count, const model_shape *s)
{
    tensor_list all = {0};
    int slot = 0;
    while (slot < SLOT_COUNT) {
        int end = slot; /* the layers come one after the other, between the two ends */
        while (end < SLOT_COUNT && parts_row_of((parts_slot)end)->place == PARTS_AT_BLOCK)
            end++;
        for (int layer = 0; layer < s->layers && end > slot; layer++)
            for (int i = slot; i < end; i++)
                append_tensor(&all, s, (parts_slot)i, layer);
        if (end == slot)
            append_tensor(&all, s, (parts_slot)end++, -1);
        slot = end;
    }
    *count = all.count;
    return all.tensors;
}

void names_free(names_tensor *list, int count)
{
    for (int i = 0; list && i < count; i++)
        free(list[i].name);
    free(list);
}
