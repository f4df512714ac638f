/* A model for inference: its weights on the ranks of a job, and the program that evaluates them or decodes with them.
 *
 * An inference owns its compiled program and its executor; the caller owns the source of the weights, which is needed
 * until it is open.
 */
#pragma once

#include "engine/run/executor.h"
#include "engine/state/weights/weights.h"
#include "memory/scope.h"

/* The option --begin of commands that tokenize with a model's tokenizer. */
#define INFERENCE_BEGIN_HELP "what begins a text (as the checkpoint records it; phalanx help data)"

/* Names of devices on command lines, and their meaning. */
typedef enum inference_where { INFERENCE_AUTO, INFERENCE_CPU, INFERENCE_CUDA } inference_where;
extern const char *const inference_devices[]; /* indexed by inference_where; auto: cuda if present */

typedef struct inference {
    compiled compiled;
    executor *executor;
} inference;

/* The ranks that take part. Tensor and pipeline ranks share the model; the job's other ranks are data ranks, which
 * share samples. */
typedef struct inference_ranks {
    comm *world;
    inference_where where;
    int64_t tensor, pipeline; /* 0: 1 if data ranks are allowed, else all ranks are tensor ranks */
    bool data;                /* allows data ranks, which share samples */
} inference_ranks;

/* `wanted` names the program and its sizes: sequence, micro_batch, compute, evaluate or decode_*; inference_open fills
 * in the rest. `out` must be closed either way. Collective, and so is the status. */
status inference_open(inference *out, weights *from, const inference_ranks *ranks, const compile_options *wanted);
void inference_close(inference *i);

/* Opens the tokenizer of prompts, as weights_tokenizer() does. Rank 0 warns if their beginning is unknown. */
status inference_tokenizer(tokenizer **out, const weights *from, const char *spec, tokenizer_begin begin);

/* A model that continues texts: the one-token decoding program with its key/value cache.
 *
 * A generator owns its compiled program, arena and weights; the caller owns the tokenizer and the source of the
 * weights. Several samples advance together, one token per call; going back to position 0 begins other texts.
 */

typedef struct generator generator;

typedef struct generator_choice {
    double temperature; /* 0: the most likely token */
    int64_t top_k;      /* draws from the top_k most likely; 0: all */
    double top_p;       /* draws from the fewest with this total probability; 1: all */
    uint64_t seed;
} generator_choice;

/* Opens a generator of `texts` texts, up to `positions` tokens each (prompt and continuation). With several ranks all
 * calls but closing are collective: all ranks call alike, see the same logits and draw the same tokens. */
status generator_open(generator **out, weights *from, const inference_ranks *ranks, precision_kind precision, int texts,
                      int64_t positions);
void generator_close(generator *g);
AUTO_CLOSES(generator, generator_close)
/* Feeds each sample's token at `position` (the same for all); generator_logits() then returns the next token's
 * logits. */
void generator_step(generator *g, const int32_t *tokens, int64_t position);
/* Returns fp32 [vocab_size] of one sample, valid until the next call of either function. */
const float *generator_logits(generator *g, int sample);
/* Draws a token from a sample's logits: a function of (seed, text, position) and the logits. `text` is the caller's
 * number of the text, independent of the sample index. */
int32_t generator_choose(generator *g, const generator_choice *c, int sample, int64_t text, int64_t position);
