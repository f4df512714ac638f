/* The hosts of a job: a file in Open MPI's format ("node7 slots=8", a line each; names, aliases or addresses, as ssh
 * takes them), and the hosts that are excluded. */
#pragma once

#include <stdbool.h>

#include "memory/status.h"

typedef struct hosts_entry {
    char *name;
    int slots;
    int named; /* number of incidents that named it */
    bool out;
} hosts_entry;

typedef struct hosts {
    int count;
    hosts_entry *entry;
} hosts;

status hosts_read(hosts *out, const char *path);
void hosts_free(hosts *h);
/* Sums the slots of all hosts that are not excluded. */
int hosts_slots(const hosts *h);
/* Returns the entry of a machine that calls itself `name`, with or without its domain, or NULL. */
hosts_entry *hosts_find(const hosts *h, const char *name);
/* Returns the entry that leads to one of the addresses of `name`, since the file may name the machine by an address or
 * an alias. Asks the system's resolver, which may take seconds. */
hosts_entry *hosts_find_address(const hosts *h, const char *name);
/* Writes as many hosts as `ranks` need, in order; the others are spares. */
status hosts_write(const hosts *h, const char *path, int ranks);
