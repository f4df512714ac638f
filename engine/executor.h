/* The executor plays programs: the same list, op by op, in one arena, step after step.
 *
 * It owns the arena, the communication groups and the requests in flight; the compiled programs and the communicator are
 * the caller's and must outlive it. Nothing is allocated while a program plays. Errors within a program are fatal: they
 * name rank, step and op.
 */
#ifndef PHALANX_ENGINE_EXECUTOR_H
#define PHALANX_ENGINE_EXECUTOR_H

#include "engine/compile.h"
#include "parallel/comm.h"
#include "parallel/watchdog.h"

typedef struct executor executor;

/* Opens the arena and prepares every op of the compiled programs. */
status executor_open(executor **out, compiled *c, comm *world, const op_backend *backend, int threads);
void executor_close(executor *e);

void executor_play(executor *e, const compiled_program *p);
/* Host address of a persistent tensor (cpu), or of the host's copy of it. */
void *executor_at(executor *e, const tensor *t);
run_context *executor_context(executor *e);

/* Where the executor stands, for messages and the watchdog: readable from any thread at any time. */
typedef struct executor_position {
    int64_t step;
    const op *o; /* NULL between programs */
} executor_position;

/* Tell the watchdog (NULL: nobody) of every op from now on. */
void executor_watch(executor *e, watchdog *w);
void executor_set_step(executor *e, int64_t step);
executor_position executor_where(const executor *e);
/* "step 12, backward of chunk 0, micro-batch 3, op layer 3/mlp/down/dx: linear_grad_input"; returns out */
const char *executor_describe(char *out, int bytes, executor_position p);

/* Bytes and messages this rank has sent along an axis so far. */
void executor_sent(const executor *e, int64_t *bytes, int64_t *messages, axis a);

/* From now on measure each op of `p`; seconds[i] of op i is added up over plays. NULL stops. */
void executor_time_ops(executor *e, double *seconds);

#endif
