/* The table of optimizers (engine/config/optimizers.def) as the compiler reads it: a parameter's states, its possible
 * owners, and the ops of its update. */
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
    config_optimizer rest;                 /* optimizer of the other parameters; itself: it updates all */
    int takes;                             /* unit of an update: elements or matrices */
} optimizer;

/* Return a state's type, and whether masters exist beside the weights. */
dtype optimizer_state_type(const compile_options *o);
bool optimizer_has_master(const compile_options *o);
/* Returns the optimizer of a parameter. */
const optimizer *optimizer_of(const compile_options *o, const parameter *p);
int optimizer_states(const optimizer *o);
/* Appends the ops of a parameter's update. */
void optimizer_append(const optimizer_update *u);
/* True if one data rank must own all of the parameter, because its matrices are updated as a whole. */
bool optimizer_whole(const compile_options *o, const parameter *p);
/* True if this parameter's masters and states are in host memory; never for vectors, which are small. */
bool optimizer_offloads(const compile_options *o, const parameter *p);
/* Lists the names of all states of a run, each once, ended by NULL. */
enum { OPTIMIZER_SECTIONS = 2 * STORAGE_STATES + 1 };
void optimizer_sections(const char *names[OPTIMIZER_SECTIONS], const compile_options *o);

/* QK-clip (2507.20534): after Muon's update, scales the rows of query and key weights of each head with a max logit
 * above optimizer.qk_clip in the step, by gamma = optimizer.qk_clip / max logit. Attention notes the max logits in
 * values.max_logits; here they are reduced over ranks with other tokens, and become factors of rows. If each q head has
 * its own k head, both take sqrt(gamma); so do the elements of latent attention (2405.04434) without rotary embedding.
 * Where q heads share k (grouped queries, and the rotary elements of latent attention), q takes gamma, k stays as it
 * is. A skipped step changes no weights. */

/* Appends ops that combine the max logits of all ranks, and writes the maximum to values.max_logit. Returns this rank's
 * heads, fp32[ranks layers, heads], or NULL without clipping. Every rank must append it. */
tensor *qk_clip_gather(compiled_program *out, const compiled *c);

/* Ops outside the micro-batches: gathers before them, and after them reductions, norm and optimizer. */

/* Makes an op (op_make() of kernels/record/op_make.h; `into` is for output 0) and appends it to the program. */
op *append_op(compiled_program *out, phase when, const char *label, const op *like, unsigned outputs, tensor *into);
/* Returns rows of a tensor as a view. */
tensor *append_rows(compiled_program *out, tensor *of, int64_t first, int64_t rows);
