/* What an op is given: that every operand is there, and that their placements over the tensor group fit one of the op's
 * rules. What does not fit is an error in the layer that recorded the op, and dies with the op's label and every
 * operand's text. Nothing is owned.
 *
 * Placements over the tensor group are rules in a small language, one letter an operand in the order of the op table,
 * inputs > outputs:
 *     r replicate   s shared   p partial   0 1 2 shard(0), shard(1), shard(2)   . any   - the operand must be absent
 * An absent operand matches every letter. The first rule that matches says what the outputs are; outputs that are
 * described already (marked + or = in the op table) must match too. A weight used by rows that are divided, or by a shared
 * value, must itself be shared: each rank then makes a part of its gradient, and only the cotangent of a shared tensor
 * is partial. That is why "0r" and "sr" stand in no rule.
 */
#ifndef PHALANX_KERNELS_OPERANDS_H
#define PHALANX_KERNELS_OPERANDS_H

#include "kernels/op.h"

/* Is output `i` of `o` there before the op: accumulated (+), described by the caller (=), or another op's (*)? */
bool operands_described(const op *o, int i);
/* Every operand that is not optional is there, and no operand that the row does not name. */
void operands_present(const op *o);
/* Sets the placements of the outputs by the first rule that matches. */
void operands_place(op *o, const char *rules);
_Noreturn void operands_refuse(const op *o, const char *file, int line, const char *condition, const char *why);

#define OPERANDS_CHECK(condition, why)                                                                                 \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            operands_refuse(o, __FILE__, __LINE__, #condition, why);                                                   \
    } while (0)

#endif
