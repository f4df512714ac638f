/* The hosts of a job: a file in Open MPI's format ("node7 slots=8", a line each; names, aliases or addresses, as ssh
 * takes them), and who of them is left out. */
#pragma once

#include <stdbool.h>

#include "memory/status.h"

typedef struct hosts_entry {
    char *name;
    int slots;
    int named; /* how often it was to blame */
    bool out;
} hosts_entry;

typedef struct hosts {
    int count;
    hosts_entry *entry;
} hosts;

status hosts_read(hosts *out, const char *path);
void hosts_free(hosts *h);
/* Of all that are not left out. */
int hosts_slots(const hosts *h);
/* The entry of a machine that calls itself so, with or without its domain; NULL: there is none. */
hosts_entry *hosts_find(const hosts *h, const char *name);
/* The same where the file may name the machine by an address or an alias: an entry that leads to one of its addresses.
 * Asks the system's resolver, which may take seconds. */
hosts_entry *hosts_find_address(const hosts *h, const char *name);
/* As many hosts as `ranks` need, in order: the others are spares. */
status hosts_write(const hosts *h, const char *path, int ranks);
