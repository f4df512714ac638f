/* The first launch of every kernel, before a run begins.
 *
 * CUDA loads a kernel when it is first launched, and loading may wait for all that the device does. A receive of NCCL
 * that waits for another rank, which waits for this one to launch that kernel, would then wait for ever (CUDA C++
 * Programming Guide, "Lazy Loading", concurrent execution); and what loading takes of the device's memory is best taken
 * before a step is timed. So each kind and shape of op that computes is played once, without communication, on an arena
 * of zeros that is zeros again afterwards.
 */
#pragma once

#include "engine/compile/compile.h"
#include "kernels/device.h"

/* After the ops are prepared and choices are made, before anything is in the arena. Nothing is done on a device that
 * cannot clear its memory (device_interface.clear): there kernels are part of the program. */
void warming_play(compiled *c, const device_interface *interface, device *on);
