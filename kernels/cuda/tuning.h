/* What the device has several ways to compute: products by cuBLASLt's algorithms, and whatever else is added here.
 *
 * Whoever prepares an op adds an item for each plan that knows more than one way, and keeps to way 0, the best guess, until
 * `take` tells it otherwise. An item's key says all that the speed depends on and no address, so that it holds for other
 * ranks and other runs; the device's name is appended here. Every way must give the same bits each time it is gone.
 * Items live until tuning_close; the plans are their owners'. (device_interface.wanted, find, choose)
 */
#ifndef PHALANX_KERNELS_CUDA_TUNING_H
#define PHALANX_KERNELS_CUDA_TUNING_H

#include <cuda_runtime_api.h>

#include "kernels/device.h"

/* A region of the arena that a way reads: filled with random numbers of `type` before it is timed. */
typedef struct tuning_operand {
    void *at; /* device address; NULL: absent */
    int64_t bytes;
    dtype type; /* fp32, bf16, fp16 */
} tuning_operand;

enum { TUNING_OPERANDS = 8, TUNING_WAYS = 8 };

typedef struct tuning_item {
    char key[DEVICE_CHOICE_KEY];
    void *plan;
    int ways; /* 1 .. TUNING_WAYS */
    tuning_operand reads[TUNING_OPERANDS];
    /* Enqueue the whole computation once by `way`, on its operands in the arena; false: the library will not. */
    bool (*run)(void *plan, int way, cudaStream_t stream);
    /* `way` in words that outlive the process (at most bytes - 1 characters, no quotes, no control characters) ... */
    void (*write)(char *out, int bytes, const void *plan, int way);
    /* ... and from now on the way that such words name; fails, without a change, if they name none for this plan. */
    status (*take)(void *plan, const char *words);
} tuning_item;

typedef struct tuning tuning;

void tuning_open(tuning **out, const char *device_name);
void tuning_close(tuning *t);
/* Adds a copy of `item`. One plan a key. */
void tuning_add(tuning *t, const tuning_item *item);

/* The device_interface's three. `find` with timing overwrites the operands and what the ways write. */
const char *tuning_wanted(const tuning *t, int i);
status tuning_find(tuning *t, device_choice *choices, int count, bool timing, cudaStream_t stream);
status tuning_choose(tuning *t, const device_choice *choice);

#endif
