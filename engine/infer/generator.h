/* A model that continues texts: the one-token decoding program with its key/value cache.
 *
 * A generator owns its compiled program, arena and weights; the tokenizer and the place the weights come from are the
 * caller's. Several samples advance together, one token each a call; going back to position 0 begins other texts.
 */
#pragma once

#include "engine/infer/inference.h"

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
