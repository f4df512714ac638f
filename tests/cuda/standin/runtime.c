/* libcudart: memory, streams, events and copies, with the tracker's clocks. */
#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/clock.h"
#include "memory/log.h"
#include "tests/cuda/standin/standin.h"

struct CUstream_st {
    int queue;
};

static struct CUstream_st made[STANDIN_STREAMS]; /* queue 0: not in use */
static int profiled;
static int64_t pinned; /* bytes */

/* bytes of a GPU: of what is not used, none exist */
static const int64_t MEMORY = (int64_t)80 << 30;

static int64_t from_environment(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text ? atoll(text) : otherwise;
}

/* ---- the machine ----------------------------------------------------------------------------------------------- */

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = from_environment("STANDIN_GPUS", 8) < 0 ? 0 : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = (int)from_environment("STANDIN_GPUS", 8);
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int gpu)
{
    memset(out, 0, sizeof *out);
    const char *name = getenv("STANDIN_GPU");
    snprintf(out->name, sizeof out->name, "%s", name ? name : "NVIDIA H100 stand-in");
    out->uuid.bytes[0] = (char)(gpu + 1);
    out->major = (int)from_environment("STANDIN_MAJOR", 9);
    out->minor = (int)from_environment("STANDIN_MINOR", 0);
    out->multiProcessorCount = 132;
    out->l2CacheSize = 50 << 20;
    out->sharedMemPerBlockOptin = 227 << 10;
    out->totalGlobalMem = (size_t)from_environment("STANDIN_MEMORY", MEMORY);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr which, int gpu)
{
    (void)gpu;
    *out = which == cudaDevAttrMemoryClockRate ? 2619000 : which == cudaDevAttrGlobalMemoryBusWidth ? 5120 : 0;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int gpu)
{
    static bool context;
    if (gpu >= from_environment("STANDIN_GPUS", 8))
        return cudaErrorInvalidDevice;
    if (!context && !standin_library_takes())
        return cudaErrorMemoryAllocation;
    context = true;
    return cudaSuccess;
}

/* Of the device's memory: what is allocated, and what the context and libraries have taken. */
static int64_t in_use;

bool standin_library_takes(void)
{
    int64_t bytes = from_environment("STANDIN_TAKES", 64);
    if (in_use + bytes > from_environment("STANDIN_MEMORY", MEMORY))
        return false;
    in_use += bytes;
    return true;
}

bool standin_graph_takes(int nodes)
{
    int64_t bytes = nodes * from_environment("STANDIN_GRAPH_TAKES", 16);
    if (in_use + bytes > from_environment("STANDIN_MEMORY", MEMORY))
        return false;
    in_use += bytes;
    return true;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *all)
{
    *all = (size_t)from_environment("STANDIN_MEMORY", MEMORY);
    *free_bytes = *all - (size_t)in_use;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t e)
{
    static char text[32];
    snprintf(text, sizeof text, "CUDA error %d", (int)e);
    return text;
}

/* ---- time as it would be on a device
 * ------------------------------------------------------------------------------ */

/* When each queue's last work ends, if work takes as long as standin_take() says, nothing else takes time, and every
 * queue runs beside the others. [STANDIN_HOST]: what the host has waited for. */
static double milliseconds[STANDIN_STREAMS];
static double taken[STANDIN_STREAMS], profiled_from;

/* Of this rank's device: STANDIN_SLOW_1=2, and rank 1's takes twice as long. */
static double slowness(void)
{
    char name[32];
    snprintf(name, sizeof name, "STANDIN_SLOW_%d", log_rank());
    const char *text = getenv(name);
    return text ? atof(text) : 1;
}

void standin_take(int queue, double took)
{
    took *= slowness();
    standin_wait_until(queue, milliseconds[STANDIN_HOST]);
    milliseconds[queue] += took;
    taken[queue] += took;
}

void standin_wait_until(int queue, double time)
{
    if (milliseconds[queue] < time)
        milliseconds[queue] = time;
}

double standin_time(int queue)
{
    return fmax(milliseconds[queue], milliseconds[STANDIN_HOST]);
}

cudaError_t cudaProfilerStart(void)
{
    if (profiled++)
        standin_fail("the profiler is started twice");
    standin_counts = (standin_count){0};
    profiled_from = milliseconds[STANDIN_HOST];
    taken[1] = 0;
    return cudaSuccess;
}

cudaError_t cudaProfilerStop(void)
{
    const standin_count *c = &standin_counts;
    if (profiled-- != 1)
        standin_fail("the profiler is stopped before it is started");
    fprintf(stderr,
            "standin: profiled: %lld launches, %lld of updates, %lld read ahead, %lld read idle, %lld "
            "bytes pinned, %.0f microseconds, %.0f computing, %lld reduced to one\n",
            (long long)c->launches, (long long)c->updates, (long long)c->read_ahead, (long long)c->read_idle,
            (long long)pinned, 1e3 * (milliseconds[STANDIN_HOST] - profiled_from), 1e3 * taken[1],
            (long long)c->reduced);
    return cudaSuccess;
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    standin_no_capture("cudaMalloc");
    if (in_use + (int64_t)bytes > from_environment("STANDIN_MEMORY", MEMORY))
        return cudaErrorMemoryAllocation;
    in_use += (int64_t)bytes;
    *out = standin_allocate((int64_t)bytes);
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
    in_use -= standin_free(memory);
    return cudaSuccess;
}

/* Copies of a self-check. */
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void)flags;
    *out = must_alloc(bytes);
    pinned += (int64_t)bytes;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    free(memory);
    return cudaSuccess;
}

/* Memory of the program's own, pinned later: the device's mirror, and a copy of the state. */
enum { REGISTERED = 2 };
static void *registered[REGISTERED];

static void **find_registered(void *memory)
{
    for (int i = 0; i < REGISTERED; i++)
        if (registered[i] == memory)
            return &registered[i];
    return NULL;
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    void **free_one = find_registered(NULL);
    if (!memory || !free_one || find_registered(memory) || flags != cudaHostRegisterDefault ||
        standin_is_device(memory))
        standin_fail("cudaHostRegister of %zu bytes at %p, flags %u", bytes, memory, flags);
    *free_one = memory;
    pinned += free_one == &registered[0] ? (int64_t)bytes : 0; /* of the device, which comes first */
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory)
{
    void **one = memory ? find_registered(memory) : NULL;
    if (!one)
        standin_fail("cudaHostUnregister of %p, which is not registered", memory);
    *one = NULL;
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **out, void *memory, unsigned flags)
{
    if (flags != 0 || !memory || !find_registered(memory))
        standin_fail("cudaHostGetDevicePointer of %p, which is not registered", memory);
    *out = memory;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int bytes, int device)
{
    snprintf(out, (size_t)bytes, "0000:%02X:00.0", 0x1b + device);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    standin_no_capture("cudaMemset");
    standin_tick(STANDIN_DEFAULT); /* and may return before it is done */
    standin_access(STANDIN_DEFAULT, to, (int64_t)bytes, true, "cudaMemset");
    memset(to, value, bytes);
    return cudaSuccess;
}

typedef struct filling {
    void *to;
    int value;
    size_t bytes;
} filling;

static void fill(int queue, void *what)
{
    const filling *f = what;
    standin_tick(queue);
    standin_access(queue, f->to, (int64_t)f->bytes, true, "cudaMemsetAsync");
    memset(f->to, f->value, f->bytes);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    int queue = standin_stream(stream, "cudaMemsetAsync");
    filling f = {to, value, bytes};
    if (!standin_keep(queue, fill, &f, sizeof f))
        fill(queue, &f);
    return cudaSuccess;
}

/* ---- streams --------------------------------------------------------------------------------------------------- */

int standin_stream(cudaStream_t stream, const char *what)
{
    if (!stream)
        standin_fail("%s: null stream", what);
    if (stream < made || stream >= made + STANDIN_STREAMS || stream->queue == 0)
        standin_fail("%s: %p is no stream", what, (void *)stream);
    return stream->queue;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

/* Streams beyond the hardware's queues share one with others, and wait for work that is none of theirs. */
void standin_more_queues(int more)
{
    static int streams, connections;
    if (!connections)
        connections = (int)from_environment("CUDA_DEVICE_MAX_CONNECTIONS", 8);
    streams += more;
    if (streams > connections)
        standin_fail("%d streams for %d hardware queues", streams, connections);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    if (flags != cudaStreamNonBlocking || priority > 0 || priority < -5)
        standin_fail("a stream that waits for the default stream, or of priority %d", priority);
    standin_more_queues(1);
    for (int i = 1; i < STANDIN_DEFAULT; i++)
        if (made[i].queue == 0) {
            made[i].queue = i;
            *out = &made[i];
            return cudaSuccess;
        }
    standin_fail("more than %d streams", STANDIN_DEFAULT - 1);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    made[standin_stream(stream, "cudaStreamDestroy")].queue = 0;
    standin_more_queues(-1);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    int queue = standin_stream(stream, "cudaStreamSynchronize");
    standin_no_capture("cudaStreamSynchronize");
    standin_join(standin_clock_of(STANDIN_HOST), standin_clock_of(queue));
    standin_wait_until(STANDIN_HOST, standin_time(queue));
    standin_arrive();
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    standin_no_capture("cudaDeviceSynchronize");
    for (int i = 1; i < STANDIN_STREAMS; i++)
        standin_join(standin_clock_of(STANDIN_HOST), standin_clock_of(i));
    for (int i = 1; i < STANDIN_STREAMS; i++)
        standin_wait_until(STANDIN_HOST, milliseconds[i]);
    standin_arrive();
    return cudaSuccess;
}

/* ---- time ------------------------------------------------------------------------------------------------------ */

static double busy_until;

void standin_busy(void)
{
    char name[32];
    snprintf(name, sizeof name, "STANDIN_ENDLESS_%d", log_rank());
    const char *seconds = getenv("STANDIN_KERNEL_SECONDS"), *endless = getenv(name);
    if (busy_until < clock_seconds())
        busy_until = clock_seconds();
    if (seconds)
        busy_until += atof(seconds);
    static int64_t ran;
    if (endless && !standin_warming() && standin_op() && !strcmp(standin_op()->label, endless) &&
        ran++ >= from_environment("STANDIN_ENDLESS_AFTER", 0))
        busy_until = INFINITY;
}

/* ---- events ---------------------------------------------------------------------------------------------------- */

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    *out = must_calloc(1, sizeof **out);
    (*out)->timed = true;
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *out, cudaEvent_t begin, cudaEvent_t end)
{
    if (!begin->timed || !end->timed || !begin->recorded || !end->recorded || !end->asked)
        standin_fail("cudaEventElapsedTime of events without timing, not recorded, or not waited for");
    *out = (float)(end->milliseconds - begin->milliseconds);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    if (flags != cudaEventDisableTiming)
        standin_fail("an event with timing would slow the streams down: cudaEventCreate is for timing");
    *out = must_calloc(1, sizeof **out);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    free(e);
    return cudaSuccess;
}

static void record(int queue, void *event)
{
    cudaEvent_t e = *(cudaEvent_t *)event;
    standin_tick(queue);
    e->clock = *standin_clock_of(queue);
    e->recorded = true;
    e->asked = 0;
    e->due = busy_until;
    e->milliseconds = standin_time(queue);
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream)
{
    int queue = standin_stream(stream, "cudaEventRecord");
    if (standin_mutant("no record") && queue != 1)
        return cudaSuccess;
    if (!standin_keep_record(queue, e))
        record(queue, &e);
    return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t stream, unsigned flags)
{
    int queue = standin_stream(stream, "cudaEventRecordWithFlags");
    if (flags == cudaEventRecordDefault)
        return cudaEventRecord(e, stream);
    if (!e->timed)
        standin_fail(
            "cudaEventRecordExternal: what a query says before this launch of the graph has come so far, is not "
            "known: it may be of the launch before");
    if (!standin_keep(queue, record, &e, sizeof e))
        standin_fail("cudaEventRecordExternal of a stream that is not captured");
    return cudaSuccess;
}

/* ---- marks: words of pinned memory that the device sets when it has come so far; seen when the host looks elsewhere,
 * too --- */

typedef struct mark {
    volatile uint32_t *word;
    double due;
    struct mark *next;
} mark;

static mark *set_later;

void standin_land(void)
{
    for (mark **at = &set_later, *m; (m = *at);)
        if (clock_seconds() >= m->due) {
            *m->word = 1;
            *at = m->next;
            free(m);
        } else {
            at = &m->next;
        }
}

static void play_mark(int queue, void *word)
{
    mark *m = must_alloc(sizeof *m);
    standin_tick(queue);
    *m = (mark){*(volatile uint32_t **)word, busy_until, set_later};
    set_later = m;
}

int __wrap_launch_mark(void *stream, volatile uint32_t *word);
int __wrap_launch_mark(void *stream, volatile uint32_t *word)
{
    int queue = standin_stream(stream, "set_word");
    if (!standin_keep(queue, play_mark, &word, sizeof word))
        play_mark(queue, &word);
    return 0;
}

/* For what the event was last recorded with. */
static void wait_now(int queue, void *event)
{
    const struct CUevent_st *e = *(struct CUevent_st **)event;
    standin_tick(queue);
    if (e->recorded) {
        standin_join(standin_clock_of(queue), &e->clock);
        standin_wait_until(queue, e->milliseconds);
    }
}

/* Queue 1 is the first stream made: compute. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned flags)
{
    int queue = standin_stream(stream, "cudaStreamWaitEvent");
    if (flags != cudaEventWaitDefault && flags != cudaEventWaitExternal)
        standin_fail("cudaStreamWaitEvent: flags %u", flags);
    if (standin_mutant(queue == 1 ? "compute does not wait" : "communication does not wait"))
        return cudaSuccess;
    if (flags == cudaEventWaitExternal ? standin_keep_external(queue, wait_now, e) : standin_keep_wait(queue, e))
        return cudaSuccess;
    wait_now(queue, &e);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    e->asked = INT32_MAX;
    e->due = busy_until = 0; /* the host has waited, for no time at all */
    return cudaEventQuery(e);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    standin_no_capture("cudaEventQuery");
    standin_land();
    if (e->captured)
        standin_fail("cudaEventQuery of an event that was recorded in a capture");
    if (e->asked++ < from_environment("STANDIN_ASKED", 1) || clock_seconds() < e->due)
        return cudaErrorNotReady;
    standin_join(standin_clock_of(STANDIN_HOST), &e->clock);
    standin_wait_until(STANDIN_HOST, e->milliseconds);
    standin_arrive();
    return cudaSuccess;
}
