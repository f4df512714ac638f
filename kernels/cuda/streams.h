/* The queues of one GPU: a stream for ops, one for each kind of communication, four for copies, and the events between.
 *
 * Which stream an op's communication goes to follows from its axis' row (kernels/table/axes.def); where a stream waits
 * for another follows from the program (streams_start, streams_wait). Streams never wait for the host. Opened for the
 * current GPU; owns its streams and events.
 */
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/table/op.h"

typedef enum stream_kind {
    STREAM_COMPUTE,
    STREAM_ACTIVATIONS, /* collectives within a layer */
    STREAM_GRADIENTS,   /* gradients and weights */
    STREAM_SEND_DOWN,   /* messages between stages: each edge and direction waits only for its own */
    STREAM_SEND_UP,
    STREAM_RECEIVE_DOWN,
    STREAM_RECEIVE_UP,
    STREAM_STAGES, /* exchanges of all stages */
    STREAM_COPY,   /* copies between the host's mirror and the arena */
    STREAM_LOAD,   /* load_host and store_host of offloaded state: the bus takes both directions at a time */
    STREAM_STORE,
    STREAM_ASIDE, /* copies of the state to be saved */
    STREAM_COUNT,
} stream_kind;

typedef struct streams {
    cudaStream_t of[STREAM_COUNT];
    cudaEvent_t ready; /* recorded on compute when a communication begins, anew each time */
    cudaEvent_t copied, finished, aside;
    cudaEvent_t *done; /* [requests] of each asynchronous op */
    int requests;
} streams;

void streams_open(streams *out, int requests);
void streams_close(streams *s);
/* Returns a stream that waits for all of compute's work so far: later work on it runs after that. */
cudaStream_t streams_after_compute(streams *s, stream_kind kind);
/* Returns the stream of the communication or copy `o`: it runs after all of compute's work so far. */
cudaStream_t streams_start(streams *s, const op *o);
/* Records that `o` has been enqueued there. */
void streams_started(streams *s, const op *o);
