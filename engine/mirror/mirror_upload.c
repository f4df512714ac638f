#include "engine/mirror/mirror_upload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <jansson.h>

#include "engine/system/crc32c.h"
#include "engine/system/mapping.h"
#include "engine/store/pool.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { HELPERS = 4, PART = 8 << 20, MOST_PARTS = 9000, NICE = 19, MOST_NAME = 256, MOST_LINE = 1024 };

/* The lines of a manifest's files (manifest_text.c), one after another. */
typedef struct lines_of_files {
    const char *at, *end;
} lines_of_files;

/* What the helpers of an upload share. */
struct mirror_upload {
    const mirror_prefix *prefix;
    char start[MANIFEST_RUN];
    const atomic_bool *stop;
    int64_t part; /* bytes of a part, and of each buffer */
    char *buffer[HELPERS];
    _Atomic int64_t done;

    /* of the present upload */
    const char *to;
    int folder;
    lines_of_files next; /* under the pool's lock */
};

typedef struct helper {
    mirror_upload *u;
    char *buffer;
} helper;

/* ---- the files of a manifest ------------------------------------------------------------------------------------ */

static lines_of_files begin_files(const mapping *m)
{
    static const char head[] = "\n\"files\":[\n";
    const char *text = (const char *)m->data,
               *found = m->bytes > 0 ? memmem(text, (size_t)m->bytes, head, strlen(head)) : NULL;
    return (lines_of_files){found ? found + strlen(head) : NULL, text + m->bytes};
}

/* {"name":"model-00000.safetensors","bytes":1234,"crc32c":"01234567"} of one line; *there false: none is left. */
static status next_file(manifest_file *out, char name[MOST_NAME], bool *there, lines_of_files *l)
{
    const char *end = l->at ? memchr(l->at, '\n', (size_t)(l->end - l->at)) : NULL;
    *there = false;
    if (!end || end - l->at > MOST_LINE)
        return status_fail(STATUS_FAILED, "its manifest cannot be read");
    if (*l->at == ']')
        return STATUS_OK;
    size_t length = (size_t)(end - l->at);
    json_t *root = json_loadb(l->at, length - (l->at[length - 1] == ','), 0, NULL);
    const char *text = json_string_value(json_object_get(root, "name"));
    const char *checksum = json_string_value(json_object_get(root, "crc32c"));
    bool good = text && strlen(text) < MOST_NAME && !strchr(text, '/') && *text && *text != '.';
    if (good) {
        snprintf(name, MOST_NAME, "%s", text);
        *out = (manifest_file){.name = name,
                               .bytes = json_integer_value(json_object_get(root, "bytes")),
                               .crc32c = checksum ? (uint32_t)strtoul(checksum, NULL, 16) : 0,
                               .has_crc32c = checksum != NULL};
    }
    json_decref(root);
    l->at = end + 1;
    *there = good;
    return good ? STATUS_OK : status_fail(STATUS_FAILED, "its manifest cannot be read");
}

int64_t mirror_upload_bytes(const char *folder, const char *name)
{
    AUTO_FREE char *path = must_format("%s/%s/manifest.json", folder, name);
    char file_name[MOST_NAME];
    RELEASED_BY(mapping_close) mapping m = {0};
    int64_t bytes = 0;
    bool there = mapping_open(&m, path) == STATUS_OK;
    lines_of_files l = begin_files(&m);
    for (manifest_file f; there && next_file(&f, file_name, &there, &l) == STATUS_OK && there;)
        bytes += f.bytes;
    return bytes;
}

/* ---- one file --------------------------------------------------------------------------------------------------- */

static status read_part(int file, char *to, int64_t offset, int64_t bytes)
{
    for (int64_t got = 0; got < bytes;) {
        ssize_t n = pread(file, to + got, (size_t)(bytes - got), offset + got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return status_fail(STATUS_FAILED, "cannot be read: %s",
                               n < 0 ? strerror(errno) : "it is shorter than it was");
        got += n;
    }
    (void)posix_fadvise(file, offset, bytes, POSIX_FADV_DONTNEED);
    return STATUS_OK;
}

/* `whole`: the checksum of all before the last part is in *crc; a file that is another one is not to be published. */
static status check_sum(const manifest_file *f, uint32_t crc)
{
    return !f->has_crc32c || f->crc32c == crc
               ? STATUS_OK
               : status_fail(STATUS_FAILED, "its checksum is not the manifest's: it is damaged, or was replaced");
}

static status put_parts(helper *h, object_store *s, object_upload *up, int file, const manifest_file *f)
{
    uint32_t crc = 0;
    int part = 0;
    for (int64_t at = 0, now; at < f->bytes; at += now, part++) {
        now = f->bytes - at < h->u->part ? f->bytes - at : h->u->part;
        TRY(read_part(file, h->buffer, at, now));
        crc = crc32c(crc, h->buffer, now);
        TRY(object_upload_part(up, s, part, h->buffer, now));
        atomic_fetch_add(&h->u->done, now);
    }
    return check_sum(f, crc);
}

static status put_large(helper *h, object_store *s, int file, const manifest_file *f, const char *key)
{
    object_upload *up;
    int64_t parts = (f->bytes + h->u->part - 1) / h->u->part;
    if (parts > OBJECT_PARTS)
        return status_fail(STATUS_FAILED, "%lld bytes are more than %d parts of %lld", (long long)f->bytes,
                           OBJECT_PARTS, (long long)h->u->part);
    TRY(object_upload_begin(&up, s, key, (int)parts));
    status result = put_parts(h, s, up, file, f);
    if (result == STATUS_OK)
        return object_upload_end(up, s);
    object_upload_abort(up, s);
    return result;
}

static status put_small(helper *h, object_store *s, int file, const manifest_file *f, const char *key)
{
    TRY(read_part(file, h->buffer, 0, f->bytes));
    TRY(check_sum(f, crc32c(0, h->buffer, f->bytes)));
    TRY(object_put(s, key, h->buffer, f->bytes));
    atomic_fetch_add(&h->u->done, f->bytes);
    return STATUS_OK;
}

static status put_file(helper *h, object_store *s, const manifest_file *f)
{
    struct stat about;
    AUTO_CLOSE file = openat(h->u->folder, f->name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0)
        return status_fail(STATUS_FAILED, "%s cannot be opened: %s", f->name, strerror(errno));
    AUTO_FREE char *key = mirror_prefix_key(h->u->prefix, h->u->to, f->name);
    status result = fstat(file, &about) != 0 || about.st_size != f->bytes
                        ? status_fail(STATUS_FAILED, "its size is not the manifest's")
                    : f->bytes > h->u->part ? put_large(h, s, file, f, key)
                                            : put_small(h, s, file, f, key);
    return result == STATUS_OK ? result : status_context(result, "%s", f->name);
}

/* ---- helpers ---------------------------------------------------------------------------------------------------- */

static status help(void *context, pool *p, object_store *s, int thread, int *fault)
{
    mirror_upload *u = context;
    helper h = {u, u->buffer[thread]};
    manifest_file f;
    char name[MOST_NAME];
    (void)fault;
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE); /* training goes first */
    while (!atomic_load(&p->worker.stop)) {
        bool there;
        worker_lock(&p->worker);
        status read = next_file(&f, name, &there, &u->next);
        worker_unlock(&p->worker);
        TRY(read);
        if (!there)
            break;
        TRY(put_file(&h, s, &f));
    }
    return STATUS_OK;
}

/* ---- a checkpoint ----------------------------------------------------------------------------------------------- */

/* Is the checkpoint of that name in the mirror this one? *there: there is one at all. */
static status look_for_same(bool *there, bool *same, mirror_upload *u, object_store *s, const mapping *m,
                            const char *name)
{
    object_facts o;
    AUTO_FREE char *key = mirror_prefix_key(u->prefix, name, "manifest.json");
    *same = false;
    status result = object_look(&o, s, key);
    *there = result == STATUS_OK && o.there;
    bool equal = *there && o.bytes == m->bytes;
    for (int64_t at = 0, now; equal && at < m->bytes && result == STATUS_OK; at += now) {
        now = m->bytes - at < u->part ? m->bytes - at : u->part;
        result = object_read(u->buffer[0], s, key, at, now, o.etag);
        equal = result == STATUS_OK && memcmp(u->buffer[0], m->data + at, (size_t)now) == 0;
    }
    *same = equal && result == STATUS_OK;
    return result;
}

/* NAME, or NAME-2, ... where there is another checkpoint of that name, which stays until this one is there. */
static status choose_name(char to[MIRROR_NAME], bool *same, mirror_upload *u, object_store *s, const mapping *m,
                          const char *name)
{
    bool there = true;
    snprintf(to, MIRROR_NAME, "%s", name);
    for (int turn = 2; there; turn++) {
        TRY(look_for_same(&there, same, u, s, m, to));
        if (*same)
            return STATUS_OK;
        if (there)
            snprintf(to, MIRROR_NAME, "%s-%d", name, turn);
    }
    return STATUS_OK;
}

static status check_holder(bool *shut_out, const mirror_upload *u, object_store *s)
{
    bool mine;
    TRY(mirror_prefix_confirm(&mine, s, u->prefix, u->start));
    *shut_out = !mine;
    return mine ? STATUS_OK : status_fail(STATUS_FAILED, "another start of this run has taken %s over", u->prefix->url);
}

/* The manifest is on the disk as a whole, or it is not there. */
static status put_checkpoint(char to[MIRROR_NAME], bool *shut_out, mirror_upload *u, object_store *s, const mapping *m,
                             const char *name)
{
    bool same;
    TRY(check_holder(shut_out, u, s));
    TRY(choose_name(to, &same, u, s, m, name));
    if (same)
        return STATUS_OK;
    u->to = to;
    u->next = begin_files(m);
    AUTO_FREE char *last = mirror_prefix_key(u->prefix, to, "manifest.json");
    const pool_task uploads = {.bucket = u->prefix->bucket,
                               .does = "uploads checkpoints",
                               .threads = HELPERS,
                               .limits = {.patience = MIRROR_PATIENCE, .stop = u->stop},
                               .work = help,
                               .context = u};
    TRY(pool_run(&uploads, NULL));
    TRY(check_holder(shut_out, u, s));
    return object_put(s, last, m->data, m->bytes);
}

status mirror_upload_run(char to[MIRROR_NAME], bool *shut_out, mirror_upload *u, object_store *s, const char *folder,
                         const char *name)
{
    AUTO_FREE char *path = must_format("%s/%s", folder, name), *listed = must_format("%s/manifest.json", path);
    RELEASED_BY(mapping_close) mapping m = {0};
    atomic_store(&u->done, 0);
    *shut_out = false;
    AUTO_CLOSE opened = u->folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    status result = opened >= 0 ? mapping_open(&m, listed)
                                : status_fail(STATUS_FAILED, "%s cannot be opened: %s", path, strerror(errno));
    if (result == STATUS_OK)
        result = put_checkpoint(to, shut_out, u, s, &m, name);
    return result == STATUS_OK ? result : status_context(result, "%s is not mirrored", name);
}

int64_t mirror_upload_done(const mirror_upload *u)
{
    return atomic_load(&u->done);
}

status mirror_upload_text(mirror_upload *u, object_store *s, const char *path, const char *name)
{
    struct stat about;
    AUTO_CLOSE file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0 || fstat(file, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size > u->part)
        return STATUS_OK;
    AUTO_FREE char *key = mirror_prefix_key(u->prefix, name, NULL);
    TRY(read_part(file, u->buffer[0], 0, about.st_size));
    return object_put(s, key, u->buffer[0], about.st_size);
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

mirror_upload *mirror_upload_open(const mirror_prefix *p, const char *start, int64_t largest, const atomic_bool *stop)
{
    mirror_upload *u = must_calloc(1, sizeof *u);
    u->prefix = p;
    u->stop = stop;
    u->part = largest / MOST_PARTS > PART ? (largest / MOST_PARTS + PART) / PART * PART : PART;
    snprintf(u->start, sizeof u->start, "%s", start);
    for (int i = 0; i < HELPERS; i++)
        u->buffer[i] = must_alloc((unsigned long)u->part);
    return u;
}

void mirror_upload_close(mirror_upload *u)
{
    if (!u)
        return;
    for (int i = 0; i < HELPERS; i++)
        free(u->buffer[i]);
    free(u);
}
