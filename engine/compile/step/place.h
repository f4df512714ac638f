/* Waits, scratch, outputs in place, lifetimes, and addresses of transient tensors. */
#pragma once

#include "engine/compile/model/compiled.h"

/* Waits. `how` the ops were put in order: as lowered, updated
 * weights are waited for before all else. */
void place_waits(compiled_program *out, compile_order how);
void place_transients(compiled_program *out, const compiled *c, bool bound_only);
