/* When each op and message of some steps ran, on this rank (run.trace), as a file in the Trace Event Format that
 * Perfetto and chrome://tracing read (run.folder/trace/rank-00003.json). `phalanx timeline` draws them, below what the
 * plan has predicted.
 *
 * On the CPU the host's clock is read around each op, launches included: 0.1 us. On a GPU an event is recorded on the
 * op's queue before and after it, and a step that is traced is enqueued op by op, also with a graph. A message lasts
 * from its launch to the end of the wait for it where the host moves messages, else as long as its queue was busy with
 * it. All ranks' times count from the moment at which rank 0 began the first traced step; clocks of several hosts are
 * set by a few exchanges, to some ten microseconds.
 *
 * Beside them counters say how many bytes are alive and how many of the step's tokens are done, and arrows lead from a
 * message's sender to its receiver (trace.h).
 */
#pragma once

#include "engine/compile/model/compiled.h"
#include "engine/run/executor.h"

/* what copies to and from a device's host memory travel along, where others have an axis */
#define TRACE_HOST "host"

#define TRACE_FOLDER "trace"
/* of a rank, within that folder */
#define TRACE_FILE "rank-%05d.json"

typedef struct trace trace;

/* Collective: makes the folder in `run`, and sets the clocks. Memory for it is taken here: 44 bytes an op. */
status trace_open(trace **out, const compiled *c, executor *e, comm *world, const char *run);
/* Around a step that is traced: the first call starts the file. What cannot be written is said once, and the run goes
 * on. */
void trace_begin(trace *t);
void trace_end(trace *t, const compiled_program *p, int64_t step);
void trace_close(trace *t);

/* What a viewer of a trace draws beside the ops of a program: how much memory is alive, how many tokens are done, and
 * which message arrives where. Marks own their lists.
 */

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
