/* The weights of a model: the rows of parts.def, and the sizes that they have in a model or a layer of some shape.
 *
 * Everything here is of the whole model, as files have it; the decoder knows a rank's part.
 */
#pragma once

#include "models/shape.h"

typedef enum parts_slot {
#define PART(slot, ...) SLOT_##slot,
#include "models/parts.def"
    SLOT_COUNT
} parts_slot;

typedef enum parts_size {
    PARTS_SIZE_VECTOR,
#define SIZE(name, ...) PARTS_SIZE_##name,
#include "models/parts.def"
    PARTS_SIZES
} parts_size;

typedef enum parts_rule { PARTS_RULE_WHOLE, PARTS_RULE_HEADS, PARTS_RULE_PADDED, PARTS_RULE_VOCABULARY } parts_rule;
typedef enum parts_place {
    PARTS_AT_EMBEDDING,
    PARTS_AT_FIRST,
    PARTS_AT_BLOCK,
    PARTS_AT_LAST,
    PARTS_AT_HEAD,
} parts_place;
typedef enum parts_divided {
    PARTS_ROWS,
    PARTS_COLUMNS,
    PARTS_STREAM,
    PARTS_SHARED,
    PARTS_FIRST_RANK,
    PARTS_EXPERTS,
    PARTS_COUNTED,
} parts_divided;
typedef enum parts_initial { PARTS_NORMAL, PARTS_RESIDUAL, PARTS_ZERO, PARTS_GAIN } parts_initial;

/* A row of parts.def, which explains the fields. */
typedef struct parts_row {
    parts_place place;
    parts_size rows, columns; /* columns PARTS_SIZE_VECTOR: a vector of `rows` elements */
    parts_divided divided;
    parts_initial initial;
    bool decays;
    uint64_t needs; /* bit i: shape_trait i */
    const char *label;
    const char *names[FAMILY_COUNT];
} parts_row;

/* A size as its parts: `count` units of `unit` elements. */
typedef struct parts_extent {
    int64_t count, unit;
    parts_rule rule;
} parts_extent;

const parts_row *parts_row_of(parts_slot slot);
/* True if a layer of this shape (with -1 the model) has this weight. */
bool parts_in(parts_slot slot, const layer_shape *layer);
/* Returns a size in a model and its layer; 1 for a vector's columns. */
parts_extent parts_extent_of(parts_size size, const model_shape *shape, const layer_shape *layer);
/* Elements along it. */
int64_t parts_length(parts_size size, const model_shape *shape, const layer_shape *layer);

/* Elements of a head, for a weight that has heads as rows (SLOT_Q, SLOT_K, SLOT_V). */
int parts_head_size(parts_slot slot, const model_shape *shape, const layer_shape *layer);

/* Exact number of parameters of a model, without any padding; it counts tied ones once, and includes the MTP
 * module's. */
int64_t parts_parameters(const model_shape *shape);
/* Number of the parameters that compute one token: it counts as many of a layer's experts as a token has. */
int64_t parts_active_parameters(const model_shape *shape);

/* Is a model of this shape the dense one of `folder` but for its experts, so that it can begin as that one, each expert
 * a copy of the dense layer's mlp (2212.05055)? A failure names the size or the trait that differs. */
status parts_check_dense(const model_shape *shape, const model_shape *dense, const char *folder);
/* Returns the dense model's weight that a weight of the other copies. */
parts_slot parts_dense_slot(parts_slot slot);
