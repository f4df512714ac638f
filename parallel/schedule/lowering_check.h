/* Do the lowered lists of all stages, replayed against one another, come to an end with every message where it belongs?
 *
 * The replay is the strictest reading of communication: each rank's is one serial queue in launch order, a message
 * passes only when its send heads the sender's queue while its receive heads the receiver's (rendezvous), a meeting
 * when it heads the queues of all stages, and every action has collectives of its own in the same queue, among ranks
 * whose lists are the same: it ends only when all launched before it has passed. Anything that passes here also passes
 * where ranks buffer or overlap more, as NCCL does: there a communicator is such a queue, kernels of several
 * communicators are started (not ended) in launch order, or in a graph on older drivers ended in it. It knows nothing
 * of how the lists were made.
 */
#pragma once

#include "parallel/schedule/lowering.h"

/* STATUS_OK if
 * - each stage computes exactly the schedule's actions, in its order;
 * - launches are numbered in the order of the list, each is waited for exactly once, later, and a send is launched
 *   after the action that makes it and every receive is waited for before the action that takes it, a meeting likewise
 *   on each stage;
 * - the message that meets a receive on its channel, in order, is the one the receive is for;
 * - every action that needs a message of another stage has received it, once, and no message is left;
 * - all stages reach the end of their lists. */
status lowering_check(const lowering *l, const schedule *s);
