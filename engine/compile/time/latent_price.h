/* What context ranks gather of each other where attention is latent: latents, from which each makes the keys and values
 * of all tokens, or those. */
#pragma once

#include "engine/compile/time/profile.h"

/* Seconds of a layer and micro-batch, forward and backward: transfers, and, of latents, products of other ranks'
 * tokens. 0 where there are no context ranks or no latents. */
double latent_seconds(const compile_options *o, const profile *p, bool gathers);
/* Elements of a token that a rank gathers: its latent and what rotates, or the keys and values of this rank's heads. */
double latent_width(const compile_options *o, bool gathers);
/* Are latents gathered? As the layout says, or by profile_compiled_for(). */
bool latent_gathers(const compile_options *o);
