#include "engine/state/weights/upcycle.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "models/dense.h"

struct upcycle {
    weights *from;
    model_shape shape;
    names_tensor *names; /* [count] of the model with experts, by name */
    int count;
};

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const names_tensor *)a)->name, ((const names_tensor *)b)->name);
}

status upcycle_open(upcycle **out, weights *from, const model_shape *shape)
{
    TRY(dense_check(shape, weights_shape(from), weights_folder(from)));
    upcycle *u = must_calloc(1, sizeof *u);
    u->from = from;
    u->shape = *shape;
    u->names = names_list(&u->count, shape);
    qsort(u->names, (size_t)u->count, sizeof *u->names, compare_names);
    *out = u;
    return STATUS_OK;
}

void upcycle_close(upcycle *u)
{
    if (!u)
        return;
    names_free(u->names, u->count);
    free(u);
}

/* The slot of the weight that has row `at` of a tensor, or of an expert's part of it; its rows there. */
static parts_slot slot_at(names_span *span, const upcycle *u, const names_tensor *t, int64_t at)
{
    const layer_shape layer = shape_layer(&u->shape, t->layer);
    for (parts_slot slot = t->slot; slot < SLOT_COUNT; slot++) {
        *span = names_span_of(slot, &u->shape, &layer);
        if (at >= span->first && at < span->first + span->unit)
            return slot;
    }
    MUST(false, "%s has no row %" PRId64, t->name, at);
    return SLOT_COUNT;
}

/* Reads the rows from part->start[0] on that are of one weight, at most all; how many they are. */
static status read_rows(int64_t *rows, const upcycle *u, const names_tensor *t, const box *part, const box_memory *to)
{
    const model_shape *dense = weights_shape(u->from);
    const layer_shape its = shape_layer(dense, t->layer);
    const int64_t of_expert = t->stacked ? t->shape[0] / t->stacked : t->shape[0], at = part->start[0] % of_expert;
    names_span span;
    const parts_slot slot = slot_at(&span, u, t, at), from = dense_slot(slot);
    const int64_t left = span.first + span.unit - at, asked = part->size[0];
    *rows = left < asked ? left : asked;
    if (slot == SLOT_ROUTER)
        return STATUS_OK;
    names_span source = names_span_of(from, dense, &its);
    MUST(span.unit == source.unit, "%s has rows of another number", t->name);
    char name[NAMES_BYTES];
    rectangle of = {.name = names_write(name, dense->architecture, from, t->layer, -1),
                    .dims = t->dims,
                    .global = {source.rows, t->shape[1]},
                    .part = *part};
    of.part.start[0] = source.first + at - span.first;
    of.part.size[0] = *rows;
    return weights_read(u->from, &of, to);
}

status upcycle_read(void *context, const rectangle *of, const box_memory *to)
{
    const upcycle *u = context;
    const names_tensor key = {.name = (char *)(uintptr_t)of->name};
    const names_tensor *t = bsearch(&key, u->names, (size_t)u->count, sizeof key, compare_names);
    MUST(t, "%s is no tensor of the model", of->name);
    box part = of->part;
    box_memory at = *to;
    const int64_t end = of->part.start[0] + of->part.size[0];
    while (part.start[0] < end) {
        int64_t rows;
        part.size[0] = end - part.start[0];
        TRY(read_rows(&rows, u, t, &part, &at));
        part.start[0] += rows;
        at.data = (char *)at.data + rows * at.stride[0] * dtype_bytes(at.type);
    }
    return STATUS_OK;
}
