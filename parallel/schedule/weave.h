/* The gradients of weights woven into an order of forwards and gradients of inputs.
 *
 * Nothing but memory waits for a weight's gradient, so it goes where its stage would be idle, or where its activations
 * are in the way of the next forward. Played event by event, with the costs, the messages and the memory that are
 * given.
 */
#pragma once

#include "parallel/schedule/simulate.h"

typedef struct weave_terms {
    const simulate_cost *costs; /* [stages * chunks], by global chunk */
    double hop;                 /* of a message to another stage */
    const double *holds;        /* [stages * chunks] by global chunk: memory that a forward takes */
    const double *defers;       /* of it, what stays between the input's gradient and the weights' */
    const double *limit;        /* [stages] of memory */
    double
        patience; /* a stage rather waits for its next action than begins a weight's gradient that delays it by more */
} weave_terms;

/* `order`: forwards and input gradients of every stage (their micro-batches are taken to ascend). `out` has room for 3
 * actions for each chunk and micro-batch; its lists are written anew. False: the order comes to a halt, for want of
 * memory or by itself. */
bool weave(schedule *out, double *length, double *span, const schedule *order, const weave_terms *terms);
