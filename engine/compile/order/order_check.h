/* Is one list an order of another that may be played in its stead? Counted anew, without knowing what moved or why. */
#pragma once

#include "kernels/record/program.h"

/* STATUS_OK if `after` has the ops of `before`, each once, and
 * - every op finds the same operands: what it reads was last written by the same op, and all who read what it
 *   overwrites have,
 * - each queue has its collectives in the same order, with the same messages between stages before each of them: what
 *   was proven of the messages (parallel/schedule/lowering_check.h) stays true. */
status order_check(const program *before, const program *after);
