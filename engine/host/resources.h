/* What a host has left while a run is on it: cores, memory, disks, network, GPUs, every few seconds, for
 * resources.jsonl and TensorBoard. Rates are means over the time between two lines.
 *
 * One rank of each host keeps a `resources`, which writes into a folder of that host's own: nothing is sent between
 * ranks. Figures are the kernel's (/proc, /sys) and the NVIDIA driver's (NVML, where it is installed); what a host does
 * not tell is left out. The host's figures include other processes.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/scope.h"
#include "memory/status.h"

typedef struct resources resources;

typedef struct resources_options {
    const char *folder; /* made if it is not there: resources.jsonl and, if asked for, TensorBoard's events */
    const char *root;   /* where proc and sys are: "" */
    double every;       /* seconds between lines */
    bool tensorboard;
    int64_t first_step;                             /* of this session, for TensorBoard */
    void (*tell)(void *context, const char *words); /* a GPU's critical error, from a thread of its own; NULL: nobody */
    void *context;
} resources_options;

status resources_open(resources **out, const resources_options *options);
/* Writes a line if it is time for one, or if `now`. Called between steps; NULL is accepted. */
status resources_look(resources *r, int64_t step, bool now);
void resources_close(resources *r);
AUTO_CLOSES(resources, resources_close)

/* Counters of a host as the kernel keeps them: read at two moments, they give the rates in between.
 * -1: the host does not say. */
typedef struct resources_host {
    double time;                            /* seconds since 1970 */
    int64_t cpu_busy, cpu_all;              /* ticks of all cores since the host began */
    int64_t memory_used, memory_all;        /* bytes; what can be had by dropping caches is not used */
    int64_t disk_read, disk_written;        /* bytes of all disks, likewise */
    int64_t network_received, network_sent; /* of all ports but the loopback; InfiniBand's included */
} resources_host;

/* `root` is put before /proc and /sys. */
void resources_host_read(resources_host *out, const char *root);
