/* How many bytes of a program's transient tensors are alive at each of its ops. */
#pragma once

#include "engine/compile/model/compiled.h"

/* Kept for the backward pass, and all others: out[i] is what is alive while op i plays, each tensor rounded up to
 * COMPILE_ALIGNMENT; room for [ops + 1]. Of a program that is placed. */
void alive_find(int64_t *kept, int64_t *rest, const compiled_program *p);
