/* One NVIDIA GPU as a device: arena, mirror in pinned memory, streams, and each op in an NVTX range with its label. The
 * shared object exports `device_cuda`. */
#include "kernels/device.h"

#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/host.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/streams.h"
#include "kernels/cuda/tuning.h"
#include "memory/arena.h"

static const double GIB = 1024.0 * 1024 * 1024;

/* Host memory is cleared in pieces of this size. */
static const int64_t CLEAR_BYTES = (int64_t)64 << 20;

/* Interval of polling a busy device: short against a step, long against a poll. */
enum { POLL_NANOSECONDS = 20000 };

enum { LEAST_MAJOR = 8 }; /* compute capability that the kernels are built for */

struct device {
    int gpu;
    struct cudaDeviceProp properties;
    run_context context;
    arena *host_memory;
    char *host;               /* base of the arena's pinned mirror, followed by other host memory */
    volatile uint32_t *marks; /* end of host memory, a word a mark: 1 when the device has passed it */
    int mark_count;
    int64_t arena_bytes, host_bytes;
    streams streams;
    updates updates; /* launched before any other work is enqueued or awaited */
    tuning *tuning;
    gemm *gemm;
    cudnn *cudnn;                         /* NULL: there is none */
    cudaGraphExec_t graphs[DEVICE_LISTS]; /* captured graphs; NULL: none yet */
    cudaGraphExec_t *capturing;           /* the element being captured; NULL: no capture */
    struct {
        cudaEvent_t *at; /* [count]: events on the queues */
        int count;
    } clock[DEVICE_CLOCKS];
};

/* ---- which GPU ------------------------------------------------------------------------------------------------- */

static status cuda_available(void)
{
    int driver = 0, count = 0;
    /* Streams, NCCL's own included, that share a hardware queue wait for each other's work. There are 8 queues unless
     * this says otherwise before the GPU's context is made. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    cudaError_t e = cudaDriverGetVersion(&driver);
    if (e != cudaSuccess || driver == 0)
        return status_fail(STATUS_USAGE, "device=cuda: this machine has no NVIDIA driver: use device=cpu");
    e = cudaGetDeviceCount(&count);
    if (e == cudaErrorInsufficientDriver)
        return status_fail(STATUS_USAGE,
                           "device=cuda: the NVIDIA driver is for CUDA %d.%d, this build needs %d.%d: update the "
                           "driver, or use device=cpu",
                           driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (e != cudaSuccess && e != cudaErrorNoDevice)
        return status_fail(STATUS_USAGE, "device=cuda: %s: use device=cpu", cudaGetErrorString(e));
    if (count == 0)
        return status_fail(STATUS_USAGE,
                           "device=cuda: this machine shows no GPU (CUDA_VISIBLE_DEVICES is %s): use "
                           "device=cpu",
                           getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES") : "not set");
    return STATUS_OK;
}

/* Assigns a node's GPUs to its ranks round-robin; the GPU's identity tells whether ranks share one. */
static int gpu_of_rank(int local_rank)
{
    int count = 0;
    CUDA_MUST(cudaGetDeviceCount(&count));
    return local_rank % count;
}

static const devices_row *cuda_row(int local_rank)
{
    struct cudaDeviceProp properties;
    CUDA_MUST(cudaGetDeviceProperties(&properties, gpu_of_rank(local_rank)));
    return devices_of_gpu(properties.name);
}

static status take_gpu(device *d, const device_options *o)
{
    TRY(cuda_available());
    d->gpu = gpu_of_rank(o->local_rank);
    /* One visible GPU per process (--gpus-per-task) hides the node's other GPUs from its ranks. */
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0;
    CUDA_MUST(cudaGetDeviceCount(&count));
    if (o->local_rank == 1 && count == 1 && visible)
        log_warn("this rank sees one GPU only (CUDA_VISIBLE_DEVICES=%s): NCCL may not find NVLink to the others of the "
                 "node; let every rank see all of them (no --gpus-per-task)",
                 visible);
    CUDA_MUST(cudaGetDeviceProperties(&d->properties, d->gpu));
    if (d->properties.major < LEAST_MAJOR)
        return status_fail(STATUS_USAGE,
                           "device=cuda: %s has compute capability %d.%d, and the kernels need %d.0: use "
                           "device=cpu",
                           d->properties.name, d->properties.major, d->properties.minor, LEAST_MAJOR);
    cudaError_t e = cudaSetDevice(d->gpu);
    if (e != cudaSuccess)
        return status_fail(STATUS_FAILED, "GPU %d (%s) cannot be used: %s", d->gpu, d->properties.name,
                           cudaGetErrorString(e));
    return STATUS_OK;
}

static int64_t free_memory_bytes(void)
{
    size_t free_bytes = 0, all = 0;
    CUDA_MUST(cudaMemGetInfo(&free_bytes, &all));
    return (int64_t)free_bytes;
}

static void cuda_facts(device_facts *out, const device *d)
{
    *out = (device_facts){.memory = (int64_t)d->properties.totalGlobalMem, .free_memory = free_memory_bytes()};
    out->beside = out->memory - out->free_memory - (d->context.arena ? d->arena_bytes : 0);
    snprintf(out->name, sizeof out->name, "%.63s", d->properties.name);
    for (int i = 0; i < 16; i++)
        snprintf(out->identity + 2 * i, 3, "%02x", (unsigned)(unsigned char)d->properties.uuid.bytes[i]);
    CUDA_MUST(cudaDeviceGetPCIBusId(out->pci, sizeof out->pci, d->gpu));
    int kilohertz = 0, bits = 0;
    CUDA_MUST(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, d->gpu));
    CUDA_MUST(cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, d->gpu));
    out->bandwidth = 2.0 * 1e3 * kilohertz * bits / 8; /* two transfers a clock */
    devices_peaks(out->peak, devices_of_gpu(d->properties.name), d->properties.multiProcessorCount);
}

/* ---- times ------------------------------------------------------------------------------------------------------ */

static void cuda_stamps(device *d, device_clock set, int count)
{
    for (int i = 0; i < d->clock[set].count; i++)
        CUDA_MUST(cudaEventDestroy(d->clock[set].at[i]));
    free(d->clock[set].at);
    d->clock[set].at = count > 0 ? must_calloc((unsigned long)count, sizeof *d->clock[set].at) : NULL;
    d->clock[set].count = count;
    for (int i = 0; i < count; i++)
        CUDA_MUST(cudaEventCreate(&d->clock[set].at[i]));
}

/* Launches pending updates before it notes another op, which would launch them itself and be charged for them; a wait
 * launches none. A graph records an event anew only as an external one; otherwise the event is just an edge within the
 * graph. */
static void cuda_stamp(device *d, device_clock set, int index, const op *o)
{
    bool travels = op_starts(o);
    MUST(index >= 0 && index < d->clock[set].count, "stamp %d of %d", index, d->clock[set].count);
    if (!op_is(o, OP_CLASS_UPDATE) && !op_waits(o))
        updates_launch(&d->updates, &d->context);
    cudaStream_t queue = travels ? streams_start(&d->streams, o) : d->streams.of[STREAM_COMPUTE];
    CUDA_MUST(cudaEventRecordWithFlags(d->clock[set].at[index], queue,
                                       d->capturing ? cudaEventRecordExternal : cudaEventRecordDefault));
}

static double cuda_stamp_seconds(const device *d, device_clock set, int from, int to)
{
    const cudaEvent_t *at = d->clock[set].at;
    float milliseconds = 0;
    CUDA_MUST(cudaEventSynchronize(at[to])); /* another queue's may come later than compute's */
    CUDA_MUST(cudaEventElapsedTime(&milliseconds, at[from], at[to]));
    return 1e-3 * (double)milliseconds;
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

static void zero_arena(device *d)
{
    CUDA_MUST(cudaMemset(d->context.arena, 0, (size_t)d->arena_bytes));
    CUDA_MUST(cudaDeviceSynchronize());
}

static void cuda_clear(device *d)
{
#pragma omp parallel for num_threads(d->context.threads) schedule(static)
    for (int64_t at = 0; at < d->host_bytes; at += CLEAR_BYTES)
        memset(d->host + at, 0, (size_t)(d->host_bytes - at < CLEAR_BYTES ? d->host_bytes - at : CLEAR_BYTES));
    zero_arena(d);
}

static status cuda_pin(device *d, void *host, int64_t bytes)
{
    (void)d;
    cudaError_t e =
        bytes > 0 ? cudaHostRegister(host, (size_t)bytes, cudaHostRegisterDefault) : cudaHostUnregister(host);
    return e == cudaSuccess ? STATUS_OK
                            : status_fail(STATUS_FAILED, "cannot pin %lld bytes of host memory: %s; check `ulimit -l`",
                                          (long long)bytes, cudaGetErrorString(e));
}

/* Allocates and pins by itself, since cudaHostAlloc zeroes all memory on one thread, wherever it runs. */
static status allocate_host(device *d, int64_t bytes)
{
    void *seen = NULL;
    d->host_bytes = bytes > 0 ? bytes : 1;
    TRY(arena_open(&d->host_memory, d->host_bytes));
    arena_touch(d->host_memory, d->context.threads);
    TRY(cuda_pin(d, arena_base(d->host_memory), d->host_bytes));
    d->host = arena_base(d->host_memory);
    CUDA_MUST(cudaHostGetDevicePointer(&seen, d->host, 0));
    MUST(seen == d->host, "%s sees pinned memory at another address than the host", d->properties.name);
    d->marks = (volatile uint32_t *)(void *)(d->host + d->host_bytes - d->mark_count * (int64_t)sizeof *d->marks);
    return STATUS_OK;
}

static status cuda_allocate(device *d, int64_t arena_bytes, int64_t host_bytes)
{
    int64_t free_bytes = free_memory_bytes(), missing = arena_bytes - free_bytes;
    d->arena_bytes = arena_bytes > 0 ? arena_bytes : 1;
    void *memory = NULL;
    cudaError_t e = missing > 0 ? cudaErrorMemoryAllocation : cudaMalloc(&memory, (size_t)d->arena_bytes);
    if (e == cudaErrorMemoryAllocation)
        return status_fail(STATUS_FAILED,
                           "the arena needs %lld bytes (%.2f GiB) of GPU memory, but %s has only %lld (%.2f GiB) free, "
                           "%.2f GiB too little; CUDA, its libraries and others have taken %.2f GiB: lower "
                           "train.micro_batch or memory.budget, raise memory.recompute, or use more GPUs",
                           (long long)d->arena_bytes, (double)d->arena_bytes / GIB, d->properties.name,
                           (long long)free_bytes, (double)free_bytes / GIB, (double)(missing > 0 ? missing : 0) / GIB,
                           (double)((int64_t)d->properties.totalGlobalMem - free_bytes) / GIB);
    CUDA_MUST(e);
    d->context.arena = memory;
    TRY(allocate_host(d, host_bytes));
    cudnn_use_arena(d->cudnn, memory);
    zero_arena(d); /* moments begin as zero in the arena; the kernel has zeroed host memory */
    return STATUS_OK;
}

/* Frees the graphs: NCCL closes no communicator that a graph refers to. */
static void cuda_forget(device *d)
{
    for (int i = 0; i < DEVICE_LISTS; i++) {
        if (d->graphs[i])
            CUDA_MUST(cudaGraphExecDestroy(d->graphs[i]));
        d->graphs[i] = NULL;
    }
}

static void cuda_close(device *d)
{
    if (!d)
        return;
    cuda_forget(d);
    for (int i = 0; i < DEVICE_CLOCKS; i++)
        cuda_stamps(d, (device_clock)i, 0);
    cudnn_close(d->cudnn);
    gemm_close(d->gemm);
    tuning_close(d->tuning);
    streams_close(&d->streams);
    cudaFree(d->context.arena);
    if (d->host)
        (void)cuda_pin(d, d->host, 0);
    arena_close(d->host_memory);
    free(d);
}

AUTO_CLOSES(device, cuda_close)

static status cuda_open(device **out, const device_options *o)
{
    AUTO(device) *d = must_calloc(1, sizeof *d);
    d->context.threads = o->threads;
    d->context.device = d;
    TRY(take_gpu(d, o));
    tuning_open(&d->tuning, d->properties.name);
    TRY(gemm_open(&d->gemm, o->tf32, d->tuning));
    d->mark_count = o->marks;
    streams_open(&d->streams, o->requests);
    d->context.stream = d->streams.of[STREAM_COMPUTE];
    cudnn_open(&d->cudnn, &(cudnn_options){.tuning = d->tuning,
                                           .stream = d->context.stream,
                                           .gpu = d->gpu,
                                           .major = d->properties.major,
                                           .minor = d->properties.minor,
                                           .varies = o->varies});
    *out = TAKE(d);
    return STATUS_OK;
}

static run_context *cuda_context(device *d)
{
    return &d->context;
}

static char *cuda_host(device *d)
{
    return d->host;
}

static status cuda_prepare(device *d, op *o)
{
    if (op_is(o, OP_CLASS_PRODUCT))
        return gemm_prepare_on(d->gemm, o, d->context.arena);
    cudnn_prepare_on(d->cudnn, o);
    return STATUS_OK;
}

static const char *cuda_wanted(const device *d, int i)
{
    return tuning_wanted(d->tuning, i);
}

static status cuda_find(device *d, device_choice *choices, int count, bool timing)
{
    status s = tuning_find(d->tuning, choices, count, timing, d->streams.of[STREAM_COMPUTE]);
    if (timing && count > 0) {
        CUDA_MUST(cudaDeviceSynchronize());
        zero_arena(d);
    }
    return s;
}

static bool cuda_candidate(const device *d, device_choice *choice, int i)
{
    return tuning_candidate(d->tuning, choice, i);
}

static void cuda_check(device *d, device_say *say, void *context)
{
    check_all(&(check){
        .properties = &d->properties, .cudnn = d->cudnn, .stream = d->context.stream, .say = say, .context = context});
}

static status cuda_choose(device *d, const device_choice *choice)
{
    return tuning_choose(d->tuning, choice);
}

/* ---- execution ------------------------------------------------------------------------------------------------- */

/* Copies between `at` in the arena and `from` in host memory. */
static void enqueue_copy(device *d, int64_t at, int64_t from, int64_t bytes, enum cudaMemcpyKind how)
{
    MUST(at >= 0 && at + bytes <= d->arena_bytes && from >= 0 && from + bytes <= d->host_bytes,
         "%lld bytes between %lld of an arena of %lld and %lld of host memory of %lld", (long long)bytes, (long long)at,
         (long long)d->arena_bytes, (long long)from, (long long)d->host_bytes);
    char *device_side = d->context.arena + at, *host_side = d->host + from;
    bool in = how == cudaMemcpyHostToDevice;
    updates_launch(&d->updates, &d->context);
    cudaStream_t stream = streams_after_compute(&d->streams, STREAM_COPY);
    CUDA_MUST(cudaMemcpyAsync(in ? device_side : host_side, in ? host_side : device_side, (size_t)bytes, how, stream));
    CUDA_MUST(cudaEventRecord(d->streams.copied, stream));
    CUDA_MUST(cudaStreamWaitEvent(d->streams.of[STREAM_COMPUTE], d->streams.copied, 0));
}

static void cuda_copy_in(device *d, int64_t at, int64_t from, int64_t bytes)
{
    enqueue_copy(d, at, from, bytes, cudaMemcpyHostToDevice);
}

static void cuda_copy_out(device *d, int64_t at, int64_t bytes)
{
    enqueue_copy(d, at, at, bytes, cudaMemcpyDeviceToHost);
}

/* Returns the host memory at an address from TENSOR_HOST on; NULL for an address in the arena. */
static char *host_at(const device *d, int64_t at, int64_t bytes)
{
    int64_t end = at < TENSOR_HOST ? d->arena_bytes : TENSOR_HOST + d->host_bytes;
    MUST(at >= 0 && bytes >= 0 && at + bytes <= end,
         "bytes %lld .. %lld of an arena of %lld and host memory of %lld from %lld on", (long long)at,
         (long long)(at + bytes), (long long)d->arena_bytes, (long long)d->host_bytes, (long long)TENSOR_HOST);
    return at < TENSOR_HOST ? NULL : d->host + (at - TENSOR_HOST);
}

/* Enqueues a copy to host memory (store_host) or from it (load_host), on its stream. */
static void copy_host(device *d, const op *o)
{
    bool in = !op_has(o, OP_LEAVES);
    const tensor *host = in ? o->in[0] : o->out[0], *own = in ? o->out[0] : o->in[0];
    size_t bytes = (size_t)tensor_bytes(host);
    char *there = host_at(d, host->address, (int64_t)bytes), *here = tensor_at(own, d->context.arena);
    updates_launch(&d->updates, &d->context);
    nvtxRangePushA(o->label);
    cudaStream_t stream = streams_start(&d->streams, o);
    CUDA_MUST(cudaMemcpyAsync(in ? here : there, in ? there : here, bytes,
                              in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream));
    streams_started(&d->streams, o);
    nvtxRangePop();
}

static void cuda_launch(device *d, const op *o)
{
    if (op_copies(o)) {
        copy_host(d, o);
        return;
    }
    if (op_is(o, OP_CLASS_UPDATE)) {
        updates_add(&d->updates, o, &d->context);
        return;
    }
    updates_launch(&d->updates, &d->context);
    nvtxRangePushA(o->label ? o->label : op_row_of(o)->name);
    backend_cuda.kernels[o->kind](o, &d->context);
    nvtxRangePop();
}

static void *cuda_start(device *d, const op *o)
{
    updates_launch(&d->updates, &d->context);
    nvtxRangePushA(o->label ? o->label : op_row_of(o)->name);
    return streams_start(&d->streams, o);
}

static void cuda_started(device *d, const op *o)
{
    streams_started(&d->streams, o);
    nvtxRangePop();
}

static void cuda_await(device *d, const op *o)
{
    CUDA_MUST(cudaStreamWaitEvent(d->streams.of[STREAM_COMPUTE], d->streams.done[o->where.request], 0));
}

/* Sets a mark. It does not launch pending updates, for which no mark needs to wait. */
static void cuda_mark(device *d, int mark)
{
    MUST(mark >= 0 && mark < d->mark_count, "mark %d of %d", mark, d->mark_count);
    d->marks[mark] = 0;
    int error = launch_mark(d->context.stream, &d->marks[mark]);
    MUST(error == 0, "mark %d: the launch failed with CUDA error %d", mark, error);
}

static bool cuda_passed(device *d, int mark)
{
    return d->marks[mark] != 0;
}

/* Begins a capture. Other streams join and leave it by the events that they wait for; other threads are unaffected. */
static void cuda_capture(device *d, int list)
{
    updates_launch(&d->updates, &d->context);
    CUDA_MUST(cudaStreamBeginCapture(d->streams.of[STREAM_COMPUTE], cudaStreamCaptureModeThreadLocal));
    d->capturing = &d->graphs[list];
}

/* Ends the capture and uploads the graph, so that its first launch does not wait for the upload. */
static void cuda_captured(device *d)
{
    updates_launch(&d->updates, &d->context);
    cudaGraph_t graph;
    cudaGraphExec_t *out = d->capturing;
    CUDA_MUST(cudaStreamEndCapture(d->streams.of[STREAM_COMPUTE], &graph));
    /* otherwise all nodes get the priority of the stream that launches the graph, the lowest */
    cudaError_t e = cudaGraphInstantiate(out, graph, cudaGraphInstantiateFlagUseNodePriority);
    MUST(e != cudaErrorMemoryAllocation,
         "the GPU has %.2f GiB free, too little for a CUDA graph of the program: train.cuda_graph=false, or lower "
         "memory.budget or train.micro_batch",
         (double)free_memory_bytes() / GIB);
    CUDA_MUST(e);
    CUDA_MUST(cudaGraphDestroy(graph));
    CUDA_MUST(cudaGraphUpload(*out, d->streams.of[STREAM_COMPUTE]));
    d->capturing = NULL;
}

static void cuda_replay(device *d, int list)
{
    updates_launch(&d->updates, &d->context);
    for (int i = 0; i < d->mark_count; i++)
        d->marks[i] = 0;
    CUDA_MUST(cudaGraphLaunch(d->graphs[list], d->streams.of[STREAM_COMPUTE]));
}

/* The compute stream waits for all other streams, so that its event is the last. */
static void cuda_synchronise(device *d, void (*meanwhile)(void *context), void *context)
{
    updates_launch(&d->updates, &d->context);
    CUDA_MUST(cudaEventRecord(d->streams.finished, d->streams.of[STREAM_COMPUTE]));
    cudaError_t e;
    while ((e = cudaEventQuery(d->streams.finished)) == cudaErrorNotReady) {
        meanwhile(context);
        nanosleep(&(struct timespec){.tv_nsec = POLL_NANOSECONDS}, NULL);
    }
    CUDA_MUST(e);
}

/* ---- between programs ------------------------------------------------------------------------------------------ */

static void *cuda_borrow(device *d, int64_t at, int64_t bytes)
{
    char *bounce = host_at(d, at, bytes);
    CUDA_MUST(cudaStreamSynchronize(d->streams.of[STREAM_COMPUTE]));
    if (bounce)
        return bounce;
    bounce = must_alloc((unsigned long)(bytes > 0 ? bytes : 1));
    CUDA_MUST(cudaMemcpy(bounce, d->context.arena + at, (size_t)bytes, cudaMemcpyDeviceToHost));
    return bounce;
}

static void cuda_give_back(device *d, void *bounce, int64_t at, int64_t bytes, bool changed)
{
    /* cudaMemcpy returns once it has staged pageable memory, and no stream here waits for its copy. */
    cudaStream_t stream = d->streams.of[STREAM_COMPUTE];
    if (host_at(d, at, bytes))
        return;
    if (changed) {
        CUDA_MUST(cudaMemcpyAsync(d->context.arena + at, bounce, (size_t)bytes, cudaMemcpyHostToDevice, stream));
        CUDA_MUST(cudaStreamSynchronize(stream));
    }
    free(bounce);
}

static void cuda_set_aside(device *d, void *to, int64_t at, int64_t bytes)
{
    MUST(!host_at(d, at, bytes), "%lld bytes of host memory: the host has them", (long long)bytes);
    updates_launch(&d->updates, &d->context);
    cudaStream_t stream = streams_after_compute(&d->streams, STREAM_ASIDE);
    CUDA_MUST(cudaMemcpyAsync(to, d->context.arena + at, (size_t)bytes, cudaMemcpyDeviceToHost, stream));
    CUDA_MUST(cudaEventRecord(d->streams.aside, stream));
}

static void cuda_set_aside_first(device *d)
{
    CUDA_MUST(cudaStreamWaitEvent(d->streams.of[STREAM_COMPUTE], d->streams.aside,
                                  d->capturing ? cudaEventWaitExternal : cudaEventWaitDefault));
}

static bool cuda_set_aside_done(device *d, bool wait)
{
    cudaError_t e = wait ? cudaEventSynchronize(d->streams.aside) : cudaEventQuery(d->streams.aside);
    if (e == cudaErrorNotReady)
        return false;
    CUDA_MUST(e);
    return true;
}

/* ---- verification ------------------------------------------------------------------------------------------------ */

/* Sums bits into `sum` or, with a note, compares their sum with `sum`. */
static void sum_bits(device *d, int64_t sum, const device_rows *of, const device_note *note)
{
    char *base = d->context.arena;
    const launch_bytes bytes = {base + of->at, of->pitch, of->bytes, of->rows};
    uint64_t *to = (uint64_t *)(void *)(base + sum);
    updates_launch(&d->updates, &d->context);
    int error = launch_sum_bits(d->context.stream, to + 1, &bytes);
    if (!error)
        error =
            launch_finish_bits(d->context.stream, to + 1, to, note ? (uint64_t *)(void *)(base + note->note) : NULL,
                               note ? note->what : 0, note ? (const int64_t *)(const void *)(base + note->step) : NULL);
    MUST(error == 0, "a sum of bits: the launch failed with CUDA error %d", error);
}

static void cuda_sum_bits(device *d, int64_t to, const device_rows *of)
{
    sum_bits(d, to, of, NULL);
}

static void cuda_check_bits(device *d, int64_t with, const device_rows *of, const device_note *note)
{
    sum_bits(d, with, of, note);
}

static void copy_rows(device *d, int64_t to, int64_t to_pitch, int64_t from, int64_t from_pitch, const device_rows *r)
{
    updates_launch(&d->updates, &d->context);
    CUDA_MUST(cudaMemcpy2DAsync(d->context.arena + to, (size_t)to_pitch, d->context.arena + from, (size_t)from_pitch,
                                (size_t)r->bytes, (size_t)r->rows, cudaMemcpyDeviceToDevice,
                                d->streams.of[STREAM_COMPUTE]));
}

static void cuda_keep(device *d, int64_t to, const device_rows *of)
{
    copy_rows(d, to, of->bytes, of->at, of->pitch, of);
}

static void cuda_bring_back(device *d, const device_rows *to, int64_t from)
{
    copy_rows(d, to->at, to->pitch, from, to->bytes, to);
}

static void cuda_profile(device *d, bool on)
{
    (void)d;
    CUDA_MUST(on ? cudaProfilerStart() : cudaProfilerStop());
}

struct comm_backend;
extern const struct comm_backend comm_nccl_backend; /* parallel/comm/nccl, in the same shared object */

/* dlsym finds it by name. */
extern const device_interface device_cuda;
const device_interface device_cuda = {
    .version = DEVICE_VERSION,
    .name = "cuda",
    .backend = &backend_cuda,
    .communication = &comm_nccl_backend,
    .available = cuda_available,
    .row = cuda_row,
    .open = cuda_open,
    .allocate = cuda_allocate,
    .clear = cuda_clear,
    .close = cuda_close,
    .facts = cuda_facts,
    .context = cuda_context,
    .host = cuda_host,
    .prepare = cuda_prepare,
    .choices.wanted = cuda_wanted,
    .choices.find = cuda_find,
    .choices.choose = cuda_choose,
    .choices.candidate = cuda_candidate,
    .check = cuda_check,
    .copy_in = cuda_copy_in,
    .copy_out = cuda_copy_out,
    .launch = cuda_launch,
    .start = cuda_start,
    .started = cuda_started,
    .wait = cuda_await,
    .mark = cuda_mark,
    .passed = cuda_passed,
    .capture = cuda_capture,
    .captured = cuda_captured,
    .replay = cuda_replay,
    .forget = cuda_forget,
    .synchronise = cuda_synchronise,
    .borrow = cuda_borrow,
    .give_back = cuda_give_back,
    .aside.copy = cuda_set_aside,
    .aside.first = cuda_set_aside_first,
    .aside.done = cuda_set_aside_done,
    .aside.pin = cuda_pin,
    .times.stamps = cuda_stamps,
    .times.stamp = cuda_stamp,
    .times.seconds = cuda_stamp_seconds,
    .bits.sum = cuda_sum_bits,
    .bits.check = cuda_check_bits,
    .bits.keep = cuda_keep,
    .bits.bring_back = cuda_bring_back,
    .profile = cuda_profile,
};
