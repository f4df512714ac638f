/* Exchanges among the ranks that share a parameter: gathers of its weight, sums of its gradient, whole or compressed.
 * Every such op is described here, for each micro-batch (recorder.c) as for a step (engine/compile/step/update.c);
 * those record or append it. `groups` are this rank's, by axis. These functions own no memory.
 */
#pragma once

#include "kernels/table/op.h"
#include "kernels/record/storage.h"

/* Gathers the rows that the replicas own, `own` being this rank's, to the whole weight. */
op replicas_gather(const axis_group *groups, const storage *s, tensor *own);

/* Returns the next axis along which to sum gradient `d` of a parameter, once `after` is done (AXIS_COUNT: none is
 * done); AXIS_COUNT: all are done. Copies agree first, so that tensors divided afterwards are the same on all of
 * them. */
axis replicas_next_sum(const parameter *p, const tensor *d, axis after);
/* Sums gradient `d` along one axis: all its rows on every rank; along the replicas' axis, if they divide the rows, this
 * rank's own rows; along an axis of copies of some rows, these rows alone. */
op replicas_sum(const axis_group *groups, const storage *s, axis a, tensor *d);

/* Gathers, rank after rank, each rank's notes of its own tokens along the axis, equally many rows each. */
op replicas_gather_notes(const axis_group *groups, axis a, tensor *own);

/* Sends compressed gradients: each replica's message [parts, bytes] to the ranks that make the sum, of storage.sum_rows
 * on this rank... */
op replicas_exchange(const axis_group *groups, const storage *s, tensor *message);
/* ... and sends the sums, in messages from the ranks that made them, to all. */
op replicas_gather_sums(const axis_group *groups, const storage *s, tensor *message);
