/* What the host fills before a program: ids, positions, tables, scalars. */
#pragma once

#include <stdint.h>

#include "engine/config/config.h"
#include "engine/data/samples.h"
#include "engine/run/deal.h"
#include "engine/run/executor.h"

/* cos and sin of every position, once per run (2104.09864; Llama 3's scaling of low frequencies). */
void batch_rope_table(const compiled *c, executor *e);

/* What a step is given beside its configuration. */
typedef struct batch_step {
    int64_t step, updates; /* before this one; updates: steps that were not skipped */
    int64_t moments;       /* updates of the optimizer's moments, with this one */
    int64_t first_sample;
    double rate, loss_scale, loss_tokens, batch_tokens;
} batch_step;

/* The scalars of a step, and those of the loss of the block behind the last layer, whose labels `second` counts. */
void batch_scalars(const compiled *of, executor *e, const config *c, const batch_step *at, int64_t second);

/* The places of so many micro-batches' tokens, where ids are not filled from samples. */
void batch_places(const compiled *c, executor *e, int microbatches);

/* Of the samples of a step of so many micro-batches a rank, which begin at `first`: the first that this rank sees. Each
 * rank along AXIS_SAMPLES sees a contiguous run of micro-batches x micro_batch. */
int64_t batch_first(const compile_options *o, int64_t first, int microbatches);
/* What is known of a batch when it is filled. */
typedef struct batch_facts {
    int64_t left_out;       /* samples that do not count (samples_leave_out) */
    int64_t second_targets; /* that count */
    /* The most that a context rank attends to over the mean, the mean of this rank's micro-batches: as it is dealt, and
     * as halves would be. 0: nobody divides samples' tokens. */
    double imbalance, imbalance_of_halves;
    /* Of the samples that were read and of where their tokens were dealt: the same on all ranks that read the same
     * samples. 0: nobody divides them. */
    uint32_t deal;
} batch_facts;

/* All micro-batches of this rank for the step whose samples begin at `first`. */
status batch_fill(batch_facts *out, const compiled *c, executor *e, const samples *s, int64_t first, int microbatches);
/* The same into the block beside, while the device plays. */
status batch_read_ahead(batch_facts *out, const compiled *c, executor *e, const samples *s, int64_t first,
                        int microbatches);
/* What batch_fill would say of that step, without a place to fill: samples are read and dealt, and forgotten. Only for
 * layouts whose ranks divide samples' tokens. */
status batch_measure(batch_facts *out, const compile_options *o, const samples *s, int64_t first, int microbatches);
/* Of the keys that a context rank is sent, the share that no query of its sees, the mean over these ranks; each sample
 * is one document. Only for such layouts. */
double batch_unseen(const compile_options *o);
/* One micro-batch of evaluation: samples from first + index along AXIS_SAMPLES x micro_batch on; those from `end` on
 * count nothing. */
status batch_fill_evaluation(batch_facts *out, const compiled *c, executor *e, const samples *s, int64_t first,
                             int64_t end);
