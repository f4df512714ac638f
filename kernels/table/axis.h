/* The table of axes (axes.def): the dimension that each coordinate of a rank divides, and the sets of ranks that ops
 * communicate along.
 *
 * Which ranks a set has follows from a grid: parallel/comm/grid.h. "Which gradients sum" (AXIS_GRADIENT) and "who
 * divides samples" (AXIS_SAMPLES) are different questions: context ranks see the same samples and other tokens.
 */
#pragma once

#include <stdbool.h>

typedef enum axis {
#define AXIS(name, ...) AXIS_##name,
#include "kernels/table/axes.def"
    AXIS_COUNT,
} axis;

enum {
#define COORDINATE(name, ...) AXIS_COORDINATE_##name,
#include "kernels/table/axes.def"
    AXIS_COORDINATES,
};

typedef enum axis_divides {
    AXIS_DIVIDES_WEIGHTS,
    AXIS_DIVIDES_TOKENS, /* tokens of a sample */
    AXIS_DIVIDES_SAMPLES,
    AXIS_DIVIDES_LAYERS,
} axis_divides;

typedef struct axis_coordinate {
    const char *name;
    axis_divides divides;
    bool sums;  /* its ranks hold the same weights and see other tokens */
    bool named; /* people see it although it has one rank */
} axis_coordinate;

typedef enum axis_rule { AXIS_WHOLE, AXIS_ENDS, AXIS_BLOCKS, AXIS_ACROSS } axis_rule;

typedef enum axis_gradients { AXIS_SUMS_NONE, AXIS_SUMS_COPIES, AXIS_SUMS_REPLICAS } axis_gradients;

typedef enum axis_queue {
    AXIS_QUEUE_NONE,
    AXIS_QUEUE_ACTIVATIONS, /* traffic within a layer: the next op waits for it */
    AXIS_QUEUE_GRADIENTS,   /* weights and gradients: they travel while other layers compute */
    AXIS_QUEUE_STAGES,      /* traffic between stages */
    AXIS_QUEUES,
} axis_queue;

typedef struct axis_row {
    const char *name;
    unsigned spans; /* bit i: coordinate i */
    axis_rule rule;
    axis across; /* AXIS_ACROSS: the axis that supplies the blocks */
    axis_gradients gradients;
    axis_queue queue;
    bool edges;     /* messages between pairs of ranks */
    bool layers;    /* may record communication along it */
    unsigned slots; /* placement slots, bit by bit */
} axis_row;

/* Slots of a tensor's placements: one a coordinate, and one an axis that picks among its ranks (ENDS, BLOCKS, ACROSS).
 * An axis of all ranks along its coordinates has their slots. */
#define AXIS_PICKS_WHOLE     0
#define AXIS_PICKS_ENDS      1
#define AXIS_PICKS_BLOCKS    1
#define AXIS_PICKS_ACROSS(a) 1
enum {
#define AXIS(name, text, spans, rule, ...)                                                                             \
    AXIS_SLOT_##name, AXIS_LAST_##name = AXIS_SLOT_##name + AXIS_PICKS_##rule - 1,
    AXIS_BEFORE_SLOTS = AXIS_COORDINATES - 1,
#include "kernels/table/axes.def"
    AXIS_SLOTS,
};

/* The group along an axis that one rank belongs to. */
typedef struct axis_group {
    int ranks, rank; /* number of ranks, and this one's place among them; 0 and -1: it belongs to none */
    unsigned slots;  /* slots of placements along it in which it has more than one rank */
} axis_group;

extern const axis_coordinate axis_coordinates[AXIS_COORDINATES];
extern const axis_row axis_rows[AXIS_COUNT];

static inline const char *axis_name(axis a)
{
    return axis_rows[a].name;
}

/* True if ops communicate along it. */
static inline bool axis_has_messages(axis a)
{
    return axis_rows[a].queue != AXIS_QUEUE_NONE;
}

/* True if ops of a layer wait for messages along it. */
static inline bool axis_within_layers(axis a)
{
    return axis_rows[a].queue == AXIS_QUEUE_ACTIVATIONS;
}

/* True if its messages are part of the order of messages between stages (parallel/schedule/lowering.h). */
static inline bool axis_between_stages(axis a)
{
    return axis_rows[a].queue == AXIS_QUEUE_STAGES;
}

/* The slots of an axis, bit by bit. */
static inline unsigned axis_slots(axis a)
{
    return axis_rows[a].slots;
}

const char *axis_slot_name(int slot);

/* True if activations are divided along the coordinate, so that weights are shared along it. */
static inline bool axis_divides_activations(int coordinate)
{
    return axis_coordinates[coordinate].divides == AXIS_DIVIDES_SAMPLES ||
           axis_coordinates[coordinate].divides == AXIS_DIVIDES_TOKENS;
}

/* True if its ranks compute the same layer together, on the same samples. */
static inline bool axis_shares_layers(int coordinate)
{
    return axis_coordinates[coordinate].divides == AXIS_DIVIDES_WEIGHTS ||
           axis_coordinates[coordinate].divides == AXIS_DIVIDES_TOKENS;
}

static inline bool axis_spans(axis a, int coordinate)
{
    return axis_rows[a].spans >> coordinate & 1;
}
