#include "models/names.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

/* Kinds of a family's matrices that are stored [in, out]. */
enum { TRANSPOSED_ALL = 1, TRANSPOSED_EXPERTS };

typedef struct naming {
    shape_family base;
    const char *prefix;
    int transposed;
    bool by_head;
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
    return names[f] && *names[f] ? names[f] : NULL;
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
    int which = families[shape_traits_of(architecture)->family].transposed;
    return matrix && (which == TRANSPOSED_ALL || (which == TRANSPOSED_EXPERTS && row->divided == PARTS_EXPERTS));
}

static void write_name(char out[NAMES_BYTES], const char *format, int layer, int expert)
{
    const int numbers[] = {layer, expert};
    int used = 0;
    for (int i = 0; *format && used < NAMES_BYTES - 1;)
        if (format[0] == '%' && i < 2) {
            used += snprintf(out + used, (size_t)(NAMES_BYTES - used), "%d", numbers[i++]);
            format += strlen("%d");
        } else {
            out[used++] = *format++;
        }
    MUST(used < NAMES_BYTES, "%.40s... is too long a name", out);
    out[used] = 0;
}

const char *names_write(char out[NAMES_BYTES], shape_architecture architecture, parts_slot slot, int layer, int expert)
{
    const char *format = names_format(architecture, slot);
    MUST(format, "%s has no name for %s", shape_traits_of(architecture)->name, parts_row_of(slot)->label);
    write_name(out, format, layer, expert);
    return out;
}

bool names_by_expert(shape_architecture architecture, parts_slot slot)
{
    const char *first = strchr(names_format(architecture, slot), '%');
    return parts_row_of(slot)->divided == PARTS_EXPERTS && first && strchr(first + 1, '%');
}

const char *names_prefix(shape_architecture architecture)
{
    return families[shape_traits_of(architecture)->family].prefix;
}

/* ---- several weights in one tensor ---- */

/* Returns the weight before (step -1) or after it (1) in the tensor of its name, or SLOT_COUNT. */
static parts_slot find_neighbour(parts_slot slot, int step, const model_shape *s, const layer_shape *l)
{
    int i = (int)slot + step;
    while (i >= 0 && i < SLOT_COUNT && !parts_in((parts_slot)i, l))
        i += step;
    if (i < 0 || i >= SLOT_COUNT)
        return SLOT_COUNT;
    const char *name = names_format(s->architecture, slot), *other = names_format(s->architecture, (parts_slot)i);
    return name && other && !strcmp(name, other) ? (parts_slot)i : SLOT_COUNT;
}

/* Elements of a weight that are stacked before the next weight's: all of it, or one key head's. */
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
    const bool shares = find_neighbour(slot, -1, s, l) != SLOT_COUNT || find_neighbour(slot, 1, s, l) != SLOT_COUNT;
    if (!shares)
        span.unit = span.stride = span.rows;
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

static void append_tensor(tensor_list *to, const model_shape *s, parts_slot slot, int layer, int expert)
{
    layer_shape l = shape_layer(s, layer);
    if (to->count == to->capacity) {
        to->capacity = to->capacity ? 2 * to->capacity : 64;
        to->tensors = must_realloc(to->tensors, (unsigned long)to->capacity * sizeof *to->tensors);
    }
    const parts_row *row = parts_row_of(slot);
    names_tensor *t = &to->tensors[to->count++];
    *t = (names_tensor){
        .slot = slot, .layer = layer, .expert = expert, .dims = row->columns == PARTS_SIZE_VECTOR ? 1 : 2};
    char name[NAMES_BYTES];
    t->name = must_strdup(names_write(name, s->architecture, slot, layer, expert));
    bool swap = names_transposed(s->architecture, slot);
    t->shape[swap] = names_span_of(slot, s, &l).rows;
    if (t->dims == 2)
        t->shape[!swap] = parts_length(row->columns, s, &l);
    if (row->divided == PARTS_EXPERTS && expert < 0) {
        t->stacked = l.experts;
        t->shape[0] *= l.experts;
    }
}

/* Lists a layer's tensors of the slots from `first` up to `end`, once for each expert where they are of experts. */
static void append_layer(tensor_list *to, const model_shape *s, int first, int end, int layer)
{
    layer_shape l = shape_layer(s, layer);
    for (int i = first; i < end; i++) {
        parts_slot slot = (parts_slot)i;
        if (!parts_in(slot, &l) || find_neighbour(slot, -1, s, &l) != SLOT_COUNT)
            continue;
        int experts = names_by_expert(s->architecture, slot) ? l.experts : 0;
        for (int e = 0; e < experts; e++)
            append_tensor(to, s, slot, layer, e);
        if (experts == 0)
            append_tensor(to, s, slot, layer, -1);
    }
}

names_tensor *names_list(int *count, const model_shape *s)
{
    tensor_list all = {0};
    int slot = 0;
    while (slot < SLOT_COUNT) {
        int end = slot; /* the layers come one after the other, between the two ends */
        while (end < SLOT_COUNT && parts_row_of((parts_slot)end)->place == PARTS_AT_BLOCK)
            end++;
        for (int layer = 0; layer < shape_blocks(s) && end > slot; layer++)
            append_layer(&all, s, slot, end, layer);
        if (end == slot)
            append_layer(&all, s, end, end + 1, -1);
        end += end == slot;
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

/* ---- files ---- */

static const char *const also[SLOT_COUNT][FAMILY_COUNT] = {
#define ALSO(slot, ...) [SLOT_##slot] = {__VA_ARGS__},
#include "models/parts.def"
};

static const struct {
    parts_slot slot;
    const char *names[FAMILY_COUNT];
} copies[] = {
#define REPEATED(slot, ...) {SLOT_##slot, {__VA_ARGS__}},
#include "models/parts.def"
};

bool names_copy_of(char out[NAMES_BYTES], parts_slot *slot, const model_shape *s, int which)
{
    if (s->mtp_layers == 0 || which >= (int)(sizeof copies / sizeof *copies))
        return false;
    const char *format = names_choose(s->architecture, copies[which].names);
    MUST(format, "%s has no name for a copy of %s", shape_traits_of(s->architecture)->name,
         parts_row_of(copies[which].slot)->label);
    write_name(out, format, s->layers, -1);
    *slot = copies[which].slot == SLOT_HEAD && s->tied_embeddings ? SLOT_EMBEDDING : copies[which].slot;
    return true;
}

/* Counts rows of the weights before (step -1) or after it (1) that are stacked with it in the tensor of that other
 * name. */
static int64_t also_stacked(parts_slot slot, int step, const model_shape *s, const layer_shape *l)
{
    const char *name = names_choose(s->architecture, also[slot]);
    int64_t rows = 0;
    for (int i = (int)slot + step; i >= 0 && i < SLOT_COUNT; i += step) {
        const char *other = names_choose(s->architecture, also[i]);
        if (!other || strcmp(name, other) != 0)
            break;
        rows += parts_length(parts_row_of((parts_slot)i)->rows, s, l);
    }
    return rows;
}

int names_file_shape(int64_t out[3], const names_tensor *t)
{
    const int64_t stacked[3] = {t->stacked, t->stacked ? t->shape[0] / t->stacked : 0, t->shape[1]};
    const int64_t plain[3] = {t->shape[0], t->shape[1], 0};
    memcpy(out, t->stacked ? stacked : plain, sizeof stacked);
    return t->dims + (t->stacked > 0);
}

bool names_slice_of(names_slice *out, const model_shape *s, const names_tensor *t, int which)
{
    *out = (names_slice){.rows = t->shape[0], .stacked = t->stacked};
    if (which == 0)
        write_name(out->name, t->name, -1, -1);
    const char *format = names_choose(s->architecture, also[t->slot]);
    if (which != 1 || !format)
        return which == 0;
    write_name(out->name, format, t->layer, t->expert);
    if (t->expert < 0)
        return true;
    layer_shape l = shape_layer(s, t->layer);
    int64_t before = also_stacked(t->slot, -1, s, &l);
    int64_t all = before + t->shape[0] + also_stacked(t->slot, 1, s, &l);
    out->first = t->expert * all + before;
    out->rows = l.experts * all;
    out->stacked = l.experts;
    return true;
}
