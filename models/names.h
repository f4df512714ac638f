/* Hugging Face's names of parameters: one table, a row for every place in the decoder, a column for every family.
 *
 * A name with "%d" takes the layer. A NULL says that the family has no such parameter.
 */
#ifndef PHALANX_MODELS_NAMES_H
#define PHALANX_MODELS_NAMES_H

#include "models/shape.h"

typedef enum names_slot {
    SLOT_EMBEDDING,
    SLOT_POSITIONS,
    SLOT_NORM1,
    SLOT_NORM1_BIAS,
    SLOT_Q,
    SLOT_K,
    SLOT_V,
    SLOT_QKV, /* one tensor for the three */
    SLOT_Q_BIAS,
    SLOT_K_BIAS,
    SLOT_V_BIAS,
    SLOT_QKV_BIAS,
    SLOT_Q_NORM,
    SLOT_K_NORM,
    SLOT_OUT,
    SLOT_OUT_BIAS,
    SLOT_NORM2,
    SLOT_NORM2_BIAS,
    SLOT_GATE,
    SLOT_UP,
    SLOT_UP_BIAS,
    SLOT_DOWN,
    SLOT_DOWN_BIAS,
    SLOT_FINAL_NORM,
    SLOT_FINAL_NORM_BIAS,
    SLOT_HEAD,
    SLOT_COUNT,
} names_slot;

/* NULL where the architecture has no such parameter. */
const char *names_format(shape_architecture architecture, names_slot slot);
/* Hugging Face's own prefix of everything but the head: "transformer.", "model.". Files of the bare model lack it. */
const char *names_prefix(shape_architecture architecture);
/* Are the architecture's linear weights stored [in, out] (GPT-2's Conv1D) and not [out, in]? */
bool names_transposed(shape_architecture architecture);

/* One parameter of a model as its files have it. */
typedef struct names_tensor {
    char *name;
    names_slot slot;
    int layer; /* -1: of no layer */
    int dims;
    int64_t shape[2]; /* in the file's order: transposed where names_transposed says so */
} names_tensor;

/* Every parameter that the files of a model of this shape hold, in the model's order; a tied head is none. The list is
 * the caller's until names_free. */
names_tensor *names_list(int *count, const model_shape *shape);
void names_free(names_tensor *list, int count);

#endif
