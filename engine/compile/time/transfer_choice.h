/* What ranks send each other where there are two ways to the same values: tokens of experts in slots or gathered whole
 * (dispatch_price.h), latents or the keys and values that are made of them (latent_price.h). */
#pragma once

#include "engine/compile/model/compiled.h"

/* Sets o->transfers: as the layout says, or by the built-in prices of `with`; NULL: of o->device, or of the one that
 * the backend names (profile_compiled_for()). */
void transfer_choose(compile_options *o, const devices_row *with);
