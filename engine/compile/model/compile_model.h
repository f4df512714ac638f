/* One rank's share of a model, before any program: its parameters, which rows it owns, and an address for all that has
 * bytes as long as it runs.
 *
 * compile_model() makes it from options; from then on it is const. Programs are recorded from it (compile_program.h),
 * any number at a time and in any number of threads, and each owns its own ops and tensors. Any rank of any layout can
 * be compiled anywhere: `plan` does it for ranks that do not exist, `train` for its own.
 */
#pragma once

#include "engine/compile/model/compiled.h"

/* A usage failure (an impossible layout) is one line. `out` must be freed either way. */
status compile_model(compiled *out, const compile_options *options);
/* Compiles the rank of this stage that needs most: decisions that all its ranks must share are taken for this one. */
status compile_model_largest(compiled *largest, const compile_options *options);
void compile_free(compiled *c);
void compile_program_free(compiled_program *p);
/* Number of programs of a model, one after the other; programs that were not compiled have an empty list. */
enum { COMPILE_PROGRAMS = 4 + COMPILE_RAMP + (1 + COMPILE_RAMP) * COMPILE_HIGHER };
const compiled_program *compile_program_at(const compiled *c, int i);
/* The training program of `microbatches` micro-batches, options.microbatches or one of options.ramp, in a bucket. */
const compiled_program *compile_program_of(const compiled *c, int microbatches, int bucket);

/* The schedule over the layout's stages; SCHEDULE_AUTO: it is found (compile_find()). */
schedule_kind compile_schedule_kind(const compile_options *o);
/* Which stage holds which chunks of layers. */
chunk_map compile_chunks(const compile_options *o);

/* True if two compiled ranks of one stage hold parameters and tokens of the same sizes. */
bool compile_same_sizes(const compiled *a, const compiled *b);
/* The rank that owns most among those that sum gradients with this one (the lowest of several), as an index along
 * AXIS_GRADIENT; *spread: how many bytes less the least one owns. */
int compile_largest_owner(const compiled *c, int64_t *spread);

/* True if the vocabulary is divided over stages. */
bool compile_divides_vocabulary(const compile_options *o);
/* Layers of every chunk of the model, by global number, into `counts`. */
status compile_divide_layers(int *counts, const compile_options *o);
