/* The models of tests/golden/models and what float64 PyTorch made of them (make.py), and comparing a run with that.
 *
 * The comparisons return the worst error in units of the limit, so that 1 is the edge and a mutant can be shown to
 * exceed it; not a number counts as infinitely wrong.
 */
#pragma once

#include <jansson.h>

#define GOLDEN_MODELS "tests/golden/models"
#define GOLDEN_DATA   GOLDEN_MODELS "/train" /* prefix of .bin and .idx */

extern const char *const golden_models[]; /* their folders' names; ends with NULL */

/* Write the configuration of the expected run to `path`; it says everything but run.folder and debug.gradients. */
void golden_configuration(const char *path, const char *model);

/* Losses of a metrics.jsonl, step by step, against the expected ones: limit 1e-4 relative. Fails the test unless the
 * file has a line for every one of the first `steps` steps. */
double golden_losses(const char *metrics, const char *model, int steps);
/* The same of the losses that balance experts, times their coefficient; 0 where the model has none. */
double golden_router_losses(const char *metrics, const char *model, int steps);
/* The same of the losses of a block behind the last layer, without their coefficient; 0 where the model has none. */
double golden_mtp_losses(const char *metrics, const char *model, int steps);
/* The norm of step 1: limit 1e-5 relative. */
double golden_norm(const char *metrics, const char *model);
/* Each tensor of a gradient dump in L2: limit max(1e-5 of its own norm, 1e-7 of all gradients' norm). Fails the test
 * unless both have the same tensors of the same shapes. */
double golden_gradients(const char *dump, const char *model);
/* What the decoding program of the weights in `folder` makes of the first sample, one token at a time: its logits at
 * the expected positions, limit 1e-5 of the largest expected one. */
double golden_logits(const char *folder, const char *model);
/* The same in bf16: the root mean square of what its logits differ from those that the rounded weights have in float64,
 * as a multiple of what transformers' own bf16 logits do (bf16.py). */
double golden_bf16(const char *model);
