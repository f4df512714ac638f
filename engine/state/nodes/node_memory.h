/* The folder in memory of a node, in which every user may write: is there room, and are others kept from what is
 * ours? */
#pragma once

#include <stdint.h>

#include "memory/status.h"

#define NODE_MEMORY "/dev/shm"

/* Fails, with what to do, unless two generations of `shares` shares of `bytes` bytes each fit. */
status node_memory_check_room(int64_t bytes, int shares);
/* Fails unless only the owner of a file may remove or rename it. */
status node_memory_check_sticky(void);
