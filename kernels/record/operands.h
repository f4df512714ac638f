/* Checks an op's operands: that every one is there, and that their placements fit one of the op's rules, along every
 * axis. A misfit is an error of the code that made the op: the process dies with the op's label and every operand's
 * text. The functions own no memory.
 *
 * Placements are rules in a small language, one letter an operand in the order of the op table, inputs > outputs:
 *     r replicate   s shared   p partial   0 1 2 shard(0), shard(1), shard(2)
 *     b shard(0) along an axis that divides samples   t the same, or their tokens   . any   - must be absent
 * An absent operand matches every letter. The rules are the same along every axis that divides weights, tokens or
 * samples. The first rule that matches places the outputs; outputs that are described already (marked + or = in the op
 * table) must match too. A weight used by rows that are divided, or by a shared value, must itself be shared: each rank
 * then makes a part of its gradient, and only the cotangent of a shared tensor is partial. That is why "0r" and "sr"
 * are in no rule. Along the other axes (stages, tied ends, copies of key/value heads) only sums relate the ranks'
 * values.
 */
#pragma once

#include "kernels/table/op.h"

/* True if output `i` of `o` exists before the op: accumulated (+), described by the caller (=), or another op's (*). */
bool operands_described(const op *o, int i);
/* Every operand that is not optional must be there, and no operand that the row does not name; then the row's shape
 * rule describes the outputs. */
void operands_infer(op *o);
/* Sets the placements of the outputs, along each axis by the first rule that matches. */
void operands_place(op *o, const char *rules);
/* Places communication: by the rules along the op's axis, elsewhere as the input. The input of a reduction must be a
 * partial sum. */
void operands_place_along(op *o, const char *rules);
/* Dies if `t`, which another body reads, is not placed as that expects. */
void operands_placed_as(const tensor *t, const placements *expected);
/* Dies if `t`, which is read outside programs, is still a partial sum. */
void operands_whole(const tensor *t);
/* "[4096, 768] bf16 tensor:shard(1) data:partial" into out; returns out */
const char *operands_text(char *out, int bytes, const tensor *t);
_Noreturn void operands_refuse(const op *o, const char *file, int line, const char *condition, const char *why);

#define OPERANDS_CHECK(condition, why)                                                                                 \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            operands_refuse(o, __FILE__, __LINE__, #condition, why);                                                   \
    } while (0)
