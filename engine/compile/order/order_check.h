/* Which operands of a list may share bytes, and whether one list is an order of another. */
#pragma once

#include "kernels/record/program.h"

enum { ORDER_OPERANDS = OP_MAX_IN + OP_MAX_OUT };

/* Operand k of op i at [i * ORDER_OPERANDS + k], inputs first: a number below *count, the same for two operands exactly
 * where they may share bytes; -1: none. Freed by the caller. Transient tensors lose their ids. */
int *order_objects(const program *list, int *count);

/* Is one list an order of another that may be played in its stead? Counted anew, without knowing what moved or why:
 * STATUS_OK if `after` has the ops of `before`, each once, and
 * - every op finds the same operands: what it reads was last written by the same op, and all who read what it
 *   overwrites have,
 * - each queue has its collectives in the same order, with the same messages between stages before each of them: what
 *   was proven of the messages (parallel/schedule/lowering_check.c) stays true. */
status order_check(const program *before, const program *after);
