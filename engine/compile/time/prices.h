/* Prices of parts of a step by themselves, and the choice of the cheaper of two transfers. */
#pragma once

#include "engine/compile/model/compiled.h"
#include "engine/compile/time/profile.h"
#include "parallel/schedule/simulate.h"

/* ---- a program's actions and the optimizer's update; how long a step takes follows from timing.h ---- */

/* Computes the mean cost of each chunk's actions of a compiled training program, [unroll_bodies()], in seconds.
 * Exchanges within a layer are waited for; weights and gradients travel while the action computes. */
void plan_price_chunks(simulate_cost *costs, const profile *h, const compiled *c);
/* The longest of its messages to another stage. */
double plan_price_hop(const profile *h, const compiled *c);
/* Costs of the optimizer's update itself on a compiled rank in a step, once the norm of the gradients is known. */
typedef struct plan_update {
    double flops, seconds;
    int64_t sent;    /* bytes, along the tensor axis */
    int64_t working; /* bytes of transient tensors alive at the peak */
} plan_update;
plan_update plan_price_update(const profile *h, const compiled *c);

/* Transfers with two ways to the same values: tokens of experts in slots or gathered whole, latents or the keys and
 * values that are made of them. */

/* Sets o->transfers: as the layout says, or by the built-in prices of `with`; NULL: of o->device, or of the one that
 * the backend names (profile_compiled_for()). Prices choose no slots where rows are dropped. */
void transfer_choose(compile_options *o, const devices_row *with);

/* Latent attention: context ranks gather either latents, from which each makes the keys and values of all tokens, or
 * the keys and values. */

/* Seconds of a layer and micro-batch, forward and backward: transfers, and, of latents, products of other ranks'
 * tokens. 0 where there are no context ranks or no latents. */
double latent_seconds(const compile_options *o, const profile *p, bool gathers);
/* Elements per token that a rank gathers: its latent and rotated part, or the keys and values of its heads. */
double latent_width(const compile_options *o, bool gathers);

/* How tokens come to experts that ranks divide: all tokens of a block to each of its ranks, or each in a slot to the
 * ranks of its experts. */

/* Seconds of a layer's transfers of tokens, of one micro-batch, there and back, forward and backward. */
double dispatch_seconds(const compile_options *o, const profile *p, bool slots);
