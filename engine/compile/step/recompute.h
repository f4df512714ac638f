/* What is kept for the backward pass and what is recomputed: a setting, or what a memory budget needs. */
#pragma once

#include "engine/compile/step/compile_program.h"

typedef struct recompute_decision {
    compile_keep keep; /* points to `drop` */
    uint8_t **drop;    /* [chunks]; NULL: keep.how is a setting */
    int chunks;
    int dropped; /* forward ops whose outputs are recomputed */
    char *words; /* which; NULL without a budget */
} recompute_decision;

/* As options.recompute says, or, with options.budget, keeping as much as fits and recomputing what costs least FLOPs a
 * byte saved. A usage failure says by how much the budget is missed when not even recomputing everything fits. `rung`:
 * of the ladder (layers/ladder.h) that the program is on. `draft`: what fits a few micro-batches will do, which
 * can be a little too much for all. The decision must be freed either way. */
status recompute_decide(recompute_decision *out, const compiled *c, int rung, bool draft);
void recompute_decision_free(recompute_decision *d);
/* Micro-batches that reach the same peak as all of them: several rounds through the pipeline. */
int recompute_microbatches(const compile_options *o);
/* What the ops of a program of `c` cost, in FLOPs: their own, and bytes that move as what the device could compute
 * meanwhile. */
double recompute_price(const compiled *c, const program *p);
