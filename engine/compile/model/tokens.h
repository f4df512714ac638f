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

/* How many tokens' logits exist at a time. Each chunk of tokens reads and writes the whole gradient of the head, in
 * fp32: small chunks cost time, large ones memory.
 */

/* The chunk by price alone, of a rank with these options. */
int64_t loss_chunk_by_price(const compile_options *o);
/* The largest chunk worth a try where memory is left: all tokens of a micro-batch, unless the matrix of their logits
 * has 2^31 elements or more. */
int64_t loss_chunk_largest(const compile_options *o);
/* The next smaller chunk worth a try, or 0. */
int64_t loss_chunk_below(const compile_options *o, int64_t tokens);
/* Seconds that a micro-batch's loss takes, in chunks of `tokens`, on a device of so many FLOPs and bytes a second. */
double loss_chunk_seconds(const compile_options *o, int64_t tokens, double flops, double memory);
/* Bytes of a chunk's logits on each rank. */
int64_t loss_chunk_bytes(const compile_options *o, int64_t tokens);

/* The ladder of a model's training programs (layers/ladder.h): how many rungs its options make, and which of them the
 * next step is played on: a function of what the steps so far needed, the same on all ranks and after a resume. */

/* The ladder of these options; of a model without experts all 0. */
ladder_shape rungs_ladder(const compile_options *o);
/* How many rungs there are: 1 where no ranks divide experts. */
int compile_rungs(const compile_options *o);
/* Rows of a layer and micro-batch that a rank has room for where others are dropped; 0: none is. */
int64_t compile_room(const compile_options *o);

/* Where the ladder stands. */
typedef struct rung_state {
    int64_t at;    /* the rung of the next step */
    int64_t quiet; /* steps in a row that would have had room on a lower one */
    int64_t most;  /* the highest rung that these needed */
} rung_state;

/* The lowest of `rungs` that had room, by what a program has counted in values.over: of rungs above its own that is a
 * guess, for behind a layer without room tokens choose otherwise. */
int rung_needed(const float over[LADDER_RUNGS], int rungs);
/* After a step that needed this rung, whichever it was played on. Up at once; down to what was needed after
 * RUNG_QUIET steps that needed less. */
enum { RUNG_QUIET = 16 };
void rung_after(rung_state *s, int needed);

/* The device that is compiled for, as far as choices hang on it: what a budget recomputes, how many tokens' logits
 * exist at a time. It is options.device, which is the same on all ranks; else what the backend names; else an H100.
 */

/* Its row: never NULL. */
const devices_row *target_device(const compile_options *o);
/* Which of a device's peaks the products of this precision can reach. */
peak_kind target_peak(const compile_options *o);
/* Model FLOPs utilisation: the share of what `ranks` devices of `peak` FLOP/s can do in these seconds that a model
 * needs for so many tokens; NAN: the peak is not known. */
double target_mfu(double flops_per_token, double tokens, double seconds, double peak, int ranks);
/* FLOPs of products in the time that a byte of memory traffic takes. */
double target_balance(const compile_options *o);
