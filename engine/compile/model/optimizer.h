/* The rows of the table of optimizers (engine/config/optimizers.def) as the compiler reads them: the state that a
 * parameter needs, its possible owners, and the ops that update it. Constants. */
#pragma once

#include "engine/compile/model/compiled.h"

/* The update of one parameter. */
typedef struct optimizer_update {
    compiled_program *out;
    const compiled *c;
    const storage *s;
    int64_t first, rows; /* the owned rows (vector: elements) to update; all where matrices are updated whole */
    tensor *gradient;    /* complete, of the owned rows */
    tensor *control;     /* result of `clip` */
    tensor *max_logits;  /* result of qk_clip_gather(); NULL: no clipping */
} optimizer_update;

typedef struct optimizer {
    const char *name;
    op_kind op;                            /* kind of an update */
    const char *state[STORAGE_STATES + 1]; /* their names; NULL ends them */
    config_optimizer rest;                 /* optimizer of the other parameters; itself: it takes all */
    int takes;                             /* elements or matrices */
} optimizer;

/* Type of a state, and whether there are masters beside the weights. */
dtype optimizer_state_type(const compile_options *o);
bool optimizer_has_master(const compile_options *o);
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

/* QK-clip (2507.20534): after Muon's update, scales the rows of query and key weights of each head with a max logit
 * above optimizer.qk_clip in the step. Attention notes the max logits in values.max_logits; here they are combined with
 * those of ranks that see other tokens, and become factors of rows in the update. A head has gamma = threshold / max
 * logit. Where each head of q has a head of k of its own, both sides take the root of gamma; in latent attention
 * (2405.04434) so do the elements that do not rotate, while the rotating ones of q take all of gamma, since all heads
 * share those of k. For the same reason heads of q that share a head of k take all of gamma, and the key stays as it
 * is. A skipped step changes no weights. */

/* Appends ops that combine the max logits of all ranks, and writes the maximum to values.max_logit. Returns this rank's
 * heads, fp32[ranks layers, heads], or NULL without clipping. Every rank must append it. */
tensor *qk_clip_gather(compiled_program *out, const compiled *c);

/* Ops outside the micro-batches: gathers before them, and after them reductions, norm and optimizer. */

/* Makes an op (op_make() of kernels/record/op_make.h; `into` is for output 0) and appends it to the program. */
op *append_op(compiled_program *out, phase when, const char *label, const op *like, unsigned outputs, tensor *into);
/* Rows of a tensor as a view. */
tensor *append_rows(compiled_program *out, tensor *of, int64_t first, int64_t rows);
