/* Files and folders that are either there whole or not at all, whenever the process or the machine stops.
 *
 * An atomic_file is written to PATH.tmp through a buffer and takes the name PATH only in atomic_commit: flush, fsync,
 * rename, fsync of the folder. The caller owns it until atomic_commit or atomic_abandon, each of which frees it.
 * Every failure is a status whose message names the path; errno says why. What may pass is tried again first (retry.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "memory/status.h"

typedef struct atomic_file atomic_file;

status atomic_open(atomic_file **out, const char *path);
status atomic_write(atomic_file *f, const void *data, int64_t bytes);
/* bytes written so far */
int64_t atomic_position(const atomic_file *f);
/* Flush and fsync under the temporary name: after this, atomic_commit needs no more space. */
status atomic_sync(atomic_file *f);
/* On failure the temporary file is removed and an older PATH is untouched. Frees `f` in either case. */
status atomic_commit(atomic_file *f);
/* Remove the temporary file; NULL is accepted. The message of an earlier failure is kept, and errno. */
void atomic_abandon(atomic_file *f);

/* Writes all bytes at `offset`, -1: where the descriptor is; how many: fewer, with errno, where writing fails. Without
 * a heap. */
int64_t atomic_write_all(int descriptor, const void *data, int64_t bytes, int64_t offset);
/* A new file of our own making, to write to: what has the name, such as a link that another user has put there, is
 * removed and never written to. A descriptor, or -1 with errno. Without a heap: a signal's handler may call it. */
int atomic_create(const char *path, mode_t mode);

/* The whole of a small file at once. */
status atomic_replace(const char *path, const void *data, int64_t bytes);
/* The same, readable by its owner alone. */
status atomic_replace_private(const char *path, const void *data, int64_t bytes);
/* Rename within one file system, and fsync the folder that now has the name. */
status atomic_rename(const char *from, const char *to);
/* mkdir -p; each folder made is fsynced into its parent. */
status atomic_make_folders(const char *path);
/* The same, where the last folder is of our own making: a link of that name is removed, and not followed. */
status atomic_make_own_folder(const char *path);
/* Remove a file, or a folder and all below it, links not followed; what is not there is removed already. */
status atomic_remove(const char *path);
/* The same for all in a folder whose names begin with `prefix`. */
status atomic_remove_all(const char *folder, const char *prefix);
status atomic_sync_folder(const char *path);
/* For hints; what cannot be told counts as not there. */
bool atomic_exists(const char *path);
/* For decisions: *there is false only if there is certainly nothing of that name. Fails if it cannot be told. */
status atomic_look(bool *there, const char *path);
