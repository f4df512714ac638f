/* What a viewer of a trace draws beside the ops of a program: how much memory is alive, how many tokens are done, and
 * which message arrives where. Marks own their lists.
 */
#pragma once

#include "engine/compile/model/compiled.h"

typedef struct trace_marks {
    int64_t *kept, *rest; /* [ops + 1], bytes alive while an op plays, as alive_find() has them */
    int64_t *tokens;      /* [ops] of the micro-batches whose backward pass is over when the op ends */
    int *message;         /* [ops]: the number of a message among those of its peer and direction; else -1 */
} trace_marks;

/* Of a program that is placed, compiled with `o`. */
void trace_marks_make(trace_marks *out, const compiled_program *p, const compile_options *o);
void trace_marks_free(trace_marks *m);
/* One number for both ends of a message in a trace, below 2^52, so that no reader rounds it. */
int64_t trace_marks_flow(int64_t step, int from, int to, bool upstream, int number);
