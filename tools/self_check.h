/* phalanx bench --self-check: what only this machine's device and libraries can judge, a line each with its verdict. */
#ifndef PHALANX_TOOLS_SELF_CHECK_H
#define PHALANX_TOOLS_SELF_CHECK_H

#include "kernels/device.h"

/* Fails where something is wrong. */
status self_check(const device_interface *on, int threads);

#endif
