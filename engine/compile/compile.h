/* Compile: from a configuration and a place in the grid to planned programs, without a device and without peers.
 *
 *     shape -> parameters and their storage (compile_model.h) -> kept and recomputed tensors (recompute.h)
 *     -> recorded chunks -> schedule, lowering -> one list -> reductions and optimizer
 *     -> waits, shared storage, lifetimes, addresses (compile_program.h)
 *
 * Each arrow takes values that it does not change and makes new ones.
 */
#pragma once

#include "engine/compile/model/compile_model.h"
#include "engine/compile/model/compiled.h"
#include "engine/config/config.h"

/* Ops between two marks, which tell a host how far a device has come: few beside the ops, and no more than a layer's
 * pass. */
enum { COMPILE_MARK_OPS = 16 };
int compile_marks(const compiled_program *p);
/* Nodes of a CUDA graph of the program: an op that a device launches, or a mark, is one, a wait or a view none. Of all
 * programs together where they are played as graphs; else 0. */
int64_t compile_program_nodes(const compiled_program *p);
int64_t compile_graph_nodes(const compiled *c);

/* A usage failure (an impossible layout, a budget that cannot be met) is one line. `out` must be freed either way. */
status compile(compiled *out, const compile_options *options);
/* Fills the options from a configuration and a grid. */
status compile_options_from(compile_options *out, const config *c, const grid *g, const op_backend *backend,
                            int threads);

/* Ops of a training step may be played a second time to see whether their bits repeat (engine/guard/verify.h). An op
 * that reads bytes that it writes (it adds to a sum, works in place, or has a state) can only be repeated when these
 * are put back as they were. There is room for the largest such op after everything else in the arena, where the run
 * verifies. */

/* The most sums kept per parameter: weight, own rows, master, states, feedback and the sum's feedback. */
enum { REPEAT_RESTS = STORAGE_STATES + 5 };

/* True for ops that may be repeated: forward and backward passes, without communication and waits. */
bool repeat_may(const op *o);
/* True if the op of a placed program reads bytes that it writes. */
bool repeat_changes(const op *o);
/* The contiguous runs of bytes of `t`: the gaps between the rows of a view belong to other tensors. */
device_rows repeat_rows(const tensor *t);
