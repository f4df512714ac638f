/* Overlaps transfers with computation: moves launches and products in the list of a step's micro-batches.
 *
 * Every rank of a group must come to the same order, whatever rows or biases are its own. So no size, cost or rank
 * decides, only the list of collectives and matrix products and what each needs, which all ranks of a stage share.
 *
 * 1. A collective is launched as early as its operands allow, but no further than the place of the collective before
 *    it in its queue: one is under way while the one before it is used.
 * 2. Where the first op that needs a collective would otherwise follow it at once, a weight's gradient, which no op
 *    waits for, is moved between the two: the last one that was computed before, not too many of them back.
 * 3. A layer's backward pass has as many collectives to hide so as it has weights' gradients. ORDER_HALVED computes
 *    each in two halves of its rows: the second halves are left for the forward pass of the next micro-batch. Each
 *    element is the same sum as before, but a library may add it up otherwise: not on a backend that promises the same
 *    bits.
 * 4. Many forward passes precede the first backward pass, and have no gradients of weights beside them. Where such a
 *    transfer would still be waited for at once, ORDER_..._PARTS computes its own product in parts: before a scatter by
 *    columns, which travel one after another, after a gather a rank's own rows before the others'. The sums stay the
 *    same.
 *
 * Gathers of weights, which precede the micro-batches, are launched first anyway, and may take until the weight is
 * read. Launches never pass a message between stages or the wait for one: the lists stay as lowering_check proved them.
 * Values do not change, since every op finds the operands that it found before. order_check() checks all of that.
 */
#pragma once

#include "engine/compile/model/compiled.h"
#include "kernels/record/program.h"

/* Ops of `list` in a better order, before there are waits for collectives. */
void order_list(program *list, compile_order how);

/* Puts the micro-batches' part in the order that is asked for. */
void order_micro_batches(compiled_program *out, compile_order how);

/* Divides gradients of weights into two halves, of which the second hides a later transfer. Returns the list as
 * it was, with which order_join() joins halves that still are neighbours. */
program order_halve(compiled_program *out);
void order_join(program *list, const program *whole);

/* Divides the products before and after the transfers `bare` of the forward pass, in the order of their launches: each
 * part travels while the next is computed. */
void order_parts_cut(compiled_program *out, const program *bare);

enum { ORDER_OPERANDS = OP_MAX_IN + OP_MAX_OUT };

/* Checks that a reordered list is a valid permutation, without knowing the moves: STATUS_OK if `after` has the ops of
 * `before`, each once, and
 * - every op finds the same operands: the same op wrote them last, and all readers of a value come before the op that
 *   overwrites it,
 * - each queue has its collectives in the same order, with the same messages between stages before each of them: the
 *   proofs about messages (parallel/schedule/lowering_check.c) stay true. */
status order_check(const program *before, const program *after);
