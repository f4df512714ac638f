/* A pipeline schedule: the actions of each stage, in order.
 *
 * The lists are values: they come from a name (schedule_make.h) or are found for given costs and memory
 * (schedule_search.h), and can be printed, checked (schedule_check.h), lowered to messages (lowering.h), simulated
 * (simulate.h) and drawn (timeline.h), without a rank, a clock or a device. The caller owns a schedule and frees it
 * with schedule_free.
 *
 * A stage is one pipeline rank's share of the model, a chunk one contiguous run of layers.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

/* Maps the i-th run of a pipelined model's layers to a stage and its chunk.
 *
 * Round and round: stage s holds the chunks s, s + stages, s + 2 stages, ... of the model. Folded (the V of
 * 2405.15362): every second round runs backwards, so that of two chunks a stage the first stage holds the first and the
 * last one. Where the path turns, neighbouring chunks are on the same stage and no message passes between them.
 */
typedef struct chunk_map {
    int stages, chunks; /* chunks of one stage */
    bool folded;
} chunk_map;

static inline int chunk_map_global(chunk_map m, int stage, int chunk)
{
    return chunk * m.stages + (m.folded && chunk % 2 ? m.stages - 1 - stage : stage);
}

static inline int chunk_map_chunk(chunk_map m, int global)
{
    return global / m.stages;
}

static inline int chunk_map_stage(chunk_map m, int global)
{
    int along = global % m.stages;
    return m.folded && chunk_map_chunk(m, global) % 2 ? m.stages - 1 - along : along;
}

typedef enum action_kind {
    ACTION_FORWARD,
    ACTION_BACKWARD,        /* gradients of input and weights together */
    ACTION_BACKWARD_INPUT,  /* the input's only: the previous chunk waits for it */
    ACTION_BACKWARD_WEIGHT, /* the weights' only, any time after the input's */
    ACTION_KINDS
} action_kind;

typedef struct action {
    uint8_t kind;       /* action_kind */
    int16_t chunk;      /* index on this stage: 0 .. chunks-1 */
    int32_t microbatch; /* 0 .. microbatches-1 */
} action;

typedef enum schedule_kind {
    SCHEDULE_GPIPE,       /* every forward, then every backward (1811.06965) */
    SCHEDULE_1F1B,        /* one forward, one backward */
    SCHEDULE_INTERLEAVED, /* the same over several chunks a stage (2104.04473) */
    SCHEDULE_ZB_H1,       /* 1F1B with the weights' gradients deferred into the bubble (2401.10241) */
    SCHEDULE_ZB_H2,       /* more forwards first, twice as many weights' gradients deferred: twice the memory */
    SCHEDULE_ZB_V,        /* two chunks a stage, folded: no bubble in the memory of 1F1B where F = I = W */
    SCHEDULE_V_HALF,      /* folded, about half the memory (2405.15362) */
    SCHEDULE_V_MIN,       /* folded, about a third of it */
    SCHEDULE_KINDS,       /* number of kinds with a name and lists of their own */
    SCHEDULE_AUTO = SCHEDULE_KINDS, /* found: schedule_search.h */
} schedule_kind;

/* Chunks after the layers': each stage's part of the head and of the embedding, if the vocabulary is divided. */
enum { SCHEDULE_HEAD, SCHEDULE_EMBEDDING, SCHEDULE_SHARED };

typedef struct schedule {
    int stages;
    int chunks; /* chunks of layers per stage: virtual stages */
    int shared; /* 0, or SCHEDULE_SHARED: chunks of each stage beside them */
    int microbatches;
    bool folded;
    /* True if the chunk with the last layers reads an embedding, too, that of the next tokens (with `shared`). */
    bool next_tokens;
    schedule_kind kind;
    action **actions; /* [stages][counts[stage]] */
    int *counts;      /* [stages] */
} schedule;

/* Allocates room for `actions` actions a stage; the lists are empty. */
void schedule_alloc(schedule *out, schedule_kind kind, chunk_map map, int microbatches, int actions);
void schedule_free(schedule *s);

static inline chunk_map schedule_map(const schedule *s)
{
    return (chunk_map){s->stages, s->chunks, s->folded};
}

static inline int schedule_global_chunk(const schedule *s, int stage, int chunk)
{
    return chunk_map_global(schedule_map(s), stage, chunk);
}

static inline int schedule_stage_of(const schedule *s, int global_chunk)
{
    return chunk_map_stage(schedule_map(s), global_chunk);
}

/* The number of chunks of layers of all stages, and of all chunks: global numbers are below it. */
static inline int schedule_layer_chunks(const schedule *s)
{
    return s->stages * s->chunks;
}

static inline int schedule_all_chunks(const schedule *s)
{
    return s->stages * (s->chunks + s->shared);
}

/* The words of configurations and messages, by kind: "gpipe", "1f1b", ... "auto"; NULL ends them. */
extern const char *const schedule_names[];
const char *schedule_name(schedule_kind kind);
/* The kind's name with `chunks` chunks a stage: 1f1b with several is interleaved, and interleaved with one is 1f1b. */
schedule_kind schedule_kind_of(schedule_kind kind, int chunks);
/* The kind that equals this one over `stages` stages: every schedule of one stage is the same list. */
schedule_kind schedule_kind_over(schedule_kind kind, int stages);
/* True if the backward pass is two actions. */
bool schedule_kind_splits(schedule_kind kind);
bool schedule_kind_folds(schedule_kind kind);
/* The number of chunks that a stage must have; 0: any number. */
int schedule_kind_chunks(schedule_kind kind);
bool schedule_splits(const schedule *s);

enum { SCHEDULE_DESCRIPTION_BYTES = 80 };
/* "forward of chunk 0, micro-batch 3", for messages and labels; returns `out`. */
const char *schedule_describe(char out[SCHEDULE_DESCRIPTION_BYTES], action a);

/* Checks that a schedule computes the right gradients and comes to an end.
 *
 * The check is independent of the making of the lists: it counts every action of every (stage, chunk, micro-batch),
 * then replays all stages against one another. A failure names stage, position and action.
 */

/* STATUS_OK if
 * - every action is within range and there exactly once: one forward, and either one backward or one backward-input and
 *   one backward-weight (duplicates are refused, not merged);
 * - every stage reaches the end of its list: a forward waits for the forward of the previous global chunk, a backward
 *   for its own forward and the next global chunk's backward, a backward-weight for its own backward-input, and shared
 *   chunks for all stages' contributions (exchange.h);
 * - forwards, backwards and weight gradients of one chunk come in ascending order of micro-batch. */
status schedule_check(const schedule *s);
