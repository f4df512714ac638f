/* phalanx bench --profile: a device profile of this machine (engine/compile/time/profile.h). */
#pragma once

#include "engine/config/config.h"
#include "parallel/comm/comm.h"

/* Times every op of small models' training steps, in fp32 and bf16, attention at a few lengths, and messages of several
 * sizes between the ranks, into the file. Points that it has of ranks with other numbers of threads, or of other
 * numbers of ranks, stay: measured alone and under mpirun, a host's profile knows both. More ranks than cores time
 * messages only. Collective; rank 0 writes. */
status bench_profile(const char *path, config_device where, comm *world);
