/* Names of parameters in checkpoints and in Hugging Face's files: from parts.def, in the family of an architecture.
 *
 * A name with "%d" takes the layer, a second one the expert.
 */
#pragma once

#include "models/parts.h"

/* Chooses the architecture's of `names`: its family's, or where that has none its base's. NULL: none, or "". */
const char *names_choose(shape_architecture architecture, const char *const names[FAMILY_COUNT]);
/* True if the family is the architecture's, or a base of it. */
bool names_of_family(shape_architecture architecture, shape_family family);
/* NULL where the family has none, for it has no such parameter. */
const char *names_format(shape_architecture architecture, parts_slot slot);
/* Writes the weight's name for a layer and, if its name takes one, an expert. The family must have one. */
enum { NAMES_BYTES = 256 };
const char *names_write(char out[NAMES_BYTES], shape_architecture architecture, parts_slot slot, int layer, int expert);
/* True if each expert's weight is a tensor of its own, and not one tensor of all. */
bool names_by_expert(shape_architecture architecture, parts_slot slot);
/* Hugging Face's own prefix of everything but the head: "transformer.", "model.". Files of the bare model lack it. */
const char *names_prefix(shape_architecture architecture);
/* True if matrices of this slot are stored [in, out] (GPT-2's Conv1D, GPT-OSS' experts) and not [out, in]. */
bool names_transposed(shape_architecture architecture, parts_slot slot);

/* The place of a weight in the tensor of its name, of `rows` rows (of a vector: elements): `unit` rows from `first` on,
 * and as many every `stride` rows after those, while it has any left. */
typedef struct names_span {
    int64_t first, rows, unit, stride;
} names_span;
names_span names_span_of(parts_slot slot, const model_shape *shape, const layer_shape *layer);

/* One parameter of a model as its files have it. */
typedef struct names_tensor {
    char *name;
    parts_slot slot; /* the first of the weights that it holds */
    int layer;       /* -1: of no layer */
    int expert;      /* -1: of none, or of all */
    int dims;
    int64_t shape[2]; /* sizes in the file's order: transposed where names_transposed says so */
    int stacked;      /* number of experts' matrices or vectors that it stacks; 0: it stacks none, or one */
} names_tensor;

/* Lists every parameter that the files of a model of this shape hold, in the model's order; a tied head is not among
 * them. The list is the caller's until names_free. */
names_tensor *names_list(int *count, const model_shape *shape);
void names_free(names_tensor *list, int count);

/* Names a second copy that the files of a model with an MTP module hold: copy `which` (from 0), and the weight that it
 * repeats. False: there is no such copy. */
bool names_copy_of(char out[NAMES_BYTES], parts_slot *slot, const model_shape *shape, int which);

/* Writes its shape as Hugging Face has it, in which a tensor of all experts has a dimension for them. Returns how many
 * dimensions there are. */
int names_file_shape(int64_t out[3], const names_tensor *tensor);

/* The place of a listed tensor in a file: from row `first` on, in a tensor of `rows` rows and as many columns. */
typedef struct names_slice {
    char name[NAMES_BYTES];
    int64_t first, rows;
    int stacked; /* number of matrices that the rows stack, a dimension of their own; 0: one matrix */
} names_slice;
/* Gives the places where files may have it: 0 is the published one, where it is written; 1 is that of transformers' own
 * modules. False: there is no such place. */
bool names_slice_of(names_slice *out, const model_shape *shape, const names_tensor *tensor, int which);
