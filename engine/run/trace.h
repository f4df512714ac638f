/* Records when each op and message of some steps ran on this rank (run.trace), in the Trace Event Format that Perfetto
 * and chrome://tracing read (run.folder/trace/rank-00003.json). `phalanx timeline` draws them below the plan's
 * prediction.
 *
 * The CPU reads the host's clock around each op, launches included: 0.1 us. A GPU records an event on the op's queue
 * before and after it, and enqueues a traced step op by op, also with a graph. A message lasts from its launch to the
 * end of the wait for it if the host moves messages, else as long as its queue was busy with it. All ranks' times count
 * from the moment at which rank 0 began the first traced step; a few exchanges align the clocks of several hosts to
 * some ten microseconds.
 *
 * Counters show how many bytes are alive and how many of the step's tokens are done, and arrows lead from a message's
 * sender to its receiver (trace.h).
 */
#pragma once

#include "engine/compile/model/compiled.h"
#include "engine/run/executor.h"

/* copies to and from a device's host memory use this name in place of an axis */
#define TRACE_HOST "host"

#define TRACE_FOLDER "trace"
/* the rank's file within that folder */
#define TRACE_FILE "rank-%05d.json"

typedef struct lock lock; /* engine/system/lock.h */
typedef struct trace trace;

/* Collective: creates the folder in `run` (its lock: `owner`, or NULL), and aligns the clocks. Allocates 44
 * bytes per op. */
status trace_open(trace **out, const compiled *c, executor *e, comm *world, const char *run, lock *owner);
/* Enclose a traced step: the first call starts the file. A failed write is reported once, and the run continues. */
void trace_begin(trace *t);
void trace_end(trace *t, const compiled_program *p, int64_t step);
void trace_close(trace *t);

/* Marks of a trace besides its ops: bytes alive, tokens done, and where each message arrives. They own their lists.
 */

typedef struct trace_marks {
    int64_t *kept, *rest; /* [ops + 1] bytes alive while an op runs, from alive_find() */
    int64_t *tokens;      /* [ops] tokens of micro-batches with a finished backward pass at the op's end */
    int *message;         /* [ops] number of a message per peer and direction; else -1 */
} trace_marks;

/* Fills the marks of a placed program that was compiled with `o`. */
void trace_marks_make(trace_marks *out, const compiled_program *p, const compile_options *o);
void trace_marks_free(trace_marks *m);
/* Returns one number for both ends of a message in a trace, below 2^52, so that no reader rounds it. */
int64_t trace_marks_flow(int64_t step, int from, int to, bool upstream, int number);
