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
    out->multiProcessorCount = 132;
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

/* ---- time as it would be on a device ------------------------------------------------------------------------------ */

/* When each queue's last work ends, if work takes as long as standin_take() says, nothing else takes time, and every queue
 * runs beside the others. [STANDIN_HOST]: what the host has waited for. */
static double milliseconds[STANDIN_STREAMS];
static double taken[STANDIN_STREAMS], profiled_from;

void standin_take(int queue, double took)
{
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
            "bytes pinned, %.0f microseconds, %.0f computing\n",
            (long long)c->launches, (long long)c->updates, (long long)c->read_ahead, (long long)c->read_idle,
            (long long)pinned, 1e3 * (milliseconds[STANDIN_HOST] - profiled_from), 1e3 * taken[1]);
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

/* Memory of the program's own, pinned later: one range at a time is enough. */
static const char *registered;
static size_t registered_bytes;

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    if (registered || flags != cudaHostRegisterDefault || standin_is_device(memory))
        standin_fail("cudaHostRegister of %zu bytes at %p, flags %u", bytes, memory, flags);
    registered = memory;
    registered_bytes = bytes;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory)
{
    if (memory != registered)
        standin_fail("cudaHostUnregister of %p, which is not registered", memory);
    registered = NULL;
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

/* ---- copies: what goes to the host arrives when the host has waited, what comes from it may change then ----------- */

typedef struct arrival {
    void *host;
    bool in;
    char *bytes;
    size_t count;
    int queue;
    uint32_t clock;
    struct arrival *next;
} arrival;

static arrival *under_way;

/* Take those that the host has waited for, or, with `host` given, that come from these bytes of its memory. */
static void arrive(const char *host, size_t count)
{
    const standin_clock *now = standin_clock_of(STANDIN_HOST);
    for (arrival **at = &under_way, *a; (a = *at);) {
        const char *own = a->host;
        bool wanted = host ? a->in && own < host + count && host < own + a->count : now->at[a->queue] >= a->clock;
        if (!wanted) {
            at = &a->next;
            continue;
        }
        if (!a->in)
            memcpy(a->host, a->bytes, a->count);
        else if (memcmp(a->host, a->bytes, a->count) != 0)
            standin_fail("the host changes %zu bytes at %p while they are copied", a->count, a->host);
        *at = a->next;
        free(a->bytes);
        free(a);
    }
}

/* `device` NULL: a copy from the host */
static void arrive_later(void *host, const void *device, size_t count, int queue)
{
    arrival *a = must_alloc(sizeof *a);
    *a = (arrival){.host = host, .in = !device, .bytes = must_alloc(count), .count = count, .queue = queue};
    a->clock = standin_clock_of(queue)->at[queue];
    memcpy(a->bytes, device ? device : host, count);
    if (device) {
        arrive(host, count);
        memset(host, 0xFF, count); /* by the device, behind what it copies from there */
    }
    a->next = under_way;
    under_way = a;
}

static void check_sides(const void *to, const void *from, enum cudaMemcpyKind kind, const char *what)
{
    bool within = kind == cudaMemcpyDeviceToDevice, in = kind == cudaMemcpyHostToDevice;
    if ((!in && !within && kind != cudaMemcpyDeviceToHost) || standin_is_device(to) != (in || within) ||
        standin_is_device(from) == in)
        standin_fail("%s: the direction does not fit the addresses %p <- %p", what, to, from);
}

/* Host memory that has been copied in and out, in the same pieces: state that is offloaded. Inputs go one way, and results the other. */
typedef struct travelled {
    const void *host;
    size_t bytes;
    bool in, out;
    struct travelled *next;
} travelled;

static bool goes_both_ways(const void *host, size_t bytes, bool in)
{
    static travelled *all;
    travelled *t = all;
    while (t && (t->host != host || t->bytes != bytes))
        t = t->next;
    if (!t) {
        t = must_calloc(1, sizeof *t);
        *t = (travelled){.host = host, .bytes = bytes, .next = all};
        all = t;
    }
    t->in |= in;
    t->out |= !in;
    return t->in && t->out;
}

typedef struct host_copy {
    void *to;
    const void *from;
    size_t bytes;
    enum cudaMemcpyKind kind;
    bool state;
} host_copy;

static void copy(int queue, void *what)
{
    const host_copy *c = what;
    standin_tick(queue);
    standin_take(queue, c->state ? 1 : 0);
    if (c->kind != cudaMemcpyHostToDevice)
        standin_access(queue, c->from, (int64_t)c->bytes, false, "cudaMemcpyAsync");
    if (c->kind != cudaMemcpyDeviceToHost)
        standin_access(queue, c->to, (int64_t)c->bytes, true, "cudaMemcpyAsync");
    if (c->kind != cudaMemcpyDeviceToHost)
        memcpy(c->to, c->from, c->bytes);
    if (c->kind == cudaMemcpyHostToDevice)
        arrive_later((void *)(uintptr_t)c->from, NULL, c->bytes, queue);
    if (c->kind == cudaMemcpyDeviceToHost)
        arrive_later(c->to, c->from, c->bytes, queue);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    int queue = standin_stream(stream, "cudaMemcpyAsync");
    host_copy c = {to, from, bytes, kind, false};
    bool in = kind == cudaMemcpyHostToDevice;
    check_sides(to, from, kind, "cudaMemcpyAsync");
    c.state = kind != cudaMemcpyDeviceToDevice && goes_both_ways(in ? from : to, bytes, in);
    if (standin_captured(queue) && !c.state)
        standin_fail("cudaMemcpyAsync into a graph: the host's block may be another one next time");
    if (!standin_keep(queue, copy, &c, sizeof c))
        copy(queue, &c);
    return cudaSuccess;
}

typedef struct rows_copy {
    char *to;
    const char *from;
    size_t to_pitch, from_pitch, bytes, rows;
} rows_copy;

static void copy_rows(int queue, void *what)
{
    const rows_copy *c = what;
    standin_tick(queue);
    for (size_t i = 0; i < c->rows; i++) {
        const char *row = c->from + i * c->from_pitch;
        standin_access(queue, row, (int64_t)c->bytes, false, "cudaMemcpy2DAsync");
        standin_access(queue, c->to + i * c->to_pitch, (int64_t)c->bytes, true, "cudaMemcpy2DAsync");
        memcpy(c->to + i * c->to_pitch, row, c->bytes);
    }
}

/* Rows on the device. */
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes, size_t rows,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
    int queue = standin_stream(stream, "cudaMemcpy2DAsync");
    rows_copy c = {to, from, to_pitch, from_pitch, bytes, rows};
    if (kind != cudaMemcpyDeviceToDevice || to_pitch < bytes || from_pitch < bytes)
        standin_fail("cudaMemcpy2DAsync: direction %d, rows of %zu in pitches %zu and %zu", (int)kind, bytes, to_pitch,
                     from_pitch);
    if (!standin_keep(queue, copy_rows, &c, sizeof c))
        copy_rows(queue, &c);
    return cudaSuccess;
}

/* On the default stream. Out of pageable memory it returns when the bytes have been staged, which may be before they have
 * arrived; to the host it waits. (There is no pinned memory that anybody copies like this.) */
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    if (bytes == 0)
        return cudaSuccess;
    standin_no_capture("cudaMemcpy");
    standin_tick(STANDIN_DEFAULT);
    check_sides(to, from, kind, "cudaMemcpy");
    bool in = kind == cudaMemcpyHostToDevice;
    standin_access(STANDIN_DEFAULT, in ? to : from, (int64_t)bytes, in, "cudaMemcpy");
    memcpy(to, from, bytes);
    if (!in)
        standin_join(standin_clock_of(STANDIN_HOST), standin_clock_of(STANDIN_DEFAULT));
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
    arrive(NULL, 0);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    standin_no_capture("cudaDeviceSynchronize");
    for (int i = 1; i < STANDIN_STREAMS; i++)
        standin_join(standin_clock_of(STANDIN_HOST), standin_clock_of(i));
    for (int i = 1; i < STANDIN_STREAMS; i++)
        standin_wait_until(STANDIN_HOST, milliseconds[i]);
    arrive(NULL, 0);
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
    if (endless && standin_op() && !strcmp(standin_op()->label, endless) &&
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
    e->milliseconds = milliseconds[queue];
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
    if (flags != cudaEventRecordDefault)
        standin_fail(
            "cudaEventRecordExternal: what a query says before this launch of the graph has come so far, is not "
            "known: it may be of the launch before");
    return cudaEventRecord(e, stream);
}

/* ---- marks: words of pinned memory that the device sets when it has come so far; seen when the host looks elsewhere, too --- */

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

/* Queue 1 is the first stream made: compute. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned flags)
{
    int queue = standin_stream(stream, "cudaStreamWaitEvent");
    if (flags)
        standin_fail("cudaStreamWaitEvent: flags %u", flags);
    if (standin_mutant(queue == 1 ? "compute does not wait" : "communication does not wait"))
        return cudaSuccess;
    if (standin_keep_wait(queue, e))
        return cudaSuccess;
    standin_tick(queue);
    if (e->recorded) {
        standin_join(standin_clock_of(queue), &e->clock);
        standin_wait_until(queue, e->milliseconds);
    }
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
    arrive(NULL, 0);
    return cudaSuccess;
}
