#include "kernels/table/axis.h"

#include "memory/tensor.h"

_Static_assert((int)AXIS_SLOTS <= (int)TENSOR_SLOTS, "a tensor has too few slots for the axes");

#define COORDINATE(name, text, divides, sums, named) {text, AXIS_DIVIDES_##divides, sums, named},
const axis_coordinate axis_coordinates[AXIS_COORDINATES] = {
#include "kernels/table/axes.def"
};

/* The sets that follow from the coordinates' columns. */
enum {
#define COORDINATE(name, text, divides, sums, named) | (sums) << AXIS_COORDINATE_##name
    SPAN_SUMS = 0
#include "kernels/table/axes.def"
    ,
#define COORDINATE(name, text, divides, sums, named)                                                                   \
    | (AXIS_DIVIDES_##divides == AXIS_DIVIDES_SAMPLES) << AXIS_COORDINATE_##name
    SPAN_SAMPLES = 0
#include "kernels/table/axes.def"
    ,
#define COORDINATE(name, text, divides, sums, named)                                                                   \
    | (AXIS_DIVIDES_##divides != AXIS_DIVIDES_LAYERS) << AXIS_COORDINATE_##name
    SPAN_STAGE = 0
#include "kernels/table/axes.def"
    ,
    SPAN_ALL = (1 << AXIS_COORDINATES) - 1,
};

#define SPAN_ON(name)     1 << AXIS_COORDINATE_##name
#define RULE_WHOLE        AXIS_WHOLE, AXIS_COUNT
#define RULE_ENDS         AXIS_ENDS, AXIS_COUNT
#define RULE_BLOCKS       AXIS_BLOCKS, AXIS_COUNT
#define RULE_ACROSS(name) AXIS_ACROSS, AXIS_##name
#define AXIS(name, text, spans, rule, gradients, queue, edges, layers)                                                 \
    {text,                                                                                                             \
     SPAN_##spans,                                                                                                     \
     RULE_##rule,                                                                                                      \
     AXIS_SUMS_##gradients,                                                                                            \
     AXIS_QUEUE_##queue,                                                                                               \
     edges,                                                                                                            \
     layers,                                                                                                           \
     AXIS_PICKS_##rule ? 1u << AXIS_SLOT_##name : SPAN_##spans},
const axis_row axis_rows[AXIS_COUNT] = {
#include "kernels/table/axes.def"
};

const char *axis_slot_name(int slot)
{
    for (int a = 0; slot >= AXIS_COORDINATES && a < AXIS_COUNT; a++)
        if (axis_rows[a].slots >> slot & 1)
            return axis_rows[a].name;
    return axis_coordinates[slot].name;
}
