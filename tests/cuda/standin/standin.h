/* Stand-ins for libcudart, cuBLASLt and NCCL, so that the host side of the CUDA device runs without a GPU.
 *
 * "Device memory" is host memory that only device work may touch. Work executes when it is enqueued, kernels on the
 * shim, but a tracker knows what a GPU would have been free to reorder: each stream has a vector clock, events carry
 * clocks between streams, and every 4 bytes of device memory remember who wrote and read them. An access that is not
 * ordered behind a conflicting one is a race; a host pointer, a null stream, bytes outside an allocation, arguments
 * that two ranks disagree about are errors. Each ends the job with one line and the exit status STANDIN_FAILED. Copies
 * to the host show nothing but 0xFF until the host has waited for them, and until then the host may not change what is
 * copied from it.
 *
 * The environment makes machines and mistakes: STANDIN_GPUS (8), STANDIN_GPU its name, STANDIN_MAJOR and _MINOR its
 * compute capability, STANDIN_MEMORY in bytes (80 GiB), STANDIN_TAKES what each library and communicator takes of it
 * (64), STANDIN_GRAPH_TAKES what a graph's node takes (16), STANDIN_CUBLASLT its version, STANDIN_FASTEST which of its
 * algorithms is fastest on rank 0 (the next one on rank 1), STANDIN_NCCL and STANDIN_CUDNN their versions,
 * STANDIN_CUDNN_SLOW that it is slow, STANDIN_REPORT what is used how often, STANDIN_MUTANT one of the words that
 * standin_mutant() is asked for; STANDIN_ASKED, how often an event is asked for before it is seen to have come (1);
 * STANDIN_KERNEL_SECONDS, what a kernel takes before an event behind it is seen, and STANDIN_SLOW_1, how many times as
 * long all work takes on rank 1's device, and STANDIN_ENDLESS_1, the label of the op whose kernels never end on rank 1,
 * once STANDIN_ENDLESS_AFTER (0) of them have ended. One thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/table/op.h"

struct CUstream_st;

/* Queues: the host, streams as they are made, and last the default stream, for which none of them waits. */
enum { STANDIN_FAILED = 98, STANDIN_HOST = 0, STANDIN_DEFAULT = 15, STANDIN_STREAMS };

typedef struct standin_clock {
    uint32_t at[STANDIN_STREAMS]; /* [0]: the host */
} standin_clock;

struct standin_record;

struct CUevent_st {
    standin_clock clock;
    struct standin_record *captured; /* in the capture that goes on; else NULL */
    double due;                      /* when a device would have come so far: STANDIN_KERNEL_SECONDS */
    double milliseconds;             /* of work on its queue so far: standin_take() */
    bool recorded, timed;
    int64_t asked; /* how often, since it was recorded */
};

_Noreturn void standin_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool standin_mutant(const char *name);

/* tracker.c */
void *standin_allocate(int64_t bytes);
int64_t standin_free(void *memory); /* how many bytes it was */
/* Who is `stream`? A null stream, or one that was never made, is an error of `what`. */
int standin_stream(struct CUstream_st *stream, const char *what);
/* A stream more, or less: NCCL has one of its own for each communicator. */
void standin_more_queues(int more);
/* New work on a queue: one tick of its clock, behind all that the host has waited for. */
void standin_tick(int queue);
/* This work reads, or writes, so many bytes of device memory. */
void standin_access(int queue, const void *at, int64_t bytes, bool write, const char *what);
void standin_access_tensor(int queue, const tensor *t, char *arena, bool write, const char *what);
bool standin_is_device(const void *at);
void standin_join(standin_clock *to, const standin_clock *from);
standin_clock *standin_clock_of(int queue);
int64_t standin_accesses(void);

/* copies.c: copies to the host that it has waited for become visible */
void standin_arrive(void);

/* capture.c: while a stream is captured, work for it, and for streams that have joined, is kept and not executed. */
typedef void (*standin_work)(int queue, void *what);
/* If `queue` is captured: keep `play`, to be called with a copy of `what` at each launch of the graph. Else false. */
bool standin_keep(int queue, standin_work play, const void *what, size_t bytes);
/* What is being captured refers to something that counts its references: one more until the executable graph is
 * destroyed. */
void standin_refer(int *count);
/* The same for an event: order between queues, and no work. */
bool standin_keep_record(int queue, struct CUevent_st *e);
bool standin_keep_wait(int queue, struct CUevent_st *e);
bool standin_keep_external(int queue, standin_work wait, struct CUevent_st *e);
/* Must not be called while a stream is captured. */
void standin_no_capture(const char *what);
bool standin_captured(int queue);

/* executor.c: every kernel is launched for the first time, before the run begins; and that has been done */
bool standin_warming(void);
bool standin_warmed(void);

/* runtime.c: the context, a library or a communicator takes its share of the device's memory (STANDIN_TAKES); false:
 * there is no more */
bool standin_library_takes(void);
/* a graph of so many nodes takes STANDIN_GRAPH_TAKES bytes each, or gives them back; false: there is no more */
bool standin_graph_takes(int nodes);
/* one more kernel for the device to be busy with; work put on a queue takes so long, for those who time it */
void standin_busy(void);
/* A queue's next work begins no earlier; when it may begin */
void standin_wait_until(int queue, double milliseconds);
double standin_time(int queue);
/* Marks that the device has come to by now are set. */
void standin_land(void);
void standin_take(int queue, double milliseconds);

/* ops.c: the op whose kernels are being launched, or NULL */
const op *standin_op(void);
void standin_set_op(const op *o);

/* What has been counted since the profiler was started, and is said when it is stopped. */
typedef struct standin_count {
    int64_t launches, updates;     /* of kernels; of AdamW over a list */
    int64_t reduced;               /* calls of ncclReduce: sums that one rank gets */
    int64_t read_ahead, read_idle; /* samples read while the device works; while it has nothing to do */
} standin_count;
extern standin_count standin_counts;
