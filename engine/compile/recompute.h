/* What is kept for the backward pass and what is made again: a setting, or whatever fits a memory budget. */
#ifndef PHALANX_ENGINE_COMPILE_RECOMPUTE_H
#define PHALANX_ENGINE_COMPILE_RECOMPUTE_H

#include "engine/compile/compile.h"

/* Compiles c->training as options.recompute says, or, with options.budget, keeping as much as fits and making again what
 * costs least FLOPs a byte saved. A usage failure says by how much the budget is missed when even making everything
 * again does not fit. */
status recompute_compile(compiled *c);

/* The training program under one way of recompute (compile.c). drop[chunk][op of the forward body], for RECOMPUTE_CHOSEN.
 * bound_only: lifetimes and lower bound, no addresses. */
status compile_training(compiled_program *out, compiled *c, recompute how, uint8_t *const *drop, bool bound_only);
/* Forget what an earlier recording or plan left on the parameters. */
void compile_forget(compiled *c);

#endif
