/* A schedule of layers, and the work of a vocabulary that is divided over all stages put among it.
 *
 * Of each micro-batch every stage has a part of the embedding and of the head (exchange.h). Played event by event with
 * the given costs: what other stages wait for comes first; gradients of the vocabulary's weights come where a stage
 * would be idle. The head answers later than it would on the last stage alone, so a stage that would wait for it goes
 * ahead with the next forwards of its list. How many of them is tried: more only where the schedule gets shorter by it,
 * for they are what dividing the vocabulary costs in activations.
 */
#pragma once

#include "parallel/schedule/simulate.h"

/* `of` passes schedule_check and has two stages at least. `costs`: of all chunks of the result, by global number, those
 * of layers as in `of`; forwards and backwards take time. `hop`: of a message, and of a meeting. `out` passes
 * schedule_check. */
void schedule_share(schedule *out, const schedule *of, const simulate_cost *costs, double hop);
