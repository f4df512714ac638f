/* Token counts of a micro-batch at each point of a step, computed only here from the options and the rank's place. A
 * new axis that divides samples' tokens (kernels/table/axes.def) changes this file. */
#pragma once

#include "engine/compile/model/compiled.h"

typedef struct token_counts {
    int64_t micro_batch; /* tokens of its samples, over all ranks that divide them; decoding: one per sample */
    int64_t rank;        /* this rank's share: the tokens its blocks compute on, between gather and scatter */
    int64_t between;     /* this rank's tokens between blocks: fewer with sequence parallelism */
    int64_t run;         /* length of a contiguous run of this rank's tokens in one sample; 0: whole samples */
    int64_t loss;        /* tokens for which this rank computes logits */
} token_counts;

token_counts tokens_count(const compile_options *o);
/* Tokens of a contiguous run of a sample in `ranks` zig-zag shards (kernels/token.h). */
int64_t tokens_zigzag_run(int64_t sequence, int ranks);
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
/* Seconds of a micro-batch's loss in chunks of `tokens`, on a device with `flops` FLOP/s and `memory` bytes/s. */
double loss_chunk_seconds(const compile_options *o, int64_t tokens, double flops, double memory);
/* Bytes of a chunk's logits on each rank. */
int64_t loss_chunk_bytes(const compile_options *o, int64_t tokens);

/* Capacity buckets of a model's training programs (layers/capacity.h): their number, and the
 * bucket of the next step, a function of earlier steps' needs, the same on all ranks and after a resume. */

/* The buckets of these options; all 0 for a model without experts. */
capacity_shape buckets_capacity(const compile_options *o);
/* Number of buckets: 1 unless ranks divide experts. */
int compile_buckets(const compile_options *o);
/* Rows of a layer and micro-batch that a rank has room for where others are dropped; 0: no rows are dropped. */
int64_t compile_room(const compile_options *o);

/* State of the bucket choice. */
typedef struct bucket_state {
    int64_t at;    /* bucket of the next step */
    int64_t quiet; /* consecutive steps that would have fit a lower bucket */
    int64_t most;  /* highest bucket that these steps needed */
} bucket_state;

/* Returns the lowest of `buckets` buckets that fits, by the program's counts in values.over. Above the program's own
 * bucket this is a guess: past a layer that overflows, tokens choose other experts. */
int bucket_needed(const float over[CAPACITY_BUCKETS], int buckets);
/* Updates the bucket for a step that needed `needed`, whichever it ran on: up at once; down to the need of the last
 * steps once BUCKET_QUIET in a row needed less. */
enum { BUCKET_QUIET = 16 };
void bucket_after(bucket_state *s, int needed);

/* The target device of choices: recomputation within a budget, tokens per loss chunk. It is options.device, the same on
 * all ranks; else the backend's; else an H100. */

/* Its row: never NULL. */
const devices_row *target_device(const compile_options *o);
/* Which of a device's peaks the products of this precision can reach. */
peak_kind target_peak(const compile_options *o);
/* Model FLOPs utilisation: FLOPs that `tokens` tokens need, over the FLOPs that `ranks` devices of `peak` FLOP/s can do
 * in `seconds`; NAN: the peak is not known. */
double target_mfu(double flops_per_token, double tokens, double seconds, double peak, int ranks);
/* FLOPs of products in the time that a byte of memory traffic takes. */
double target_balance(const compile_options *o);
