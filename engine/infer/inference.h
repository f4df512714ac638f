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

/* A model that continues texts: the one-token decoding program with its key/value cache.
 *
 * A generator owns its compiled program, arena and weights; the tokenizer and the place the weights come from are the
 * caller's. Several samples advance together, one token each a call; going back to position 0 begins other texts.
 */

typedef struct generator generator;

typedef struct generator_choice {
    double temperature; /* 0: the likeliest token */
    int64_t top_k;      /* choose among so many likeliest; 0: all */
    double top_p;       /* among the fewest whose probabilities reach this; 1: all */
    uint64_t seed;
} generator_choice;

/* `texts` at once, up to `positions` tokens each (prompt and continuation). With several ranks everything here but
 * closing is collective: all call it alike, and all see the same logits and draw the same tokens. */
status generator_open(generator **out, weights *from, const inference_ranks *ranks, precision_kind precision, int texts,
                      int64_t positions);
void generator_close(generator *g);
/* Each sample's token at `position` (the same for all); its logits of the next token are then in generator_logits(). */
void generator_step(generator *g, const int32_t *tokens, int64_t position);
/* fp32 [vocab_size] of one sample, valid until the next call of either function */
const float *generator_logits(generator *g, int sample);
/* A token drawn from a sample's logits: a function of (seed, text, position) and the logits. `text` is the caller's
 * number of what is continued, whichever sample of the generator it happens to be. */
int32_t generator_choose(generator *g, const generator_choice *c, int sample, int64_t text, int64_t position);
