/* The choices that a device has made by timing: which of several algorithms each computation of a run uses.
 *
 * The algorithms differ in the last bits of their results, and timing does not always choose alike. So the table is a
 * part of the run: it is kept as tuning.json in the run's folder and in its checkpoints, and what is in it is not timed
 * again, by whichever rank wants it. Keys name GPU and library: what was chosen for others stays in the table, unused.
 * A zeroed struct is an empty table; choices_free empties it.
 */
#pragma once

#include "kernels/device.h"
#include "parallel/comm/comm.h"

#define CHOICES_FILE "tuning.json"

/* What a run has measured of a device's memory beside the arena. */
typedef struct choices_reserve {
    char device[64];
    int communicators;
    int64_t bytes;                    /* without graphs */
    int64_t graph_nodes, graph_bytes; /* what its CUDA graphs took; 0 nodes: not measured */
} choices_reserve;

typedef struct choices {
    int count;
    device_choice *item;
    int reserves;
    choices_reserve *reserve;
    int used;       /* of them, by this process's ranks */
    int added;      /* by choices_settle */
    double seconds; /* that it took */
} choices;

void choices_free(choices *c);

/* For this device with so many communicators, instead of what was known before, but for graphs that `r` says nothing
 * of. */
void choices_note_reserve(choices *c, const choices_reserve *r);

/* What a run has measured replaces what is assumed. */
struct reserve;
void choices_take_reserve(struct reserve *out, const choices *c);

/* Add what the file holds, if there is such a file. */
status choices_read(choices *c, const char *path);
status choices_write(const choices *c, const char *path);
/* What the file holds; the caller's to free. */
char *choices_text(const choices *c);

/* Collective. Each key that any rank's device wants and the table lacks is timed (or guessed) by the first rank that
 * wants it; then the tables are equal again, and every device goes by them. */
status choices_settle(choices *c, comm_group *all, const device_interface *interface, device *d, bool timing);
