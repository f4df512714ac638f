/* The race build: kernels compiled with -fsanitize=thread, whose calls land here instead of in that runtime.
 *
 * Each byte of shared memory has a shadow: who wrote it and who read it, in which epoch of the block (barriers passed)
 * and of the warp (warp barriers passed). Two accesses, one of them a write, by different threads are a race unless a
 * block barrier, or for lanes of one warp a warp barrier, lies between them. A read of a byte that this block never
 * wrote is an error as well. Accesses the shim makes for a thread (ldmatrix, cp.async) are noted by the shim.
 */
#include <cuda_shim.h>

#include "shim.h"

namespace
{
struct access {
    int32_t thread = -1;
    uint32_t block_epoch = 0, warp_epoch = 0;
};

struct shadow {
    access writer, readers[2];
    uint64_t written_in = 0; /* the block that wrote it */
};

bool enabled;
shadow *shadows;

/* No race: `now` is the same thread, or a barrier lies between. */
inline bool ordered(const access &before, const access &now)
{
    if (before.thread < 0 || before.thread == now.thread || before.block_epoch != now.block_epoch)
        return true;
    return before.thread / 32 == now.thread / 32 && before.warp_epoch != now.warp_epoch;
}

/* `place`: of the access in the program, or NULL if the shim makes it */
void note(const void *place, const void *address, size_t bytes, int thread, bool write)
{
    size_t at = (size_t)((const unsigned char *)address - shim_shared_memory);
    if (!enabled || thread < 0 || (const unsigned char *)address < shim_shared_memory || at >= SHIM_SHARED_BYTES)
        return;
    if (!shadows)
        shadows = new shadow[SHIM_SHARED_BYTES];
    if (place)
        shim_note_banks(place, at, bytes, thread);
    const access now = {thread, shim_epoch, shim_warp_epoch[thread / 32]};
    const uint64_t serial = shim_block_serial;
    for (size_t i = at; i < at + bytes && i < SHIM_SHARED_BYTES; i++) {
        shadow &s = shadows[i];
        if (!write && s.written_in != serial)
            shim_fail("race: thread %d reads shared memory that no thread has written", thread);
        if (!ordered(s.writer, now))
            shim_fail("race: thread %d %s what thread %d writes, no barrier between", thread,
                      write ? "writes" : "reads", s.writer.thread);
        if (write) {
            for (const access &reader : s.readers)
                if (!ordered(reader, now))
                    shim_fail("race: thread %d writes what thread %d reads, no barrier between", thread, reader.thread);
            s.writer = now;
            s.written_in = serial;
        } else if (!ordered(s.readers[0], now)) {
            s.readers[1] = now; /* two readers are remembered: one of them is another thread than the next writer */
        } else {
            s.readers[0] = now;
        }
    }
}
} // namespace

void shim_note_read(const void *address, size_t bytes, int thread)
{
    note(nullptr, address, bytes, thread, false);
}

void shim_note_write(const void *address, size_t bytes, int thread)
{
    note(nullptr, address, bytes, thread, true);
}

bool shim_watches_accesses()
{
    return enabled;
}

/* Nearly all accesses go elsewhere: they must cost little. */
static inline void hook(const void *place, const void *at, size_t bytes, bool write)
{
    if ((uintptr_t)at - (uintptr_t)shim_shared_memory < SHIM_SHARED_BYTES)
        note(place, at, bytes, shim_self ? shim_self->number : -1, write);
}

#define HOOKS(bytes)                                                                                                   \
    extern "C" void __tsan_read##bytes(void *at)                                                                       \
    {                                                                                                                  \
        hook(__builtin_return_address(0), at, bytes, false);                                                           \
    }                                                                                                                  \
    extern "C" void __tsan_write##bytes(void *at)                                                                      \
    {                                                                                                                  \
        hook(__builtin_return_address(0), at, bytes, true);                                                            \
    }                                                                                                                  \
    extern "C" void __tsan_unaligned_read##bytes(void *at)                                                             \
    {                                                                                                                  \
        hook(__builtin_return_address(0), at, bytes, false);                                                           \
    }                                                                                                                  \
    extern "C" void __tsan_unaligned_write##bytes(void *at)                                                            \
    {                                                                                                                  \
        hook(__builtin_return_address(0), at, bytes, true);                                                            \
    }

HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

extern "C" void __tsan_read_range(void *at, long bytes)
{
    hook(__builtin_return_address(0), at, (size_t)bytes, false);
}

extern "C" void __tsan_write_range(void *at, long bytes)
{
    hook(__builtin_return_address(0), at, (size_t)bytes, true);
}

extern "C" void __tsan_vptr_update(void **, void *)
{
}

extern "C" void __tsan_func_entry(void *)
{
}

extern "C" void __tsan_func_exit()
{
}

extern "C" void __tsan_init()
{
    enabled = true;
}
