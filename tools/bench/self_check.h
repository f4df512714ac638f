/* phalanx bench --self-check: what only this machine's device and libraries can judge, a line each with its verdict. */
#pragma once

#include "kernels/device.h"
#include "parallel/comm/comm.h"

/* Fails where something is wrong; `self`: this process alone. */
status self_check(const device_interface *on, int threads, comm *self);
