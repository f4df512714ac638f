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
/* Are the architecture's linear weights stored [in, out] (GPT-2's Conv1D) and not [out, in]? */
bool names_transposed(shape_architecture architecture);

#endif
