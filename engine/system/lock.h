/* One folder, one run: a lock file identifies its holder, and shows that the holder is alive.
 *
 * The file is made by a hard link (or O_EXCL), which network file systems give to one alone, and holds the holder's id,
 * host, process and a counter that a thread of the holder raises. Whether a lock that is found is stale is known at
 * once on the holder's own machine (there is no such process any more), and elsewhere when the counter has not moved
 * for the lease by the reader's monotonic clock: no clock of the day and no file's time decides. A holder that was
 * taken for dead notices and loses the lock. The caller owns a `lock` until lock_release.
 */
#pragma once

#include <stdbool.h>

#include "memory/status.h"

typedef struct lock lock;

/* Takes the lock; `id`: hexadecimal, unique to this holder. Fails, and names the holder, if a live one has it; may wait
 * for up to `lease` seconds to find out. */
status lock_take(lock **out, const char *path, const char *id, double lease);
/* The launcher knows that the holder with this id has exited: the next to take the lock need not check. Another
 * holder's lock stays as it is. */
void lock_retire(const char *path, const char *id);
/* Checks the file, and makes it again if it was deleted, or if an older one has come back with its folder, of a process
 * of this machine that began before this one and has ended: false if another run holds it now. Any thread. */
bool lock_confirm(lock *l);
/* Returns the keeper thread's last result, without looking. */
bool lock_lost(const lock *l);
/* Ends the thread and removes the file, if it is still ours. Accepts NULL. */
void lock_release(lock *l);

/* An observer's view of the holder; zero at first. */
typedef struct lock_sight {
    char id[40], host[256];
    long long pid;
    bool here; /* the holder is on this machine: `pid` may be signalled */
    long long beat;
    double moved; /* clock_seconds() when the counter was last seen to move */
} lock_sight;

/* Looks once more, without waiting; true if the holder may be alive. One on another machine may be, until its counter
 * has not moved for the lease. */
bool lock_watch(lock_sight *sight, const char *path, double lease);
