/* QK-clip (2507.20534): after Muon's update, rows of weights that make queries and keys are scaled where a head's
 * largest score in the step exceeded optimizer.qk_clip. Scores are noted by attention in values.peaks; here they meet
 * those of the ranks that see other tokens, and become factors of rows, which the update multiplies by.
 *
 * Of a head with gamma = threshold / largest score: where each head of q has a head of k of its own, both sides take
 * the root of gamma; of latent attention (2405.04434) so do the elements that do not rotate, while the rotating ones of
 * q take all of gamma, since all heads share those of k. For the same reason heads of q that share a head of k take all
 * of gamma, and the key stays as it is. Nothing changes where a step is skipped.
 */
#pragma once

#include "engine/compile/model/compiled.h"

/* Appends what brings together the scores of all ranks, and writes the largest to values.peak. Returns those of this
 * rank's heads, fp32[ranks layers, heads], or NULL where nothing clips. Every rank must append it. */
tensor *qk_clip_gather(compiled_program *out, const compiled *c);
/* Appends what makes the factors fp32[rows] of the weight's rows from them; NULL: it makes neither queries nor keys.
 * s: where the rank has all rows, as Muon's updates have. */
tensor *qk_clip_factors(compiled_program *out, const compiled *c, const storage *s, tensor *peaks);
