/* Objects of a bucket into files on this machine, several at once, in blocks.
 *
 * A file takes its name when all of it is there, is as long as the object and has its checksum (if the store says one),
 * and has been synced; until then it is NAME.part, which is removed if something fails.
 */
#ifndef PHALANX_ENGINE_STORE_DOWNLOAD_H
#define PHALANX_ENGINE_STORE_DOWNLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "memory/status.h"

typedef struct download_item {
    const char *key, *etag, *path;
    int64_t bytes;
    bool header; /* of a safetensors file its header only; the rest of the file is a hole */
} download_item;

typedef struct download_watcher {
    void (*finished)(void *context, int item);           /* a file has its name; one call at a time */
    void (*progress)(void *context, int64_t bytes_done); /* every few seconds */
    void *context;
} download_watcher;

status download(const char *bucket, const download_item *items, int count, const download_watcher *watcher);

#endif
