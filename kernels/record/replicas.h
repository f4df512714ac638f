/* What the ranks that share a parameter exchange: gathers of its weight, sums of its gradient, whole or compressed.
 *
 * Every such op is described here, for each micro-batch (recorder.c) as for a step (engine/compile/step/update.c);
 * those record or append it. `groups` of this rank, by axis.
 * Nothing is owned.
 */
#pragma once

#include "kernels/table/op.h"
#include "kernels/record/storage.h"

/* The rows that the replicas own, of which `own` are this rank's -> the whole weight. */
op replicas_gather(const axis_group *groups, const storage *s, tensor *own);

/* The axis along which gradient `d` of a parameter is to be summed next, once that has been done along `after`
 * (AXIS_COUNT: along none); AXIS_COUNT: along none any more. Copies agree first, so that what is divided afterwards is
 * the same on all of them. */
axis replicas_next_sum(const parameter *p, const tensor *d, axis after);
/* The sum of gradient `d` along one axis: of all its rows on every rank; along the replicas' axis, if they divide the
 * rows, of those that this rank owns; along an axis of copies of some rows, of these alone. */
op replicas_sum(const axis_group *groups, const storage *s, axis a, tensor *d);

/* What each rank along the axis has noted of its own tokens, as many rows each -> all of them, rank after rank. */
op replicas_gather_notes(const axis_group *groups, axis a, tensor *own);

/* In compressed form: each replica's message [parts, bytes] to those that make the sum, of storage.sum_rows on this
 * rank... */
op replicas_exchange(const axis_group *groups, const storage *s, tensor *message);
/* ... and the sums, in messages of those that made them, to all. */
op replicas_gather_sums(const axis_group *groups, const storage *s, tensor *message);
