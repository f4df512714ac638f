/* Which operands of a list may share bytes. */
#pragma once

#include "kernels/record/program.h"

enum { ORDER_OPERANDS = OP_MAX_IN + OP_MAX_OUT };

/* Operand k of op i at [i * ORDER_OPERANDS + k], inputs first: a number below *count, the same for two operands exactly
 * where they may share bytes; -1: none. Freed by the caller. Transient tensors lose their ids. */
int *order_objects(const program *list, int *count);
