/* A model that is used, not trained: its weights on the ranks of a job, and the program that evaluates them or decodes
 * with them.
 *
 * An inference owns its compiled program and its executor; the place that the weights come from is the caller's, and is
 * not needed any more once it is open.
 */
#pragma once

#include "engine/run/executor.h"
#include "engine/state/weights/weights.h"

/* Words of command lines, and what they mean. */
typedef enum inference_where { INFERENCE_AUTO, INFERENCE_CPU, INFERENCE_CUDA } inference_where;
extern const char *const inference_devices[]; /* by inference_where; auto: cuda where there is one */

typedef struct inference {
    compiled compiled;
    executor *executor;
} inference;

/* Who takes part. Tensor and pipeline ranks share the model; what is left of the job's ranks are data ranks, which
 * share samples. */
typedef struct inference_ranks {
    comm *world;
    inference_where where;
    int64_t tensor, pipeline; /* 0: not said: 1 where data ranks may be, else all ranks are tensor ranks */
    bool data;                /* data ranks have something to share */
} inference_ranks;

/* `wanted` says which program and its sizes: sequence, micro_batch, compute, evaluate or decode_*. The rest is filled
 * in. `out` must be closed either way. Collective, and so is the status. */
status inference_open(inference *out, weights *from, const inference_ranks *ranks, const compile_options *wanted);
void inference_close(inference *i);
