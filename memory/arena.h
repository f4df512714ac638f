/* The one allocation of host memory that holds all tensors of a run; of a GPU's run, what is mirrored and offloaded.
 *
 * An arena is zeroed, begins at a multiple of 2 MiB and asks for huge pages. Its pages become resident when they are
 * first touched, by the thread (and on the memory node of the thread) that touches them. The opener closes it.
 */
#pragma once

#include <stdint.h>

#include "memory/scope.h"
#include "memory/status.h"

typedef struct arena arena;

/* Fails, before anything is touched, if the machine or the control group has not that much memory left. */
status arena_open(arena **out, int64_t bytes);
void arena_close(arena *a); /* NULL is nothing to close */
AUTO_CLOSES(arena, arena_close)
/* Has the kernel hand over every page now, to `threads` threads that take equal shares: its zeroing would else fall
 * into first use, on one. */
void arena_touch(const arena *a, int threads);

void *arena_base(const arena *a);
int64_t arena_bytes(const arena *a); /* as asked for */

/* Bytes that this process may still take: the smallest of what the kernel calls available and what its control groups
 * leave; INT64_MAX if neither is known. */
int64_t arena_available(void);
