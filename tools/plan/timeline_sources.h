/* Where `phalanx timeline` takes its pictures from. */
#pragma once

#include "engine/compile/plan/plan.h"
#include "tools/plan/timeline_picture.h"

/* The step as it is simulated: a row for one rank of each stage. */
status timeline_predict(picture *out, picture_names *names, const plan *p);
/* Step `step` (-1: the last one) of a run that was traced: a row for each rank, of very many the first of each stage.
 * *traced: false where the run has no trace, and `out` is empty. `o` is the run's, for what its ranks hold. */
status timeline_measure(picture *out, bool *traced, picture_names *names, const char *run, int64_t step,
                        const compile_options *o);
