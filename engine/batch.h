/* What the host fills before a program: ids, positions, tables, scalars. */
#ifndef PHALANX_ENGINE_BATCH_H
#define PHALANX_ENGINE_BATCH_H

#include "engine/executor.h"
#include "engine/samples.h"

/* cos and sin of every position, once per run (2104.09864; Llama 3's scaling of low frequencies). */
void batch_rope_table(const compiled *c, executor *e);
/* cos | sin, table[positions, head_size], of one shape; positions from 0 */
void batch_rope_fill(float *table, const model_shape *shape, int64_t positions);

/* All micro-batches of this rank for the global samples [first, first + micro-batches x micro_batch x data ranks); this
 * rank's are a contiguous run of them. *left_out: how many of them do not count (samples_leave_out). */
status batch_fill(int64_t *left_out, const compiled *c, executor *e, const samples *s, int64_t first);
/* The same into the block beside, while the device plays. */
status batch_read_ahead(int64_t *left_out, const compiled *c, executor *e, const samples *s, int64_t first);
/* One micro-batch of evaluation: samples first + data rank x micro_batch ...; those from `end` on count nothing. */
status batch_fill_evaluation(int64_t *left_out, const compiled *c, executor *e, const samples *s, int64_t first,
                             int64_t end);

#endif
