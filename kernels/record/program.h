/* A program: ops in order. A body is a program being recorded: one action of one chunk for any micro-batch.
 *
 * A program holds pointers to ops and tensors that live in a pool; whoever owns the pool owns them.
 */
#pragma once

#include "kernels/table/op.h"
#include "memory/pool.h"

typedef enum phase {
    PHASE_BEGIN, /* before the micro-batches: parameter gathers */
    PHASE_FORWARD,
    PHASE_BACKWARD, /* the input's gradients, and the weights' where they are not apart */
    PHASE_WEIGHT,   /* the weights' gradients of a split backward pass */
    PHASE_UPDATE,   /* after the micro-batches: reductions, norm, optimizer */
    PHASE_COUNT,
} phase;

typedef struct program {
    op **ops;
    int count, capacity;
} program;

void program_append(program *p, op *o);
void program_free(program *p); /* the list, not the ops */
const char *phase_name(phase p);
/* For messages: "step 12, backward of chunk 0, micro-batch 3, op layer 3/mlp/down/dx: linear_grad_input"; NULL: no
 * op */
void program_place(char *out, int bytes, int64_t step, const op *o);
