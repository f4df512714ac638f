/* Lifetimes of the tensors of one pipeline stage's training step, made up from the shape of a transformer and a
 * schedule: what the planner is given in a run, without recording a model. The list returned is the caller's to free().
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/planner.h"

typedef enum program_schedule { PROGRAM_GPIPE, PROGRAM_1F1B, PROGRAM_INTERLEAVED, PROGRAM_ZB_H1 } program_schedule;
typedef enum program_recompute { PROGRAM_KEEP, PROGRAM_SELECTIVE, PROGRAM_FULL } program_recompute;

typedef struct program_shape {
    program_schedule schedule;
    program_recompute recompute;
    int stages, stage, chunks, layers, micro_batches; /* layers of one chunk; chunks > 1 when interleaved */
    int64_t tokens, hidden, kv, ffn, vocab;           /* sizes of one rank's shares; kv in channels */
    bool gathered;                                    /* ZeRO-3: weights live only while they are used */
    bool persistent; /* parameters, gradients and optimizer state lie in the arena too */
    bool scratch;    /* GEMM scratchpads of odd sizes */
} program_shape;

planner_block *planner_programs_make(const program_shape *shape, int64_t *count);

/* A program drawn at random from the shapes that people train: a function of `seed`. */
program_shape planner_programs_draw(uint64_t seed);

/* "1f1b p4 s0 ..." into `text` */
void planner_programs_describe(const program_shape *shape, char *text, int bytes);
