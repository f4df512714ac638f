/* CUDA graphs: what capture forbids, and a list of calls that each launch plays again, in the order and on the queues
 * they were captured on. Events within are order between queues and nothing more; a queue that joins must be waited
 * for. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "tests/cuda/standin/standin.h"

/* What an event stood for when it was recorded: during capture, and in the launch that is played. */
struct standin_record {
    standin_clock captured, played;
    double milliseconds;
};

typedef struct node {
    int queue;
    standin_work play;
    void *what;
    op *of; /* a copy of the op that it is a part of, or NULL */
    struct node *next;
} node;

typedef struct reference {
    int *to;
    struct reference *next;
} reference;

struct CUgraph_st {
    node *first, **end;
    reference *references; /* NCCL's, to its communicators */
    int origin;            /* queue */
};

struct CUgraphExec_st {
    struct CUgraph_st graph;
    int launched;
    bool uploaded;
};

static struct CUgraph_st *under_way;
static standin_clock clocks[STANDIN_STREAMS]; /* of the capture: at[q] counts the work that q was given */
static bool joined[STANDIN_STREAMS];

bool standin_captured(int queue)
{
    return under_way && joined[queue];
}

void standin_no_capture(const char *what)
{
    if (under_way)
        standin_fail("%s while a stream is captured", what);
}

static void append(int queue, standin_work play, const void *what, size_t bytes)
{
    node *n = must_calloc(1, sizeof *n);
    *n = (node){.queue = queue, .play = play, .what = must_alloc(bytes)};
    memcpy(n->what, what, bytes);
    if (standin_op()) {
        n->of = must_alloc(sizeof *n->of);
        *n->of = *standin_op();
    }
    *under_way->end = n;
    under_way->end = &n->next;
}

bool standin_keep(int queue, standin_work play, const void *what, size_t bytes)
{
    if (!standin_captured(queue))
        return false;
    clocks[queue].at[queue]++;
    append(queue, play, what, bytes);
    return true;
}

void standin_refer(int *count)
{
    reference *r = must_alloc(sizeof *r);
    *r = (reference){count, under_way->references};
    under_way->references = r;
    ++*count;
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

static void play_record(int queue, void *what)
{
    struct standin_record *r = *(struct standin_record **)what;
    r->played = *standin_clock_of(queue);
    r->milliseconds = standin_time(queue);
}

static void play_wait(int queue, void *what)
{
    const struct standin_record *r = *(struct standin_record **)what;
    standin_tick(queue);
    standin_join(standin_clock_of(queue), &r->played);
    standin_wait_until(queue, r->milliseconds);
}

bool standin_keep_record(int queue, struct CUevent_st *e)
{
    e->captured = NULL;
    if (!standin_captured(queue))
        return false;
    e->captured = must_calloc(1, sizeof *e->captured);
    e->captured->captured = clocks[queue];
    append(queue, play_record, &e->captured, sizeof e->captured);
    return true;
}

bool standin_keep_wait(int queue, struct CUevent_st *e)
{
    if (!under_way || (!e->captured && !joined[queue]))
        return false;
    if (queue == under_way->origin && standin_mutant("a graph does not wait"))
        return true;
    if (!e->captured && !e->recorded)
        return true;
    if (!e->captured)
        standin_fail("a captured stream waits for an event of before the capture");
    joined[queue] = true;
    standin_join(&clocks[queue], &e->captured->captured);
    append(queue, play_wait, &e->captured, sizeof e->captured);
    return true;
}

/* An event from outside of the graph, which each launch looks at anew. */
bool standin_keep_external(int queue, standin_work wait, struct CUevent_st *e)
{
    if (!standin_captured(queue))
        standin_fail("cudaStreamWaitEvent: an event is external to no capture");
    return standin_mutant("a graph forgets external events") || standin_keep(queue, wait, &e, sizeof e);
}

/* ---- graphs ---------------------------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    int queue = standin_stream(stream, "cudaStreamBeginCapture");
    standin_no_capture("cudaStreamBeginCapture");
    if (mode == cudaStreamCaptureModeGlobal)
        standin_fail("cudaStreamBeginCapture: other threads of this process would be forbidden to ask for events");
    under_way = must_calloc(1, sizeof *under_way);
    under_way->end = &under_way->first;
    under_way->origin = queue;
    memset(clocks, 0, sizeof clocks);
    memset(joined, 0, sizeof joined);
    joined[queue] = true;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    int queue = standin_stream(stream, "cudaStreamEndCapture");
    if (!under_way || under_way->origin != queue)
        standin_fail("cudaStreamEndCapture: the capture did not begin on queue %d", queue);
    for (int i = 1; i < STANDIN_STREAMS; i++)
        if (clocks[queue].at[i] < clocks[i].at[i])
            standin_fail("cudaStreamEndCapture: queue %d has joined the capture, and its last work is not waited for",
                         i);
    *out = under_way;
    under_way = NULL;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    standin_no_capture("cudaGraphInstantiate");
    if (flags != cudaGraphInstantiateFlagUseNodePriority)
        standin_fail("cudaGraphInstantiate: flags %llu: the nodes forget their streams' priorities", flags);
    int nodes = 0;
    for (const node *n = graph->first; n; n = n->next)
        nodes++;
    if (!standin_graph_takes(nodes))
        return cudaErrorMemoryAllocation;
    *out = must_calloc(1, sizeof **out);
    (*out)->graph = *graph;
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t graph, cudaStream_t stream)
{
    standin_stream(stream, "cudaGraphUpload");
    standin_no_capture("cudaGraphUpload");
    graph->uploaded = true;
    return cudaSuccess;
}

/* The nodes stay: a stand-in may keep them. */
cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    int nodes = 0;
    for (const node *n = graph->graph.first; n; n = n->next)
        nodes++;
    fprintf(stderr, "standin: a graph: %d nodes, launched %d times\n", nodes, graph->launched);
    standin_graph_takes(-nodes);
    for (reference *r = graph->graph.references, *next; r; r = next) {
        next = r->next;
        if (!standin_mutant("a graph is never gone"))
            --*r->to;
        free(r);
    }
    free(graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream)
{
    int queue = standin_stream(stream, "cudaGraphLaunch");
    standin_no_capture("cudaGraphLaunch");
    if (queue != graph->graph.origin)
        standin_fail("cudaGraphLaunch: captured on queue %d, launched on %d", graph->graph.origin, queue);
    if (!graph->uploaded)
        standin_fail("cudaGraphLaunch: the graph is uploaded by its first launch");
    graph->launched++;
    standin_tick(queue);
    for (const node *n = graph->graph.first; n; n = n->next) {
        standin_set_op(n->of);
        n->play(n->queue, n->what);
        standin_set_op(NULL);
    }
    return cudaSuccess;
}
