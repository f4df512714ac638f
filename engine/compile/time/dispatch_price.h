/* How tokens come to experts that ranks divide: all tokens of a block to each of its ranks, or each in a slot to the
 * ranks of its experts. */
#pragma once

#include "engine/compile/time/profile.h"

/* Seconds of a layer's transfers of tokens, of one micro-batch, there and back, forward and backward. */
double dispatch_seconds(const compile_options *o, const profile *p, bool slots);
/* Do tokens travel in slots? As the layout says; or by profile_compiled_for(); where rows are dropped they do not. */
bool dispatch_by_slots(const compile_options *o);
