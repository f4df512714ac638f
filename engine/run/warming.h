/* Launches every kernel once before a run begins.
 *
 * CUDA loads a kernel at its first launch, and loading may wait for all work of the device. A receive of NCCL that
 * waits for another rank, which waits for this one to launch that kernel, would then deadlock (CUDA C++ Programming
 * Guide, "Lazy Loading", concurrent execution); and the device memory that loading takes is best taken before a step is
 * timed. So each kind and shape of op that computes runs once, without communication, on an arena of zeros that is zero
 * again afterwards.
 */
#pragma once

#include "engine/compile/compile.h"
#include "kernels/device.h"

/* Requires prepared ops, settled choices and an unused arena. Skips devices that cannot clear their memory
 * (device_interface.clear): there kernels are part of the program. */
void warming_play(compiled *c, const device_interface *interface, device *on);
