/* phalanx bench --self-check: what only this machine's device and libraries can judge, a line each with its verdict. */
#ifndef PHALANX_TOOLS_SELF_CHECK_H
#define PHALANX_TOOLS_SELF_CHECK_H

#include "kernels/device.h"

enum { SELF_CHECK_ARENA = 64 << 20 }; /* bytes */

/* Lines so far, by verdict. */
typedef struct self_check_tally {
    int of[DEVICE_NOT_ASKED + 1];
} self_check_tally;

/* Prints a line and counts it: a device_say, whose context is a tally. */
void self_check_say(void *tally, device_verdict v, const char *name, const char *words);

/* Products and attention by every candidate of the device's libraries and by our own kernels, against float64: the values, a second
 * run's bits, and those of a captured run where the device can capture. `varies`: the order of sums may vary (no bits are compared). */
void self_check_ops(self_check_tally *out, const device_interface *on, device *d, const op_backend *backend,
                    int threads, bool varies);

/* All of it. Fails where something is wrong. */
status self_check(const device_interface *on, int threads);

#endif
