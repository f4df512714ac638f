/* Uploads a folder of this machine, as the end of object.h describes. */
#include "engine/store/object.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/store/pool.h"
#include "engine/system/reading.h"
#include "memory/log.h"

enum { THREADS = 4, PART = 8 << 20 };

/* A file that is uploaded in parts. */
typedef struct job {
    const upload_target *to;
    object_upload *upload;
    const char *path;
    int file, parts, next; /* next: part, under the pool's lock */
    int64_t bytes, part;
} job;

static status read_part(const job *j, void *to, int64_t offset, int64_t bytes)
{
    return reading_exactly(j->file, to, offset, bytes) ? STATUS_OK
                                                       : status_fail(STATUS_FAILED, "cannot read %s: %s", j->path,
                                                                     errno ? strerror(errno) : "it has become shorter");
}

static status upload_parts(void *context, pool *p, object_store *s, int thread, int *fault)
{
    job *j = context;
    AUTO_FREE char *buffer = must_alloc((unsigned long)j->part);
    (void)thread, (void)fault;
    while (!atomic_load(&p->worker.stop)) {
        worker_lock(&p->worker);
        int part = j->next++;
        worker_unlock(&p->worker);
        if (part >= j->parts)
            break;
        int64_t at = part * j->part, bytes = j->bytes - at < j->part ? j->bytes - at : j->part;
        if (j->to->asked)
            TRY(j->to->asked());
        TRY(read_part(j, buffer, at, bytes));
        TRY(object_upload_part(j->upload, s, part, buffer, bytes));
    }
    return STATUS_OK;
}

static status upload_file(const upload_target *to, object_store *s, const char *folder, const char *name)
{
    struct stat about;
    AUTO_FREE char *path = must_format("%s/%s", folder, name), *key = must_format("%s%s", to->root, name);
    AUTO_CLOSE file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0 || fstat(file, &about) != 0)
        return status_fail(STATUS_FAILED, "cannot read %s: %s", path, strerror(errno));
    if (!S_ISREG(about.st_mode))
        return STATUS_OK;
    job j = {.to = to, .path = path, .file = file, .bytes = about.st_size, .part = PART};
    while (j.part * (OBJECT_PARTS - 1) < j.bytes)
        j.part *= 2;
    j.parts = (int)((j.bytes + j.part - 1) / j.part);
    if (to->asked)
        TRY(to->asked());
    if (j.parts <= 1) {
        AUTO_FREE char *data = must_alloc((unsigned long)j.bytes + 1);
        TRY(read_part(&j, data, 0, j.bytes));
        return object_put(s, key, data, j.bytes);
    }
    TRY(object_upload_abort_all(s, key));
    TRY(object_upload_begin(&j.upload, s, key, j.parts));
    const pool_task task = {.bucket = to->bucket,
                            .does = "uploads files",
                            .threads = THREADS,
                            .limits = to->limits,
                            .work = upload_parts,
                            .context = &j};
    status sent = pool_run(&task, NULL);
    if (sent == STATUS_OK)
        return object_upload_end(j.upload, s);
    object_upload_abort(j.upload, s);
    return sent;
}

status upload_folder(const upload_target *to, const char *folder, const char *last)
{
    RELEASED_BY(reading_names_free) reading_names all = {0};
    AUTO(object_store) *s = NULL;
    AUTO_FREE char *key = must_format("%s%s", to->root, last);
    TRY(reading_folder(&all, folder));
    TRY(object_open(&s, to->bucket, &to->limits));
    TRY(object_remove(s, key));
    for (int i = 0; i < all.count; i++)
        if (strcmp(all.name[i], last) != 0)
            TRY(upload_file(to, s, folder, all.name[i]));
    return upload_file(to, s, folder, last);
}
