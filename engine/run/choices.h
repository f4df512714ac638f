/* The autotuning table: which of several algorithms the device uses for each computation of a run.
 *
 * Algorithms differ in the last bits of their results, and timing does not always choose alike. So the table is part of
 * the run: it is stored as tuning.json in the run's folder and in its checkpoints, and no rank times an entry again.
 * Keys name GPU and library: entries of other devices stay in the table, unused. A zeroed struct is an empty table;
 * choices_free empties it.
 */
#pragma once

#include "kernels/device.h"
#include "parallel/comm/comm.h"

#define CHOICES_FILE "tuning.json"

/* Device memory that a run has measured outside the arena. */
typedef struct choices_reserve {
    char device[64];
    int communicators;
    int64_t bytes;                    /* bytes excluding graphs */
    int64_t graph_nodes, graph_bytes; /* size of its CUDA graphs; 0 nodes: not measured */
} choices_reserve;

typedef struct choices {
    int count;
    device_choice *item;
    int reserves;
    choices_reserve *reserve;
    int used;       /* entries in use by this process's ranks */
    int added;      /* entries added by choices_agree */
    double seconds; /* duration of choices_agree in seconds */
} choices;

void choices_free(choices *c);

/* Replaces the entry of this device and number of communicators; keeps its graph size if `r` has none. */
void choices_note_reserve(choices *c, const choices_reserve *r);

/* Replaces assumed by measured reserves. */
struct reserve;
void choices_take_reserve(struct reserve *out, const choices *c);

/* Adds the entries of the file, if it exists. */
status choices_read(choices *c, const char *path);
status choices_write(const choices *c, const char *path);
/* Returns the file's text; the caller frees it. */
char *choices_text(const choices *c);

/* Collective. The first rank that needs a missing key times it (or guesses); then all ranks have the same table, and
 * every device follows it. */
status choices_agree(choices *c, comm_group *all, const device_interface *interface, device *d, bool timing);
