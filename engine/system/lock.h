/* One folder, one run: a lock file that says who holds it, and that its holder is alive.
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

/* `id`: hexadecimal, no other holder's. Fails, with who it is, if somebody alive holds it; may wait for up to `lease`
 * seconds to find out. */
status lock_take(lock **out, const char *path, const char *id, double lease);
/* The holder with this id has ended, says whoever started it: the next to take the lock from it need not look whether
 * it lives. A lock of anybody else stays as it is. */
void lock_retire(const char *path, const char *id);
/* Looks, and makes the file again if it has been deleted, or if one has come back with its folder whose process, of
 * this machine, began before this one and has ended: false if somebody else holds it by now. Any thread. */
bool lock_confirm(lock *l);
/* What the thread has seen last, without looking. */
bool lock_lost(const lock *l);
/* Ends the thread and removes the file, if it is still ours. NULL is accepted. */
void lock_release(lock *l);

/* What somebody who does not want the lock sees of its holder; zero at first. */
typedef struct lock_sight {
    char id[40], host[256];
    long long pid;
    bool here; /* on this machine: `pid` is a process that may be signalled */
    long long beat;
    double moved; /* clock_seconds() when the counter was seen to move last */
} lock_sight;

/* Looks once more, without waiting: does somebody who may be alive hold it? A holder on another machine may be, until
 * its counter has not moved for the lease. */
bool lock_watch(lock_sight *sight, const char *path, double lease);
