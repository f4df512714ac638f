/* Computations for which the device has several candidates: products by cuBLASLt's algorithms, attention by cuDNN's.
 *
 * The code that prepares an op adds an item for each plan with more than one candidate, and uses candidate 0, the best
 * guess, until `take` tells it otherwise. An item's key holds all that the speed depends on and no address, so that it
 * holds for other ranks and other runs; the device's name is appended here. Every candidate must give the same bits
 * each time it runs. Items live until tuning_close; the plans are their owners'. (device_choices)
 */
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/device.h"

/* A region of the arena that a candidate reads: filled with random numbers of `type`, or with what `give` makes, before
 * it is timed. */
typedef struct tuning_operand {
    void *at; /* device address; NULL: absent */
    int64_t bytes;
    dtype type;                                               /* fp32, bf16, fp16; any if values are given */
    void (*give)(void *out, int64_t bytes, const void *plan); /* NULL: random numbers */
} tuning_operand;

enum { TUNING_OPERANDS = 8, TUNING_CANDIDATES = 8 };

typedef struct tuning_item {
    char key[DEVICE_CHOICE_KEY];
    void *plan;
    int candidates; /* 1 .. TUNING_CANDIDATES */
    tuning_operand reads[TUNING_OPERANDS];
    /* Enqueues the whole computation once by `candidate`, on its operands in the arena; false: the library refuses. */
    bool (*run)(void *plan, int candidate, cudaStream_t stream);
    /* Writes `candidate` in words that outlive the process (at most bytes - 1 characters, no quotes, no control
     * characters). */
    void (*write)(char *out, int bytes, const void *plan, int candidate);
    /* Uses the candidate that such words name from now on; fails, without a change, if this plan has no such one. */
    status (*take)(void *plan, const char *words);
} tuning_item;

typedef struct tuning tuning;

void tuning_open(tuning **out, const char *device_name);
void tuning_close(tuning *t);
/* Adds a copy of `item`. One plan a key. */
void tuning_add(tuning *t, const tuning_item *item);

/* Implement the device_interface's three. `find` with timing overwrites the operands and the candidates' outputs. */
const char *tuning_wanted(const tuning *t, int i);
status tuning_find(tuning *t, device_choice *choices, int count, bool timing, cudaStream_t stream);
status tuning_choose(tuning *t, const device_choice *choice);
bool tuning_candidate(const tuning *t, device_choice *choice, int i);
