/* Chooses which tensors are kept for the backward pass and which are recomputed: a setting, or by a memory budget. */
#pragma once

#include "engine/compile/step/compile_program.h"

typedef struct recompute_decision {
    compile_keep keep; /* points to `drop` */
    uint8_t **drop;    /* [chunks]; NULL: keep.how is a setting */
    int chunks;
    int dropped; /* number of forward ops with recomputed outputs */
    char *words; /* these ops, in words; NULL without a budget */
} recompute_decision;

/* Decides by options.recompute or, with options.budget, keeps as much as fits and recomputes the ops that cost the
 * least FLOPs per byte saved. A usage failure says by how much the budget is missed when not even recomputing
 * everything fits. `bucket`: the program's capacity bucket (layers/capacity.h). `draft`: fitting a few micro-batches
 * suffices, which can be a little too much for all. The decision must be freed either way. */
status recompute_decide(recompute_decision *out, const compiled *c, int bucket, bool draft);
void recompute_decision_free(recompute_decision *d);
/* Micro-batches that reach the same peak as all of them: several rounds through the pipeline. */
int recompute_microbatches(const compile_options *o);
/* Costs of the ops of a program of `c`, in FLOPs: their own, and moved bytes as the FLOPs that the device could do
 * meanwhile. */
double recompute_price(const compiled *c, const program *p);
