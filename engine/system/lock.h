/* One folder, one run: a lock file identifies its holder, and shows that the holder is alive.
 *
 * The file is made by a hard link (or O_EXCL), which network file systems give to one alone, and holds the holder's id,
 * host, process and a counter that a thread of the holder raises. Whether a lock that is found is stale is known at
 * once on the holder's own machine (there is no such process any more), and elsewhere when the counter has not moved
 * for the lease by the reader's monotonic clock: no clock of the day and no file's time decides. A holder that was
 * taken for dead (its machine was suspended) notices before it writes again, and has lost the lock: each writer to
 * the folder calls lock_check first, on every rank. FILE.holders lists all holders, so that a lost lock's next holder
 * is known when it has ended. The caller owns a `lock` until lock_release.
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
/* Returns the lock as another process of the same run sees it, which asks whether the run still holds it. */
lock *lock_join(const char *path, const char *id, double lease);
/* Asked before anything is written to the folder: STATUS_LOST, for good, which names who has held the lock since, once
 * another run has. Costs a look at the file's inode while the last beat is young by a clock that counts a suspension.
 * Makes the file again if it was deleted and no run has held it since, if its folder was moved or deleted and begins
 * anew, or if an older one has come back with its folder, of a process of this machine that began before this one and
 * has ended. NULL, an unlocked folder, is accepted. Any thread. */
status lock_check(lock *l);
/* Return the last results, without a look; false for NULL. Removed: the file was deleted, and no run is known to have
 * held the lock since: it is held again, and its holder should save and end. */
bool lock_lost(const lock *l);
bool lock_removed(const lock *l);
/* True if the holder `id` has held the lock, and another one since. Uses no heap: a signal's handler may call it. */
bool lock_is_anothers(const char *path, const char *id);
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
