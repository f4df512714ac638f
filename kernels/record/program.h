/* A program: ops in order. A body is a program being recorded: one action of one chunk for any micro-batch.
 *
 * A program holds pointers to ops and tensors that live in a pool; the pool's owner owns them.
 */
#pragma once

#include "kernels/table/op.h"
#include "memory/pool.h"

typedef enum phase {
    PHASE_BEGIN, /* runs before the micro-batches: parameter gathers */
    PHASE_FORWARD,
    PHASE_BACKWARD, /* the input's gradients, and the weights' where they are not apart */
    PHASE_WEIGHT,   /* the weights' gradients of a split backward pass */
    PHASE_UPDATE,   /* runs after the micro-batches: reductions, norm, optimizer */
    PHASE_COUNT,
} phase;

typedef struct program {
    op **ops;
    int count, capacity;
} program;

void program_append(program *p, op *o);
void program_free(program *p); /* the list, not the ops */
const char *phase_name(phase p);
/* Writes an op's place for messages: "step 12, backward of chunk 0, micro-batch 3, op layer 3/mlp/down/dx:
 * linear_grad_input"; NULL: no op */
void program_place(char *out, int bytes, int64_t step, const op *o);

/* The one function that makes ops: of layers, gradients, reductions, norms, updates, messages and waits.
 *
 * It infers the outputs' shapes, types and placements, and refuses (with the op's label and all operands, and death)
 * operands that the op cannot take. No other code describes or patches a tensor afterwards. Ops and tensors belong to
 * the pool.
 */
/* `like` has the kind, the label, the attributes, where the op belongs, its inputs, and the outputs that exist already:
 * accumulated ones, ones that the caller describes (marked = in ops.def), and any that another op was to make; the last
 * are checked against the inferred ones. `outputs`: a mask of new outputs with bytes of their own. `into`
 * ([OP_MAX_OUT], NULL where not, or NULL): outputs that are new values on those tensors' bytes. The new value must be
 * placed as described there, unless that described an input, which the new value replaces. */
op *op_make(pool *p, const op *like, unsigned outputs, tensor *const *into);
/* Makes the same op on other operands, each described like the one that it replaces: no more is checked. */
op *op_make_copy(pool *p, const op *of, tensor *const in[OP_MAX_IN], tensor *const out[OP_MAX_OUT]);
