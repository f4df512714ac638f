/* How large a checkpoint of a run is, whatever its layout: every element is written once. */
#pragma once

#include "engine/compile/model/compiled.h"

/* Bytes of weights, masters and the optimizer's states; without what compressed gradients lack (parallel.compress) and
 * the files' headers, which are some KiB. */
int64_t checkpoint_bytes(const compile_options *o);
