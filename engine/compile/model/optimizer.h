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
/* The names of all states that a run has, each once, ended by NULL. */
enum { OPTIMIZER_SECTIONS = 2 * STORAGE_STATES + 1 };
void optimizer_sections(const char *names[OPTIMIZER_SECTIONS], const compile_options *o);
