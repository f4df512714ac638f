/* How many tokens of a micro-batch are where: counted here, and nowhere else, from the options and the rank's place. An
 * axis that divides samples' tokens (kernels/table/axes.def) is a change of this file. */
#pragma once

#include "engine/compile/model/compiled.h"

typedef struct token_counts {
    int64_t micro_batch; /* of its samples, over all ranks that divide their tokens; decoding: one of each sample */
    int64_t rank;        /* of those, this rank's: what its blocks compute on, between gather and scatter */
    int64_t between;     /* of this rank's, those between blocks: fewer with sequence parallelism */
    int64_t run;         /* of this rank's, so many at a time are neighbours in one sample; 0: whole samples */
    int64_t loss;        /* of this rank's, those whose logits it makes */
} token_counts;

token_counts tokens_count(const compile_options *o);
/* Tokens of a run of a sample that so many ranks divide by halves (kernels/token.h). */
int64_t tokens_half_run(int64_t sequence, int ranks);
/* Ranks of a layout among which the tokens of a micro-batch are divided between blocks. */
int tokens_ranks_between(const config_layout *l);
