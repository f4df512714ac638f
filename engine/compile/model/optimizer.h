/* The rows of the table of optimizers (engine/config/optimizers.def) as the compiler reads them: what state a parameter
 * needs, who may own it, and the ops that update it. Constants. */
#pragma once

#include "engine/compile/model/compiled.h"

/* The update of one parameter. */
typedef struct optimizer_update {
    compiled_program *out;
    const compiled *c;
    const storage *s;
    int64_t first,
        rows; /* of the owned rows (of a vector: elements), those to update; all where matrices are updated whole */
    tensor *gradient; /* complete, of the owned rows */
    tensor *control;  /* what `clip` left */
    tensor *peaks;    /* qk_clip_gather()'s; NULL: nothing clips */
} optimizer_update;

typedef struct optimizer {
    const char *name;
    op_kind op;                            /* of an update */
    const char *state[STORAGE_STATES + 1]; /* their names; NULL ends them */
    config_optimizer rest;                 /* of parameters that this one does not take; itself: it takes all */
    int takes;                             /* elements or matrices */
} optimizer;

/* What a state takes, and whether there are masters beside the weights. */
dtype optimizer_state_type(const compile_options *o);
bool optimizer_has_master(const compile_options *o);
/* The word of optimizer.name. */
const char *optimizer_name(const compile_options *o);
/* The optimizer of a parameter. */
const optimizer *optimizer_of(const compile_options *o, const parameter *p);
int optimizer_states(const optimizer *o);
/* Appends the ops of a parameter's update. */
void optimizer_append(const optimizer_update *u);
/* Must one data rank own all of the parameter, because its matrices are updated as a whole? */
bool optimizer_whole(const compile_options *o, const parameter *p);
/* Are this parameter's masters and states in host memory? Vectors' are not: they are small. */
bool optimizer_offloads(const compile_options *o, const parameter *p);
/* The names of all states that a run has, each once, ended by NULL. */
enum { OPTIMIZER_SECTIONS = 2 * STORAGE_STATES + 1 };
void optimizer_sections(const char *names[OPTIMIZER_SECTIONS], const compile_options *o);

/* QK-clip (2507.20534): after Muon's update, rows of weights that make queries and keys are scaled where a head's
 * largest score in the step exceeded optimizer.qk_clip. Scores are noted by attention in values.peaks; here they meet
 * those of the ranks that see other tokens, and become factors of rows, which the update multiplies by.
 *
 * Of a head with gamma = threshold / largest score: where each head of q has a head of k of its own, both sides take
 * the root of gamma; of latent attention (2405.04434) so do the elements that do not rotate, while the rotating ones of
 * q take all of gamma, since all heads share those of k. For the same reason heads of q that share a head of k take all
 * of gamma, and the key stays as it is. Nothing changes where a step is skipped.
 */

/* Appends what brings together the scores of all ranks, and writes the largest to values.peak. Returns those of this
 * rank's heads, fp32[ranks layers, heads], or NULL where nothing clips. Every rank must append it. */
tensor *qk_clip_gather(compiled_program *out, const compiled *c);

/* Ops outside the micro-batches: gathers before them, and after them reductions, norm and optimizer. */

/* Makes an op (op_make() of kernels/record/op_make.h; `into` is for output 0) and appends it to the program. */
op *append_op(compiled_program *out, phase when, const char *label, const op *like, unsigned outputs, tensor *into);
/* Rows of a tensor as a view. */
tensor *append_rows(compiled_program *out, tensor *of, int64_t first, int64_t rows);
