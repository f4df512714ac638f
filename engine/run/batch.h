/* Fills the inputs of a program from the host: ids, positions, tables, scalars. */
#pragma once

#include <stdint.h>

#include "engine/config/config.h"
#include "engine/data/samples.h"
#include "engine/run/shard.h"
#include "engine/run/executor.h"

/* Writes cos and sin of every position, once per run (2104.09864; Llama 3's scaling of low frequencies). */
void batch_rope_table(const compiled *c, executor *e);

/* Inputs of a step that its configuration does not have. */
typedef struct batch_step {
    int64_t step, updates; /* completed steps, and the optimizer updates among them (skipped steps make none) */
    int64_t moments;       /* updates of the optimizer's moments, including this one */
    int64_t first_sample;
    double rate, loss_scale, loss_tokens, batch_tokens;
} batch_step;

/* Writes the scalars of a step, also of the MTP loss, which has `second` valid labels. */
void batch_scalars(const compiled *of, executor *e, const config *c, const batch_step *at, int64_t second);

/* Writes the token positions of `microbatches` micro-batches with ids not read from samples. */
void batch_positions(const compiled *c, executor *e, int microbatches);

/* Returns the first sample that this rank reads of a step that begins at `first`: each rank along AXIS_SAMPLES reads a
 * contiguous range of microbatches x micro_batch samples. */
int64_t batch_first(const compile_options *o, int64_t first, int microbatches);
/* Facts of a batch, known once it is filled. */
typedef struct batch_facts {
    int64_t left_out;       /* samples that do not count (samples_leave_out) */
    int64_t second_targets; /* labels of the MTP loss that count */
    /* Attention work of the busiest context rank over the mean, averaged over this rank's micro-batches: as sharded,
     * and as it would be with zig-zag shards. 0: samples' tokens are not sharded. */
    double imbalance, imbalance_of_zigzag;
    /* Checksum of the samples read and of their tokens' assignment: equal on all ranks that read the same samples. 0:
     * tokens are not sharded. */
    uint32_t assignment;
} batch_facts;

/* Fills all micro-batches of this rank for the step that begins at sample `first`; `ahead`: into the second block
 * (executor_ahead) while the device works. */
status batch_fill(batch_facts *out, const compiled *c, executor *e, const samples *s, int64_t first, int microbatches,
                  bool ahead);
/* Returns the facts that batch_fill would, without filling: reads the samples, assigns their tokens and drops them.
 * Requires a layout that shards samples' tokens. */
status batch_measure(batch_facts *out, const compile_options *o, const samples *s, int64_t first, int microbatches);
/* Returns the share of the keys sent to a context rank that none of its queries sees, averaged over these ranks; each
 * sample is one document. Requires such a layout. */
double batch_unseen(const compile_options *o);
/* Fills one micro-batch of evaluation: samples from first + index along AXIS_SAMPLES x micro_batch; labels of samples
 * from `end` on do not count. */
status batch_fill_evaluation(batch_facts *out, const compiled *c, executor *e, const samples *s, int64_t first,
                             int64_t end);
