#include "kernels/cuda/streams.h"

#include <stdlib.h>

#include "kernels/cuda/host.h"

static cudaEvent_t make_event(void)
{
    cudaEvent_t e;
    CUDA_MUST(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    return e;
}

static cudaEvent_t *make_events(int count)
{
    cudaEvent_t *all = must_calloc((unsigned long)count + 1, sizeof *all);
    for (int i = 0; i < count; i++)
        all[i] = make_event();
    return all;
}

/* Communication goes first where both could run: it is what others wait for. */
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
    out->done = make_events(requests);
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
    const axis_row *r = &axis_rows[o->at.axis];
    return r->edges ? of_edge[!op_has(o, OP_LEAVES)][o->at.upstream != 0] : of_queue[r->queue];
}

cudaStream_t streams_start(streams *s, const op *o)
{
    cudaStream_t to = s->of[kind_of(o)];
    CUDA_MUST(cudaEventRecord(s->ready, s->of[STREAM_COMPUTE]));
    CUDA_MUST(cudaStreamWaitEvent(to, s->ready, 0));
    return to;
}

void streams_started(streams *s, const op *o)
{
    MUST(o->at.request >= 0 && o->at.request < s->requests, "%s: request %d of %d", o->label, o->at.request,
         s->requests);
    CUDA_MUST(cudaEventRecord(s->done[o->at.request], s->of[kind_of(o)]));
}

void streams_wait(streams *s, const op *o)
{
    CUDA_MUST(cudaStreamWaitEvent(s->of[STREAM_COMPUTE], s->done[o->at.request], 0));
}

cudaStream_t streams_copy_begin(streams *s)
{
    CUDA_MUST(cudaEventRecord(s->ready, s->of[STREAM_COMPUTE]));
    CUDA_MUST(cudaStreamWaitEvent(s->of[STREAM_COPY], s->ready, 0));
    return s->of[STREAM_COPY];
}

void streams_copy_end(streams *s)
{
    CUDA_MUST(cudaEventRecord(s->copied, s->of[STREAM_COPY]));
    CUDA_MUST(cudaStreamWaitEvent(s->of[STREAM_COMPUTE], s->copied, 0));
}

cudaStream_t streams_aside_begin(streams *s)
{
    CUDA_MUST(cudaEventRecord(s->ready, s->of[STREAM_COMPUTE]));
    CUDA_MUST(cudaStreamWaitEvent(s->of[STREAM_ASIDE], s->ready, 0));
    return s->of[STREAM_ASIDE];
}

void streams_aside_end(streams *s)
{
    CUDA_MUST(cudaEventRecord(s->aside, s->of[STREAM_ASIDE]));
}

void streams_aside_first(streams *s, bool capturing)
{
    CUDA_MUST(
        cudaStreamWaitEvent(s->of[STREAM_COMPUTE], s->aside, capturing ? cudaEventWaitExternal : cudaEventWaitDefault));
}
