/* Programs from a model: record each chunk of layers once, unroll them in the schedule's order, append reductions and
 * the optimizer, find waits, lifetimes and addresses. The model is not changed; a program owns all that was made for
 * it. */
#pragma once

#include "engine/compile/model/compile_model.h"
#include "engine/compile/model/compiled.h"

/* What is kept for the backward pass, and in which order the micro-batches' ops are. drop[chunk][op of the forward
 * body]: recompute its outputs; for RECOMPUTE_CHOSEN. */
typedef struct compile_keep {
    recompute how;
    uint8_t *const *drop;
    compile_order order; /* one for all ranks of a stage */
    int rung;            /* of a ladder (layers/ladder.h) */
    int64_t enough;      /* transient bytes that are few enough: placing stops there; 0: near the lower bound */
} compile_keep;

/* A step of `microbatches` micro-batches. bound_only: lifetimes and the lower bound, no addresses. `out` must be freed
 * either way (compile_program_free). */
status compile_program_training(compiled_program *out, const compiled *c, const compile_keep *keep, int microbatches,
                                bool bound_only);
/* Evaluation of one micro-batch a rank, or decoding of one token: forward bodies only. */
status compile_program_forward(compiled_program *out, const compiled *c);
/* Of a model that trains with ZeRO 1 or 2, between steps: every rank's weights become whole. Else it is empty. */
void compile_program_gathers(compiled_program *out, const compiled *c);
