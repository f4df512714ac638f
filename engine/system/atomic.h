/* Files and folders that are either there whole or not at all, whenever the process or the machine stops.
 *
 * An atomic_file is written to PATH.tmp through a buffer and takes the name PATH only in atomic_commit: flush, fsync,
 * rename, fsync of the folder. The caller owns it until atomic_commit or atomic_abandon, each of which frees it. Every
 * failure is a status with a message that names the path; errno says why. Passing errors are retried first (retry.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "memory/status.h"

typedef struct atomic_file atomic_file;

status atomic_open(atomic_file **out, const char *path);
status atomic_write(atomic_file *f, const void *data, int64_t bytes);
/* Returns the bytes written so far. */
int64_t atomic_position(const atomic_file *f);
/* Flushes and fsyncs under the temporary name: after this, atomic_commit needs no more space. */
status atomic_sync(atomic_file *f);
/* Renames. On failure removes the temporary file; an older PATH is untouched. Frees `f` in either case. */
status atomic_commit(atomic_file *f);
/* Removes the temporary file; NULL is accepted. The message of an earlier failure is kept, and errno. */
void atomic_abandon(atomic_file *f);

/* Writes all bytes at `offset`, or, with -1, at the descriptor's position. Returns how many: fewer, with errno, if
 * writing fails. Uses no heap. */
int64_t atomic_write_all(int descriptor, const void *data, int64_t bytes, int64_t offset);
/* Creates a new file of our own to write to: removes and never writes to an existing one, such as another user's link.
 * Returns a descriptor, or -1 with errno. Uses no heap: a signal's handler may call it. */
int atomic_create(const char *path, mode_t mode);

/* Writes a small file at once. */
status atomic_replace(const char *path, const void *data, int64_t bytes);
/* Writes it readable by its owner alone. */
status atomic_replace_private(const char *path, const void *data, int64_t bytes);
/* Renames within one file system, and fsyncs the folder that now has the name. */
status atomic_rename(const char *from, const char *to);
/* Makes folders as mkdir -p; each folder made is fsynced into its parent. */
status atomic_make_folders(const char *path);
/* Makes folders, the last of our own: a link of that name is removed, and not followed. */
status atomic_make_own_folder(const char *path);
/* Removes a file, or a folder and all below it, links not followed; a missing one is no failure. */
status atomic_remove(const char *path);
/* Removes everything in a folder that has a name beginning with `prefix`. */
status atomic_remove_all(const char *folder, const char *prefix);
status atomic_sync_folder(const char *path);
/* Checks for a file, as a hint: an unknown one counts as missing. */
bool atomic_exists(const char *path);
/* Checks for a file, for decisions: *there is false only if it is certainly missing. Fails if that is unknown. */
status atomic_look(bool *there, const char *path);
