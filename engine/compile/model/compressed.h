/* Gradients that are reduced in compressed form (parallel.compress): the ops between a rank's gradient and the sum.
 *
 * Each rank writes its gradient and what earlier messages lacked, in parts; every part goes to the rank that owns it,
 * which sums what the messages say, in rank order. Without ZeRO the sum is written, too, with a feedback of its own,
 * and gathered: compressed both ways (DoubleSqueeze, 1905.05957). So what a rank sends shrinks by the same ratio
 * however many ranks there are. A bucket's messages travel while later ops compute: each step of a bucket is appended
 * when the next bucket comes. Owned by the caller.
 */
#pragma once

#include "engine/compile/model/compiled.h"

typedef struct compressed compressed;

/* `gradient`: by number, each parameter's value so far; the sums take their places there. */
compressed *compressed_make(compiled_program *out, const compiled *c, tensor **gradient);
void compressed_free(compressed *q);
/* Begins the sums of so many gradients. */
void compressed_reduce(compressed *q, const parameter *const *of, int count);
/* All sums are complete after this. */
void compressed_finish(compressed *q);
/* What was not sent is kept for the next step, unless this one is skipped. */
void compressed_keep(compressed *q, tensor *control);
