/* Between the files of the shim: what the race build needs to know of the block that runs. */
#pragma once

#include <cstddef>
#include <cstdint>

enum : size_t { SHIM_SHARED_BYTES = 256 * 1024 };

extern unsigned char shim_shared_memory[SHIM_SHARED_BYTES];
extern uint32_t shim_epoch;          /* barriers and blocks begun so far */
extern uint32_t shim_warp_epoch[32]; /* warp barriers passed by each warp of the block */
extern uint64_t shim_block_serial;

/* banks.cc: a thread reads or writes shared memory from offset `at` on, at this place in the program */
void shim_note_banks(const void *place, size_t at, size_t bytes, int thread);
