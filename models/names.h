/* Names of parameters in checkpoints and in Hugging Face's files: those of parts.def in the family of an architecture.
 *
 * A name with "%d" takes the layer.
 */
#ifndef PHALANX_MODELS_NAMES_H
#define PHALANX_MODELS_NAMES_H

#include "models/parts.h"

/* The one of `names` that is the architecture's: its family's, or where that has none its base's. NULL: none. */
const char *names_choose(shape_architecture architecture, const char *const names[FAMILY_COUNT]);
/* Is the family the architecture's, or a base of it? */
bool names_of_family(shape_architecture architecture, shape_family family);
/* NULL where the family has none, for it has no such parameter. */
const char *names_format(shape_architecture architecture, parts_slot slot);
/* Hugging Face's own prefix of everything but the head: "transformer.", "model.". Files of the bare model lack it. */
const char *names_prefix(shape_architecture architecture);
/* Are matrices of this slot stored [in, out] (GPT-2's Conv1D) and not [out, in]? */
bool names_transposed(shape_architecture architecture, parts_slot slot);

/* Where a weight lies in the tensor of its name, of `rows` rows (of a vector: elements): `unit` rows from `first` on,
 * and as many `stride` rows after those, for as long as it has some. */
typedef struct names_span {
    int64_t first, rows, unit, stride;
} names_span;
names_span names_span_of(parts_slot slot, const model_shape *shape, const layer_shape *layer);

/* One parameter of a model as its files have it. */
typedef struct names_tensor {
    char *name;
    parts_slot slot; /* the first of those that it holds */
    int layer;       /* -1: of no layer */
    int dims;
    int64_t shape[2]; /* in the file's order: transposed where names_transposed says so */
} names_tensor;

/* Every parameter that the files of a model of this shape hold, in the model's order; a tied head is not among them.
 * The list is the caller's until names_free. */
names_tensor *names_list(int *count, const model_shape *shape);
void names_free(names_tensor *list, int count);

#endif
