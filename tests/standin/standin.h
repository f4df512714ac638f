/* Stand-ins for libcudart, cuBLASLt and NCCL, so that the host side of the CUDA device runs without a GPU.
 *
 * "Device memory" is host memory that only device work may touch. Work executes when it is enqueued, kernels on the shim,
 * but a tracker knows what a GPU would have been free to reorder: each stream has a vector clock, events carry clocks
 * between streams, and every 4 bytes of device memory remember who wrote and read them. An access that is not ordered
 * behind a conflicting one is a race; a host pointer, a null stream, bytes outside an allocation, arguments that two ranks
 * disagree about are errors. Each ends the job with one line and the exit status STANDIN_FAILED. Copies to the host show
 * nothing but 0xFF until the host has waited for them.
 *
 * The environment makes machines and mistakes: STANDIN_GPUS (8), STANDIN_GPU its name, STANDIN_MAJOR its compute capability,
 * STANDIN_MEMORY in bytes (1 GiB), STANDIN_CUBLASLT its version, STANDIN_FASTEST which of its algorithms is fastest on rank 0
 * (the next one on rank 1), STANDIN_CUDNN its version, STANDIN_CUDNN_SLOW that it is slow, STANDIN_REPORT what is used how
 * often, STANDIN_MUTANT one of the words that standin_mutant() is asked for. One thread.
 */
#ifndef PHALANX_TESTS_STANDIN_STANDIN_H
#define PHALANX_TESTS_STANDIN_STANDIN_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/op.h"

enum { STANDIN_FAILED = 98, STANDIN_HOST = 0, STANDIN_STREAMS = 12 };

typedef struct standin_clock {
    uint32_t at[STANDIN_STREAMS]; /* [0]: the host */
} standin_clock;

struct CUstream_st;

_Noreturn void standin_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool standin_mutant(const char *name);

/* tracker.c */
void *standin_allocate(int64_t bytes);
void standin_free(void *memory);
/* Who is `stream`? A null stream, or one that was never made, is an error of `what`. */
int standin_stream(struct CUstream_st *stream, const char *what);
/* New work on a queue: one tick of its clock, behind all that the host has waited for. */
void standin_tick(int queue);
/* This work reads, or writes, so many bytes of device memory. */
void standin_access(int queue, const void *at, int64_t bytes, bool write, const char *what);
void standin_access_tensor(int queue, const tensor *t, char *arena, bool write, const char *what);
bool standin_is_device(const void *at);
void standin_join(standin_clock *to, const standin_clock *from);
standin_clock *standin_clock_of(int queue);
int64_t standin_accesses(void);

/* runtime.c: work put on a queue takes so long, for those who time it */
void standin_take(int queue, double milliseconds);

/* ops.c: the op whose kernels are being launched, or NULL */
const op *standin_op(void);

#endif
