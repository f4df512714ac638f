/* Compile: from a configuration and a place in the grid to planned programs, without a device and without peers.
 *
 *     shape -> parameters and their storage (compile_model.h) -> what is kept and what is recomputed (recompute.h)
 *     -> recorded chunks -> schedule, lowering -> one list -> reductions and optimizer -> waits, shared storage,
 *     lifetimes,
 *     addresses (compile_program.h)
 *
 * Each arrow takes values that it does not change and makes new ones.
 */
#pragma once

#include "engine/compile/model/compile_model.h"
#include "engine/compile/model/compiled.h"
#include "engine/config/config.h"

/* Ops between two marks, by which a host sees how far a device has come: few beside the ops, and no more than a layer's
 * pass. */
enum { COMPILE_MARK_OPS = 16 };
int compile_marks(const compiled_program *p);
/* Nodes of a CUDA graph of the program: an op that a device launches, or a mark, is one, a wait or a view none. Of all
 * programs together where they are played as graphs; else 0. */
int64_t compile_program_nodes(const compiled_program *p);
int64_t compile_graph_nodes(const compiled *c);

/* A usage failure (an impossible layout, a budget that cannot be met) is one line. `out` must be freed either way. */
status compile(compiled *out, const compile_options *options);
/* The options that a configuration and a grid mean. */
status compile_options_from(compile_options *out, const config *c, const grid *g, const op_backend *backend,
                            int threads);
