/* Is this a schedule that computes the right gradients and comes to an end?
 *
 * The check knows nothing of how the lists were made: it counts every action of every (stage, chunk, micro-batch), then
 * replays all stages against one another. A failure names stage, position and action.
 */
#pragma once

#include "parallel/schedule/schedule.h"

/* STATUS_OK if
 * - every action is within range and there exactly once: one forward, and either one backward or one backward-input and
 *   one backward-weight (duplicates are refused, not merged);
 * - every stage reaches the end of its list: a forward waits for the forward of the previous global chunk, a backward
 *   for its own forward and the next global chunk's backward, a backward-weight for its own backward-input, and shared
 *   chunks for what all stages contribute (exchange.h);
 * - forwards, backwards and weight gradients of one chunk come in ascending order of micro-batch. */
status schedule_check(const schedule *s);
