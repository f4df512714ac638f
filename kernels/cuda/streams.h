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
    STREAM_ACTIVATIONS, /* within a layer */
    STREAM_GRADIENTS,   /* gradients and weights */
    STREAM_SEND_DOWN,   /* messages between stages: each edge and direction waits for nothing but its own */
    STREAM_SEND_UP,
    STREAM_RECEIVE_DOWN,
    STREAM_RECEIVE_UP,
    STREAM_STAGES, /* what all stages exchange */
    STREAM_COPY,   /* between the host's mirror and the arena */
    STREAM_LOAD,   /* of offloaded state, load_host and store_host: the bus takes both at a time */
    STREAM_STORE,
    STREAM_ASIDE, /* of the state, to be saved */
    STREAM_COUNT,
} stream_kind;

typedef struct streams {
    cudaStream_t of[STREAM_COUNT];
    cudaEvent_t ready; /* of the compute stream, when a communication begins; recorded anew each time */
    cudaEvent_t copied, finished, aside;
    cudaEvent_t *done; /* [requests] of each asynchronous op */
    int requests;
} streams;

void streams_open(streams *out, int requests);
void streams_close(streams *s);
/* A stream; what it is given from now on runs after all that compute has been given so far. */
cudaStream_t streams_after_compute(streams *s, stream_kind kind);
/* The stream for the communication or copy `o`, which runs after all that compute has been given so far. */
cudaStream_t streams_start(streams *s, const op *o);
/* `o` has been put there. */
void streams_started(streams *s, const op *o);
