/* Objects whole, as files of the folder or in memory. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/crc32c.h"
#include "engine/store/blocks/blocks_internal.h"
#include "memory/log.h"

/* Is each chunk of a whole object's file what it was? */
static bool map_whole(blocks_file *out, blocks *b, const blocks_object *o)
{
    const blocks_name name = blocks_name_of(o, -1);
    char *path = blocks_disk_path(b->disk, &name);
    bool good = blocks_disk_has(b->disk, &name, o->bytes) && mapping_open(&out->map, path) == STATUS_OK;
    free(path);
    for (int64_t at = 0; good && at < o->bytes; at += BLOCKS_CHUNK) {
        uint32_t crc;
        memcpy(&crc, out->map.data + o->bytes + at / BLOCKS_CHUNK * 4, sizeof crc);
        good = crc32c(0, out->map.data + at, o->bytes - at < BLOCKS_CHUNK ? o->bytes - at : BLOCKS_CHUNK) == crc;
    }
    if (good) {
        out->data = out->map.data;
        out->bytes = o->bytes;
        return true;
    }
    if (out->map.data) {
        mapping_close(&out->map);
        blocks_drop_damaged(b, o, -1);
    }
    return false;
}

/* All bytes, piece by piece, into memory, or into a file; its checksum must be the store's. *kept: the file has all of
 * them. */
static status fetch_whole(bool *kept, blocks_hand *h, blocks_object *o, char *memory, int file)
{
    blocks *b = h->owner;
    uint32_t crc = 0;
    blocks_slot *s = blocks_claim_slot(b, o, -1);
    status got = s ? STATUS_OK : status_fail(STATUS_FAILED, "stopped");
    *kept = file >= 0;
    for (int64_t at = 0, now; at < o->bytes && got == STATUS_OK; at += now) {
        now = o->bytes - at < b->slot_bytes ? o->bytes - at : b->slot_bytes;
        char *to = memory ? memory + at : s->bytes;
        got = blocks_fetch(h, o, to, at, now);
        if (got != STATUS_OK)
            break;
        crc = crc32c(crc, to, now);
        *kept = *kept && blocks_disk_put(file, to, at, now, o->bytes);
        if (file >= 0 && !*kept)
            break;
    }
    int error = errno;
    if (s)
        blocks_release_slot(b, s, false, o->bytes);
    o->came_damaged = got == STATUS_OK && (memory || *kept) && o->has_crc32c && crc != o->crc32c;
    if (o->came_damaged)
        got = status_fail(STATUS_FAILED, "s3://%s/%s: its checksum is not the store's: it came damaged",
                          b->bucket[o->bucket], o->key);
    errno = error;
    return got;
}

static status fetch_to_file(bool *kept, blocks_hand *h, blocks_object *o, const blocks_name *name)
{
    blocks *b = h->owner;
    int file = blocks_disk_begin(b->disk, h->locks, name, o->bytes);
    status got = STATUS_OK;
    *kept = false;
    if (file >= 0) {
        got = fetch_whole(kept, h, o, NULL, file);
        *kept = blocks_disk_end(b->disk, file, name, got == STATUS_OK && *kept);
    }
    if (got == STATUS_OK && !*kept)
        blocks_rest_disk(b, errno);
    return got;
}

static status take_whole(blocks_file *out, blocks_hand *h, blocks_object *o)
{
    blocks *b = h->owner;
    const blocks_name name = blocks_name_of(o, -1);
    bool there = false, kept = false, locked = blocks_may_read(b) && blocks_lock(&there, h, &name, o->bytes);
    status got = STATUS_OK;
    if (locked) {
        got = fetch_to_file(&kept, h, o, &name);
        blocks_disk_unlock(h->locks, &name);
    }
    if (got != STATUS_OK || ((there || kept) && map_whole(out, b, o)))
        return got;
    out->memory = must_alloc((unsigned long)o->bytes + 1);
    got = fetch_whole(&kept, h, o, out->memory, -1);
    out->data = out->memory;
    out->bytes = o->bytes;
    if (got != STATUS_OK)
        blocks_file_close(out);
    return got;
}

status blocks_whole(blocks_file *out, blocks *b, const char *url)
{
    enum { TRIES = 4 };
    blocks_object *o = NULL;
    *out = (blocks_file){0};
    TRY(blocks_find(&o, b, url, BLOCKS_BYTES));
    status got = take_whole(out, &b->hand[BLOCKS_READER], o);
    for (int i = 1; i < TRIES && got != STATUS_OK && o->came_damaged; i++)
        got = take_whole(out, &b->hand[BLOCKS_READER], o);
    return got;
}

void blocks_file_close(blocks_file *f)
{
    mapping_close(&f->map);
    free(f->memory);
    *f = (blocks_file){0};
}
