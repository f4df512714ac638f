/* A workbench for single kernels of the host: an arena, tensors in it, ops on them. `arena` is the caller's to free. */
#pragma once

#include "kernels/cpu/isa.h"
#include "kernels/table/op.h"

typedef struct workbench {
    char *arena;
    int64_t used;
    run_context r;
    uint64_t seed;
    tensor scratch; /* of the last op, which points at it */
} workbench;

/* `set`: whose kernels; NULL: the best that this machine has. */
workbench workbench_open(int threads, const isa *set);
/* Uninitialised: what is read before it is written is NaN. No columns: a vector. */
tensor workbench_tensor(workbench *b, dtype type, int64_t rows, int64_t columns);
tensor workbench_random(workbench *b, dtype type, int64_t rows, int64_t columns, double size); /* -size .. size */
double workbench_uniform(workbench *b);                                                        /* 0 .. 1 */
double workbench_get(const workbench *b, const tensor *t, int64_t i, int64_t j);
void workbench_put(const workbench *b, const tensor *t, int64_t i, int64_t j, double value);
/* `prepared`: with what the backend's prepare makes (oneDNN), else without. */
void workbench_run(workbench *b, op *o, bool prepared);
/* Largest difference, of the largest magnitude in `want`. */
double workbench_worst(const workbench *b, const tensor *t, const double *want, int64_t rows, int64_t columns);

/* Every instruction set in order of what it needs; the first workbench_sets_here() of them run on this machine. */
extern const isa *const workbench_sets[];
int workbench_sets_here(void);
