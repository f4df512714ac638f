/* Objects of a bucket into files on this machine, several at once, in blocks.
 *
 * A file takes its name when all of it is there, is as long as the object and has its checksum (if the store says one),
 * and has been synced; until then it is NAME.part, which is removed if something fails. Where the caller knows the
 * checksum, the file is held to that one, and read back from the disk.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "memory/status.h"

typedef struct download_item {
    const char *key, *etag, *path;
    int64_t bytes;
    bool header; /* of a safetensors file its header only; the rest of the file is a hole */
    bool has_crc32c;
    uint32_t crc32c; /* what the bytes must have, by the caller */
} download_item;

typedef struct download_watcher {
    void (*finished)(void *context, int item); /* a file has its name; one call at a time; NULL: nobody asks */
    void (*progress)(void *context, int64_t bytes_done); /* now and then; NULL: nobody asks */
    double every; /* seconds between two of these, and one at the end; 0: 5, and none */
    void *context;
} download_watcher;

/* What has failed. */
typedef enum download_fault {
    DOWNLOAD_ELSEWHERE, /* the disk, the credentials, this machine */
    DOWNLOAD_UNREAD,    /* an object could not be read: it is the object, the store or the way there */
    DOWNLOAD_DAMAGED,   /* an object is not what it must be */
} download_fault;

/* `mode`: of the files, before the umask. `fault`, which may be NULL, is set if it fails. */
status download(const char *bucket, const download_item *items, int count, mode_t mode, const download_watcher *watcher,
                download_fault *fault);
