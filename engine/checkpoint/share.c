#include "engine/checkpoint/share.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <openssl/evp.h>

#include "engine/system/atomic.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/system/crc32c.h"
#include "engine/system/reading.h"
#include "memory/log.h"
#include "memory/scope.h"

#define META      "meta.json"
#define META_TAIL "\n%08x\n"
#define SEAL      "seal-%05d"

enum { META_TAIL_BYTES = 10 };

void share_sum(char out[SHARE_SUM], const uint8_t secret[SHARE_SECRET], const void *data, int64_t bytes)
{
    unsigned char sum[SHARE_SUM / 2];
    size_t got = 0;
    EVP_MAC *kind = EVP_MAC_fetch(NULL, "SIPHASH", NULL);
    EVP_MAC_CTX *c = EVP_MAC_CTX_new(kind);
    MUST(EVP_MAC_init(c, secret, SHARE_SECRET, NULL) == 1 && EVP_MAC_update(c, data, (size_t)bytes) == 1 &&
             EVP_MAC_final(c, sum, &got, sizeof sum) == 1 && got == sizeof sum,
         "libcrypto computes no SipHash");
    EVP_MAC_CTX_free(c);
    EVP_MAC_free(kind);
    for (size_t i = 0; i < sizeof sum; i++)
        snprintf(out + 2 * i, 3, "%02x", sum[i]);
}

static status add_file(share *out, const char *folder, const char *name)
{
    struct stat info;
    AUTO_FREE char *path = must_format("%s/%s", folder, name);
    if (stat(path, &info) != 0)
        return status_fail(STATUS_FAILED, "cannot find %s: %s", path, strerror(errno));
    if (out->count == SHARE_FILES)
        return status_fail(STATUS_FAILED, "%s: a share of more than %d files", folder, SHARE_FILES);
    share_file *f = &out->file[out->count++];
    snprintf(f->name, sizeof f->name, "%s", name);
    f->bytes = (int64_t)info.st_size;
    return STATUS_OK;
}

/* Receives each file of a share; its name is its path within the two folders. */
typedef status visitor(void *context, const manifest_file *file);

typedef struct listing {
    share *out;
    const char *folder;
} listing;

static status list_file(void *context, const manifest_file *file)
{
    const listing *l = context;
    return add_file(l->out, l->folder, file->name);
}

/* Visits all files but the seal, the fragment last. */
static status visit_all(const char *folder, const fragment_owner *owner, visitor *each, void *context)
{
    RELEASED_BY(fragment_close) fragment f = {0};
    AUTO_FREE char *path = checkpoint_fragment(folder, owner->rank);
    char name[FRAGMENT_NAME];
    manifest_file file = {.name = name};
    bool there = true;
    TRY(fragment_open(&f, path, owner));
    TRY(fragment_next_file(&f, &file, &there));
    while (there) {
        if (strchr(name, '/'))
            return status_fail(STATUS_FAILED, "%s names a file %s", path, name);
        TRY(each(context, &file));
        TRY(fragment_next_file(&f, &file, &there));
    }
    if (owner->rank == 0)
        TRY(each(context, &(manifest_file){.name = (char[]){META}}));
    return each(context, &(manifest_file){.name = strrchr(path, '/') + 1});
}

status share_list(share *out, const char *folder, const fragment_owner *owner)
{
    AUTO_FREE char *seal = must_format(SEAL, owner->rank);
    *out = (share){0};
    TRY(visit_all(folder, owner, list_file, &(listing){out, folder}));
    TRY(add_file(out, folder, seal));
    share_file last = out->file[out->count - 1]; /* keeps the fragment last */
    out->file[out->count - 1] = out->file[out->count - 2];
    out->file[out->count - 2] = last;
    return STATUS_OK;
}

/* ---- the seal ----
 *
 *     seal 1 RUN CHECKPOINT RANK RANKS
 *     CHECKSUM BYTES FILE
 *     ...
 *     end CHECKSUM
 *
 * the last one of the text before that line. */

static char *line_text(const uint8_t *secret, const char *name, const mapping *file)
{
    char checksum[SHARE_SUM];
    share_sum(checksum, secret, file->data, file->bytes);
    return must_format("%s %lld %s\n", checksum, (long long)file->bytes, name);
}

typedef struct sealing {
    const char *folder;
    const uint8_t *secret;
    char *text;
} sealing;

static status seal_file(void *context, const manifest_file *file)
{
    sealing *c = context;
    RELEASED_BY(mapping_close) mapping data = {0};
    AUTO_FREE char *path = must_format("%s/%s", c->folder, file->name);
    TRY(mapping_open(&data, path));
    AUTO_FREE char *line = line_text(c->secret, file->name, &data), *before = c->text;
    c->text = must_format("%s%s", before, line);
    return STATUS_OK;
}

static status put_text(const char *path, const char *text, char *buffer)
{
    manifest_file written;
    return checkpoint_put(&written, path, buffer, checkpoint_bytes,
                          &(mapping){(const uint8_t *)text, (int64_t)strlen(text)});
}

status share_seal(const char *folder, const fragment_owner *owner, const uint8_t secret[SHARE_SECRET], char *buffer)
{
    char checksum[SHARE_SUM];
    AUTO_FREE char *path = must_format("%s/" SEAL, folder, owner->rank);
    sealing c = {folder, secret, fragment_head("seal", owner)};
    status s = visit_all(folder, owner, seal_file, &c);
    AUTO_FREE char *text = c.text;
    TRY(s);
    share_sum(checksum, secret, text, (int64_t)strlen(text));
    AUTO_FREE char *whole = must_format("%send %s\n", text, checksum);
    return put_text(path, whole, buffer);
}

/* ---- copying ---- */

typedef struct copying {
    const char *to;
    const share_source *from;
    char *folder, *buffer, *seal;
    bool damaged;
} copying;

static status find_damaged(copying *c, const char *name)
{
    c->damaged = true;
    return status_fail(STATUS_FAILED, "%s/%s is damaged", c->folder, name);
}

/* Reads the seal's lines, checked. */
static status read_seal(copying *c, const fragment_owner *owner)
{
    AUTO_FREE char *path = must_format("%s/" SEAL, c->folder, owner->rank), *head = fragment_head("seal", owner);
    char checksum[SHARE_SUM];
    int64_t bytes;
    TRY(reading_file(&c->seal, &bytes, path));
    int64_t body = bytes - (int64_t)strlen("end \n") - (SHARE_SUM - 1);
    bool good = c->seal && body > 0 && !strncmp(c->seal, head, strlen(head));
    share_sum(checksum, c->from->secret, c->seal, good ? body : 0);
    AUTO_FREE char *end = must_format("end %s\n", checksum);
    return good && !strcmp(c->seal + body, end) ? STATUS_OK : find_damaged(c, strrchr(path, '/') + 1);
}

/* Finds a file in the seal. */
static status open_sealed(mapping *out, copying *c, const char *name)
{
    AUTO_FREE char *path = must_format("%s/%s", c->folder, name);
    status s = mapping_open(out, path);
    if (s != STATUS_OK) {
        c->damaged = errno == ENOENT;
        return s;
    }
    AUTO_FREE char *line = line_text(c->from->secret, name, out);
    const char *found = strstr(c->seal, line);
    if (found && found > c->seal && found[-1] == '\n')
        return STATUS_OK;
    mapping_close(out);
    return find_damaged(c, name);
}

/* Copies a file; without has_crc32c, only the seal checks its content. */
static status copy_file(void *context, const manifest_file *file)
{
    copying *c = context;
    AUTO_FREE char *to = must_format("%s/%s", c->to, file->name);
    RELEASED_BY(mapping_close) mapping source = {0};
    manifest_file written;
    TRY(open_sealed(&source, c, file->name));
    TRY(checkpoint_put(&written, to, c->buffer, checkpoint_bytes, &source));
    bool same = written.crc32c == file->crc32c && written.bytes == file->bytes;
    return same || !file->has_crc32c ? STATUS_OK : find_damaged(c, file->name);
}

static status copy_all(copying *c, const fragment_owner *owner)
{
    AUTO_FREE char *path = checkpoint_fragment(c->folder, owner->rank);
    RELEASED_BY(mapping_close) mapping listed = {0};
    TRY(atomic_make_own_folder(c->to));
    TRY(read_seal(c, owner));
    TRY(open_sealed(&listed, c, strrchr(path, '/') + 1)); /* it lists the files: checked before it is believed */
    TRY(visit_all(c->folder, owner, copy_file, c));
    return atomic_sync_folder(c->to);
}

status share_copy(bool *damaged, const char *to, const share_source *from, const fragment_owner *owner, char *buffer)
{
    copying c = {.to = to, .from = from, .folder = checkpoint_temporary(from->folder, owner->name), .buffer = buffer};
    status s = copy_all(&c, owner);
    *damaged = c.damaged;
    free(c.seal);
    free(c.folder);
    return s;
}

/* ---- the run's position ---- */

status share_put_meta(const char *folder, json_t *meta, char *buffer)
{
    AUTO_FREE char *text = json_dumps(meta, JSON_COMPACT), *path = must_format("%s/" META, folder);
    MUST(text, "a checkpoint's meta cannot be written");
    AUTO_FREE char *whole = must_format("%s" META_TAIL, text, crc32c(0, text, (int64_t)strlen(text)));
    return put_text(path, whole, buffer);
}

status share_take_meta(json_t **out, const char *folder)
{
    AUTO_FREE char *path = must_format("%s/" META, folder);
    char tail[META_TAIL_BYTES + 1];
    RELEASED_BY(mapping_close) mapping file = {0};
    *out = NULL;
    TRY(mapping_open(&file, path));
    int64_t body = file.bytes - META_TAIL_BYTES;
    if (body > 0) {
        snprintf(tail, sizeof tail, META_TAIL, crc32c(0, file.data, body));
        if (memcmp(tail, file.data + body, META_TAIL_BYTES) == 0)
            *out = json_loadb((const char *)file.data, (size_t)body, 0, NULL);
    }
    return *out ? atomic_remove(path) : status_fail(STATUS_FAILED, "%s is damaged", path);
}

/* ---- */

status share_owner(bool *is_one, fragment_owner *out, char *run, const char *folder, const char *file)
{
    char text[512], word[MANIFEST_RUN + 1], name[FRAGMENT_NAME];
    int rank = -1, ranks = 0, version = 0, named = -1;
    int64_t got;
    *is_one = false;
    if (sscanf(file, "fragment-%d", &named) != 1)
        return STATUS_OK;
    AUTO_FREE char *path = must_format("%s/%s", folder, file);
    TRY(reading_at(&got, text, path, 0, sizeof text - 1));
    text[got > 0 ? got : 0] = 0;
    if (sscanf(text, "fragment %d %33s %255s %d %d", &version, word, name, &rank, &ranks) != 5 ||
        strlen(word) >= MANIFEST_RUN || rank != named || rank < 0 || rank >= ranks)
        return STATUS_OK;
    strcpy(run, word);
    *out = (fragment_owner){.run = run, .rank = rank, .ranks = ranks};
    *is_one = true;
    return STATUS_OK;
}
