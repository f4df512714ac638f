/* phalanx bench --self-check: what only this machine's device and libraries can judge, a line each with its verdict. */
#pragma once

#include "kernels/device.h"
#include "parallel/comm/comm.h"

/* Fails where something is wrong; `self`: this process alone. */
status self_check(const device_interface *on, int threads, comm *self);

/* The ops of a self-check. */
enum { SELF_CHECK_ARENA = 64 << 20 }; /* bytes */

typedef struct self_check_on {
    const device_interface *on;
    device *d; /* open, with an arena of SELF_CHECK_ARENA */
    const op_backend *backend;
    int threads;
    bool varies; /* the order of sums may: no bits are compared */
    comm *self;  /* of this process alone */
    device_say *say;
    void *context; /* of say */
} self_check_on;

/* The ops of small models' steps by every candidate of the device's libraries and by our own kernels, against the
 * CPU's: the values, a second run's bits, and those of a captured run where the device can capture. */
status self_check_ops(const self_check_on *w);
