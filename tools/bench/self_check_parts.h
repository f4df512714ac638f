/* phalanx bench --self-check: checks that need this machine's device and libraries, one line and verdict each. */
#pragma once

#include "kernels/device.h"
#include "parallel/comm/comm.h"

/* Fails if a check is wrong; `self` is a communicator of this process alone. */
status self_check(const device_interface *on, int threads, comm *self);

/* Checks the ops. */
enum { SELF_CHECK_ARENA = 64 << 20 }; /* bytes */

typedef struct self_check_on {
    const device_interface *on;
    device *d; /* open, with an arena of SELF_CHECK_ARENA */
    const op_backend *backend;
    int threads;
    bool varies; /* sums may come in any order: bits are not compared */
    comm *self;  /* communicator of this process alone */
    device_say *say;
    void *context; /* first argument of say */
} self_check_on;

/* Compares the ops of small models' steps with the CPU's, by every candidate of the device's libraries and by our own
 * kernels: the values, a second run's bits, and a captured run's bits if the device can capture. */
status self_check_ops(const self_check_on *w);
