/* Records a host's resources during a run: cores, memory, disks, network, GPUs, every few seconds, for resources.jsonl
 * and TensorBoard. Rates are means over the time between two lines.
 *
 * One rank of each host keeps a `resources`, which writes into the host's own folder: ranks exchange no messages.
 * Figures come from the kernel (/proc, /sys) and the NVIDIA driver (NVML, if installed); unavailable ones are left out.
 * The host's figures include other processes.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/scope.h"
#include "memory/status.h"

typedef struct lock lock; /* engine/system/lock.h */
typedef struct resources resources;

typedef struct resources_options {
    const char *folder; /* made if missing: resources.jsonl and, on request, TensorBoard's events */
    const char *root;   /* prefix of /proc and /sys: "" */
    double every;       /* seconds between lines */
    lock *owner;        /* lock of the run's folder; NULL: none */
    bool tensorboard;
    int64_t first_step;                             /* first step of this session, for TensorBoard */
    void (*tell)(void *context, const char *words); /* a GPU's critical error, from its own thread; NULL: none */
    void *context;
} resources_options;

status resources_open(resources **out, const resources_options *options);
/* Writes a line if one is due, or if `now`. Called between steps; accepts NULL. */
status resources_look(resources *r, int64_t step, bool now);
void resources_close(resources *r);
AUTO_CLOSES(resources, resources_close)

/* Kernel counters of a host: two readings give the rates in between. -1: unavailable. */
typedef struct resources_host {
    double time;                            /* seconds since 1970 */
    int64_t cpu_busy, cpu_all;              /* ticks of all cores since the host began */
    int64_t memory_used, memory_all;        /* bytes; droppable caches are not used */
    int64_t disk_read, disk_written;        /* bytes of all disks since the host began */
    int64_t network_received, network_sent; /* bytes of all ports but the loopback, InfiniBand included */
} resources_host;

/* `root` prefixes /proc and /sys. */
void resources_host_read(resources_host *out, const char *root);
