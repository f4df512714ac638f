/* libcudart's copies, between the device and the host and within the device. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "tests/cuda/standin/standin.h"

/* What goes to the host arrives when the host has waited, and what comes from it may change then. */
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

void standin_arrive(void)
{
    arrive(NULL, 0);
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

/* Host memory that has been copied in and out, in the same pieces: state that is offloaded. Inputs go one way, and
 * results the other. */
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

/* On the default stream. Out of pageable memory it returns when the bytes have been staged, which may be before they
 * have arrived; to the host it waits. (There is no pinned memory that anybody copies like this.) */
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
