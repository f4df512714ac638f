/* Which schedule a step has: the configured one, made, or with SCHEDULE_AUTO the one that was found (compile_find.h). */
#ifndef PHALANX_ENGINE_COMPILE_COMPILE_SCHEDULE_H
#define PHALANX_ENGINE_COMPILE_COMPILE_SCHEDULE_H

#include "engine/compile/compiled.h"

/* SCHEDULE_AUTO: a copy of o->found, which is there. */
status compile_schedule(schedule *out, const compile_options *o, int microbatches);
/* Are the weights' gradients actions of their own? */
bool compile_schedule_splits(const compile_options *o);

#endif
