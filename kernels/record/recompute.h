/* Settings, in configurations and recordings, of which tensors the backward pass recomputes instead of keeping. */
#pragma once

typedef enum recompute {
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE, /* ops marked OP_CHEAP in ops.def */
    RECOMPUTE_FULL,      /* all but the inputs of blocks */
    RECOMPUTE_CHOSEN,    /* op by op, as a memory budget needs; a configuration cannot ask for it */
} recompute;
