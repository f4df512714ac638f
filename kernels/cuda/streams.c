#include "kernels/cuda/streams.h"

#include <stdlib.h>

#include "kernels/cuda/host.h"

static cudaEvent_t make_event(void)
{
    cudaEvent_t e;
    CUDA_MUST(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return e;
}

/* Communication goes first where both could run: other ranks wait for it. */
void streams_open(streams *out, int requests)
{
    int least, greatest;
    CUDA_MUST(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    for (int i = 0; i < STREAM_COUNT; i++)
        CUDA_MUST(cudaStreamCreateWithPriority(&out->of[i], cudaStreamNonBlocking,
                                               i == STREAM_COMPUTE || i == STREAM_ASIDE ? least : greatest));
    out->ready = make_event();
    out->copied = make_event();
    out->finished = make_event();
    out->aside = make_event();
    out->requests = requests;
    out->done = must_calloc((unsigned long)requests + 1, sizeof *out->done);
    for (int i = 0; i < requests; i++)
        out->done[i] = make_event();
}

void streams_close(streams *s)
{
    if (!s->done)
        return;
    for (int i = 0; i < s->requests; i++)
        cudaEventDestroy(s->done[i]);
    free(s->done);
    cudaEventDestroy(s->finished);
    cudaEventDestroy(s->aside);
    cudaEventDestroy(s->copied);
    cudaEventDestroy(s->ready);
    for (int i = 0; i < STREAM_COUNT; i++)
        cudaStreamDestroy(s->of[i]);
    s->done = NULL;
}

static stream_kind kind_of(const op *o)
{
    static const stream_kind of_queue[AXIS_QUEUES] = {[AXIS_QUEUE_ACTIVATIONS] = STREAM_ACTIVATIONS,
                                                      [AXIS_QUEUE_GRADIENTS] = STREAM_GRADIENTS,
                                                      [AXIS_QUEUE_STAGES] = STREAM_STAGES};
    static const stream_kind of_edge[2][2] = {{STREAM_SEND_DOWN, STREAM_SEND_UP},
                                              {STREAM_RECEIVE_DOWN, STREAM_RECEIVE_UP}};
    if (op_copies(o))
        return op_has(o, OP_LEAVES) ? STREAM_STORE : STREAM_LOAD;
    const axis_row *r = &axis_rows[o->where.axis];
    return r->edges ? of_edge[!op_has(o, OP_LEAVES)][o->where.upstream != 0] : of_queue[r->queue];
}

cudaStream_t streams_after_compute(streams *s, stream_kind kind)
{
    CUDA_MUST(cudaEventRecord(s->ready, s->of[STREAM_COMPUTE]));
    CUDA_MUST(cudaStreamWaitEvent(s->of[kind], s->ready, 0));
    return s->of[kind];
}

cudaStream_t streams_start(streams *s, const op *o)
{
    return streams_after_compute(s, kind_of(o));
}

void streams_started(streams *s, const op *o)
{
    MUST(o->where.request >= 0 && o->where.request < s->requests, "%s: request %d of %d", o->label, o->where.request,
         s->requests);
    CUDA_MUST(cudaEventRecord(s->done[o->where.request], s->of[kind_of(o)]));
}
