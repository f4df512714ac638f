/* A folder of a store, s3://BUCKET/PREFIX, as one on this machine: its files are fetched, kept, and used again while
 * the store's objects are the same by size and ETag.
 *
 * They are kept below $XDG_CACHE_HOME/phalanx (~/.cache/phalanx), one folder for each prefix, readable by its owner.
 * Processes that want the same folder at once wait for the first, which fetches. Of a prefix that holds `latest` or
 * checkpoints/latest, it is the checkpoint's folder that is meant. Only the prefix's own objects are fetched, not those
 * of folders below it, and no weights in other formats than safetensors.
 */
#pragma once

#include "memory/status.h"

/* A file of this name is in folders that were fetched as FOLDER_HEADERS: nobody may take values from their files. */
#define FOLDER_NO_VALUES ".no-values"

typedef enum folder_part {
    FOLDER_WHOLE,
    FOLDER_HEADERS, /* safetensors files have their headers and sizes, but no values: for shapes and names only */
} folder_part;

/* The path of the folder on this machine, the caller's; of a path that is not s3:// the path itself. */
status folder_local(char **out, const char *path, folder_part part);
