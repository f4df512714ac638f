/* The one allocation of host memory that holds all tensors of a run; of a GPU's run, the mirrored and offloaded ones.
 *
 * An arena is zeroed, begins at a multiple of 2 MiB and asks for huge pages. Its pages become resident when they are
 * first touched, by the thread (and on the memory node of the thread) that touches them. The opener closes it.
 */
#pragma once

#include <stdint.h>

#include "memory/scope.h"
#include "memory/status.h"

typedef struct arena arena;

/* Fails, before it touches any page, if the machine or the control group has not that much memory left. */
status arena_open(arena **out, int64_t bytes);
void arena_close(arena *a); /* accepts NULL */
AUTO_CLOSES(arena, arena_close)
/* Touches every page now, by `threads` threads with equal shares; else the kernel would zero them at first use, on
 * one. */
void arena_touch(const arena *a, int threads);

void *arena_base(const arena *a);
int64_t arena_bytes(const arena *a); /* the requested size */

/* Returns the bytes that this process may still take: the smallest of the kernel's available bytes and the rest of each
 * of its control groups; INT64_MAX if neither is known. */
int64_t arena_available(void);
