/* The precision table (precision.def): the types of a training step's computations, and the device peaks that they
 * reach.
 *
 * Types are decided here and nowhere else: recording asks for the compute type, the optimizer for the master's, and
 * product_check_types() says of each recorded product in which types it multiplies. Later passes read the types of
 * tensors. Rows are constants.
 */
#pragma once

#include <stdbool.h>

#include "kernels/table/devices.h"
#include "memory/dtype.h"

typedef enum precision_kind {
#define PRECISION(name, ...) PRECISION_##name,
#include "kernels/table/precision.def"
    PRECISION_COUNT,
} precision_kind;

typedef struct precision_row {
    dtype compute, master, product, cotangent;
    peak_kind peak, rounded;
    bool scales_loss, kept;
} precision_row;

extern const precision_row precision_rows[PRECISION_COUNT];
/* The words of train.precision, in the order of precision_kind, ended by NULL. */
extern const char *const precision_words[PRECISION_COUNT + 1];

static inline const precision_row *precision_row_of(precision_kind kind)
{
    return &precision_rows[kind];
}

/* The type of weights and activations. */
static inline dtype precision_compute(precision_kind kind)
{
    return precision_rows[kind].compute;
}

/* The precision where none is asked for; `half`: the device multiplies bf16. */
precision_kind precision_default(bool half);
/* True if any precision computes in this type. */
bool precision_computes_in(dtype type);
/* True if the optimizer can keep a weight in `type`: as its master, or as the weight itself. */
bool precision_keeps(precision_kind kind, dtype type);
/* True for a type of an optimizer's state or master that updates widen to compute and round stochastically. */
bool precision_is_narrow(dtype type);
/* The peak that products of operands of `type` can reach; `rounds`: train.tf32 holds. */
peak_kind precision_peak(dtype type, bool rounds);
/* True if that is another peak, because the products round their operands. */
bool precision_rounds(dtype type, bool rounds);
