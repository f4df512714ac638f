/* Servers of islands as tests see them (outer.topology server), and islands that are made up: they offer changes drawn
 * from a number, so that what a server makes of them can be compared bit by bit. On top of island_jobs.h. */
#pragma once

#include "engine/islands/meet/membership.h"
#include "engine/islands/wire/transport.h"
#include "tests/jobs/launch.h"

#define SERVERS_TOPOLOGY "outer.topology=server outer.min_islands=1 outer.timeout=20"

/* In top/RUN-server; `words`: keys of its own. */
launch *servers_start(const char *top, const char *run, int ranks, const char *environment, const char *words);
/* The same, and until it holds the model: `head` may be of its former process, its record is that of the one that is
 * there. */
launch *servers_start_and_wait(const char *top, const char *run, int ranks, const char *environment, const char *words);
/* One of its ranks is told, and all end. */
void servers_stop(const char *top, const char *run, launch *l);
/* All of its processes are killed. */
void servers_kill(const char *top, const char *run, int ranks, launch *l);
char *servers_folder(const char *top, const char *run);
int64_t servers_summary(const char *top, const char *run, const char *key);
/* How many tensors of the section are the same bits in the latest checkpoints of two servers; 0: some are not. */
int servers_same(const char *top, const char *run, const char *other, const char *section);
/* |a - b| (L2, over all parameters) of the models of two checkpoints; *elements, unless NULL: how many parameters. */
double servers_distance(int64_t *elements, const char *folder, const char *other);

/* An island that is made up. */
typedef struct servers_fake {
    membership *membership;
    transport *transport;
    keys keys;
    int64_t number; /* of the change that it offers: its values are drawn from it */
    float width;    /* of the interval around 0 that they are drawn from */
    bool nonsense;
} servers_fake;

/* After the server has begun, which writes what islands are configured for. */
servers_fake *servers_open_fake(const char *top, const char *run, int slot, const char *folder_of_keys);
void servers_close_fake(servers_fake *f);
/* Offers a change of so many tokens since merge `base`; the answer, or -1 if there is none in time. */
int servers_push(servers_fake *f, int64_t number, int64_t base, int64_t tokens, double seconds);
