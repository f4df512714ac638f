/* What is recomputed in the backward pass instead of being kept: the settings of configurations and recordings. */
#pragma once

typedef enum recompute {
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE, /* what ops.def marks OP_CHEAP */
    RECOMPUTE_FULL,      /* all but the inputs of blocks */
    RECOMPUTE_CHOSEN,    /* op by op: what a memory budget needs. No setting of a configuration. */
} recompute;
