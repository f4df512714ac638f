/* Which ops of a training step may be played a second time to see whether their bits repeat (engine/guard/verify.h),
 * and what that takes.
 *
 * An op that reads bytes that it writes (it adds to a sum, works in place, or has a state) can only be repeated when
 * these are put back as they were. There is room for the largest such op behind everything else in the arena, where the
 * run verifies.
 */
#pragma once

#include "engine/compile/model/compiled.h"

/* The most sums that are kept of a parameter: weight, own rows, master, states, feedback and that of the sum. */
enum { REPEAT_RESTS = STORAGE_STATES + 5 };

/* Ops of forward and backward passes, communication and waits left out. */
bool repeat_may(const op *o);
/* Does it read bytes that it writes? Of a program that is placed. */
bool repeat_changes(const op *o);
/* The most bytes that an op of `p` changes. */
int64_t repeat_bytes(const compiled_program *p);
/* The contiguous runs of bytes that `t` consists of: between the rows of a view lies what others write. */
device_rows repeat_rows(const tensor *t);
