/* Downloads objects of a bucket into files on this machine, several at once, in blocks.
 *
 * A file gets its name once it is complete, has the object's length and checksum (if the store states one), and has
 * been synced; until then it is NAME.part, which is removed on failure. A checksum of the caller's replaces the
 * store's, and the file is then read back from the disk.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "memory/status.h"

typedef struct download_item {
    const char *key, *etag, *path;
    int64_t bytes;
    bool header; /* fetches a safetensors file's header only; the rest is a hole */
    bool has_crc32c;
    uint32_t crc32c; /* checksum that the caller requires */
} download_item;

typedef struct download_watcher {
    void (*finished)(void *context, int item);           /* a file has its name; one call at a time; or NULL */
    void (*progress)(void *context, int64_t bytes_done); /* now and then; or NULL */
    double every; /* seconds between two progress calls, and one at the end; 0: every 5 seconds, and none at the end */
    void *context;
} download_watcher;

/* The cause of a failure. */
typedef enum download_fault {
    DOWNLOAD_ELSEWHERE, /* the disk, the credentials, this machine */
    DOWNLOAD_UNREAD,    /* an object could not be read: the object, the store or the way there failed */
    DOWNLOAD_DAMAGED,   /* an object has the wrong bytes */
} download_fault;

/* `mode`: of the files, before the umask. On failure `fault` is set, unless NULL. */
status download(const char *bucket, const download_item *items, int count, mode_t mode, const download_watcher *watcher,
                download_fault *fault);
