/* The ladder of a model's training programs (layers/ladder.h), as its options have it. */
#ifndef PHALANX_ENGINE_COMPILE_MODEL_RUNGS_H
#define PHALANX_ENGINE_COMPILE_MODEL_RUNGS_H

#include "engine/compile/model/compiled.h"

/* How many rungs there are: 1 where no ranks divide experts. */
int compile_rungs(const compile_options *o);
/* Rows of a layer and micro-batch that a rank has room for where others are dropped; 0: none is. */
int64_t compile_room(const compile_options *o);

#endif
