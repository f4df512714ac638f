/* Counters of this host as the kernel keeps them: read at two moments, they give the rates in between. */
#pragma once

#include <stdint.h>

/* -1: the host does not say. */
typedef struct resources_host {
    double time;                            /* seconds since 1970 */
    int64_t cpu_busy, cpu_all;              /* ticks of all cores since the host began */
    int64_t memory_used, memory_all;        /* bytes; what can be had by dropping caches is not used */
    int64_t disk_read, disk_written;        /* bytes of all disks, likewise */
    int64_t network_received, network_sent; /* of all ports but the loopback; InfiniBand's included */
} resources_host;

/* `root` is put before /proc and /sys. */
void resources_host_read(resources_host *out, const char *root);
