/* A pipeline schedule: which action each stage performs, in which order.
 *
 * schedule_make is a pure function of (kind, stages, chunks, micro-batches): no rank, no clock, no device. The lists can
 * be printed, checked (schedule_check.h), lowered to messages (lowering.h), simulated (simulate.h) and drawn (timeline.h).
 * The caller owns the schedule and frees it with schedule_free.
 *
 * A stage is one pipeline rank's share of the model, a chunk one contiguous run of layers. Stage s holds the chunks
 * s, s + stages, s + 2 stages, ... of the model: global chunk = chunk * stages + stage.
 */
#ifndef PHALANX_PARALLEL_SCHEDULE_H
#define PHALANX_PARALLEL_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

typedef enum action_kind {
    ACTION_FORWARD,
    ACTION_BACKWARD,        /* gradients of input and weights together */
    ACTION_BACKWARD_INPUT,  /* the input's only: what the previous chunk waits for */
    ACTION_BACKWARD_WEIGHT, /* the weights' only, any time after the input's */
    ACTION_KINDS
} action_kind;

typedef struct action {
    uint8_t kind;       /* action_kind */
    int16_t chunk;      /* on this stage: 0 .. chunks-1 */
    int32_t microbatch; /* 0 .. microbatches-1 */
} action;

typedef enum schedule_kind {
    SCHEDULE_GPIPE,       /* every forward, then every backward (1811.06965) */
    SCHEDULE_1F1B,        /* one forward, one backward; with more than one chunk it becomes SCHEDULE_INTERLEAVED */
    SCHEDULE_INTERLEAVED, /* 1F1B over several chunks a stage (2104.04473); with one chunk it becomes SCHEDULE_1F1B */
    SCHEDULE_ZB_H1,       /* 1F1B with the weights' gradients deferred into the bubble (2401.10241) */
    SCHEDULE_KINDS
} schedule_kind;

typedef struct schedule {
    int stages;
    int chunks; /* per stage: virtual stages */
    int microbatches;
    schedule_kind kind;
    action **actions; /* [stages][counts[stage]] */
    int *counts;      /* [stages] */
} schedule;

/* In every schedule the micro-batches of one chunk go forward in ascending order, and backward in ascending order, so
 * that each parameter's gradient is accumulated in the same order whatever the schedule.
 *
 * With several chunks, micro-batches travel in rounds: a round passes through all chunks before the next one starts.
 * There are max(1, floor(microbatches / stages)) rounds, of sizes that differ by at most one, the larger first: `stages`
 * each where that divides, between `stages` and 2 stages - 1 otherwise, and all micro-batches at once if they are fewer
 * than the stages. A round shorter than the number of stages would stall at every change of chunk; a longer one
 * costs only activations, (chunks - 1) for each micro-batch above `stages` (see schedule_in_flight). */
status schedule_make(schedule *out, schedule_kind kind, int stages, int chunks, int microbatches);
void schedule_free(schedule *s);

/* The activations, counted in chunks, that `stage` holds at its peak: forwards begun, and their backward (for ZB-H1: the
 * input's part of it) not yet ended. */
int schedule_in_flight(const schedule *s, int stage);

static inline int schedule_global_chunk(const schedule *s, int stage, int chunk)
{
    return chunk * s->stages + stage;
}

/* "gpipe", "1f1b", "interleaved", "zb-h1" */
const char *schedule_name(schedule_kind kind);

enum { SCHEDULE_DESCRIPTION_BYTES = 80 };
/* "forward of chunk 0, micro-batch 3", for messages and labels; returns `out`. */
const char *schedule_describe(char out[SCHEDULE_DESCRIPTION_BYTES], action a);

#endif
