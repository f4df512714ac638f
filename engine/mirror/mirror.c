#include "engine/mirror/mirror.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <jansson.h>

#include "engine/store/pool.h"
#include "engine/system/crc32c.h"
#include "engine/system/mapping.h"
#include "engine/system/reading.h"
#include "engine/system/worker.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { HELPERS = 4, PART = 8 << 20, MOST_PARTS = 9000, NICE = 19, MOST_NAME = 256, MOST_LINE = 1024 };
static const double FIRST_PAUSE = 2, LONGEST_PAUSE = 120; /* seconds to wait after a failure */
/* Seconds of refusals until the end of a run waits no more: credentials may be being renewed. */
static const double REFUSED = 10;

/* A cursor over the lines of a manifest's files (manifest.c). */
typedef struct lines_of_files {
    const char *at, *end;
} lines_of_files;

struct mirror {
    mirror_prefix prefix;
    char start[MANIFEST_RUN], *folder, *checkpoints;
    int keep, keep_every;
    mirror_owner owner;
    bool held, tidied; /* used by the thread */
    bool refused;      /* set by the thread: the store has refused the last attempt for good */

    /* uploads */
    int64_t part;          /* size of a part and of each buffer, bytes */
    char *buffer[HELPERS]; /* allocated at the start: no such size is allocated during steps */
    _Atomic int64_t done;  /* bytes done of the present checkpoint */
    const char *to;        /* name in the mirror */
    int opened;            /* descriptor of its folder */
    lines_of_files files;  /* the next files, under the pool's lock */

    /* shared with the thread, under the lock */
    worker worker;
    char next[MIRROR_NAME], present[MIRROR_NAME]; /* to be uploaded, being uploaded; "": none */
    int64_t next_bytes, present_bytes;
    mirror_facts facts;
    bool reported_behind;
    bool hurries;         /* a caller waits for the end */
    bool hopeless;        /* and the store has refused it for REFUSED seconds */
    double refused_since; /* clock_seconds() of the first refusal in a row while a caller waits; 0: none */
};

typedef struct helper {
    mirror *m;
    char *buffer;
} helper;

/* ---- the files of a manifest ------------------------------------------------------------------------------------ */

static lines_of_files begin_files(const mapping *text)
{
    static const char head[] = "\n\"files\":[\n";
    const char *begin = (const char *)text->data,
               *found = text->bytes > 0 ? memmem(begin, (size_t)text->bytes, head, strlen(head)) : NULL;
    return (lines_of_files){found ? found + strlen(head) : NULL, begin + text->bytes};
}

/* Reads one line {"name":"model-00000.safetensors","bytes":1234,"crc32c":"01234567"}; *there false: no line is left. */
static status next_file(manifest_file *out, char name[MOST_NAME], bool *there, lines_of_files *l)
{
    const char *end = l->at ? memchr(l->at, '\n', (size_t)(l->end - l->at)) : NULL;
    *there = false;
    if (!end || end - l->at > MOST_LINE)
        return status_fail(STATUS_FAILED, "its manifest cannot be read");
    if (*l->at == ']')
        return STATUS_OK;
    size_t length = (size_t)(end - l->at);
    json_auto_t *root = json_loadb(l->at, length - (l->at[length - 1] == ','), 0, NULL);
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
    l->at = end + 1;
    *there = good;
    return good ? STATUS_OK : status_fail(STATUS_FAILED, "its manifest cannot be read");
}

/* Sums the bytes of a checkpoint's files by its manifest; 0: it cannot be read. */
static int64_t bytes_of(const mirror *m, const char *name)
{
    AUTO_FREE char *path = must_format("%s/%s/manifest.json", m->checkpoints, name);
    char file_name[MOST_NAME];
    RELEASED_BY(mapping_close) mapping text = {0};
    int64_t bytes = 0;
    bool there = mapping_open(&text, path) == STATUS_OK;
    lines_of_files l = begin_files(&text);
    for (manifest_file f; there && next_file(&f, file_name, &there, &l) == STATUS_OK && there;)
        bytes += f.bytes;
    return bytes;
}

/* ---- one file --------------------------------------------------------------------------------------------------- */

static status read_part(int file, char *to, int64_t offset, int64_t bytes)
{
    if (!reading_exactly(file, to, offset, bytes))
        return status_fail(STATUS_FAILED, "cannot be read: %s", errno ? strerror(errno) : "it is shorter than it was");
    (void)posix_fadvise(file, offset, bytes, POSIX_FADV_DONTNEED);
    return STATUS_OK;
}

/* Fails unless the file has the manifest's checksum, before it is published. */
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
        now = f->bytes - at < h->m->part ? f->bytes - at : h->m->part;
        TRY(read_part(file, h->buffer, at, now));
        crc = crc32c(crc, h->buffer, now);
        TRY(object_upload_part(up, s, part, h->buffer, now));
        atomic_fetch_add(&h->m->done, now);
    }
    return check_sum(f, crc);
}

static status put_large(helper *h, object_store *s, int file, const manifest_file *f, const char *key)
{
    object_upload *up;
    int64_t parts = (f->bytes + h->m->part - 1) / h->m->part;
    if (parts > OBJECT_PARTS)
        return status_fail(STATUS_FAILED, "%lld bytes are more than %d parts of %lld", (long long)f->bytes,
                           OBJECT_PARTS, (long long)h->m->part);
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
    atomic_fetch_add(&h->m->done, f->bytes);
    return STATUS_OK;
}

static status put_file(helper *h, object_store *s, const manifest_file *f)
{
    struct stat about;
    AUTO_CLOSE file = openat(h->m->opened, f->name, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0)
        return status_fail(STATUS_FAILED, "%s cannot be opened: %s", f->name, strerror(errno));
    AUTO_FREE char *key = mirror_prefix_key(&h->m->prefix, h->m->to, f->name);
    status result = fstat(file, &about) != 0 || about.st_size != f->bytes
                        ? status_fail(STATUS_FAILED, "its size is not the manifest's")
                    : f->bytes > h->m->part ? put_large(h, s, file, f, key)
                                            : put_small(h, s, file, f, key);
    return result == STATUS_OK ? result : status_context(result, "%s", f->name);
}

/* ---- helpers ---------------------------------------------------------------------------------------------------- */

static status upload_files(void *context, pool *p, object_store *s, int thread, int *fault)
{
    mirror *m = context;
    helper h = {m, m->buffer[thread]};
    manifest_file f;
    char name[MOST_NAME];
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE); /* training has priority */
    while (!atomic_load(&p->worker.stop)) {
        bool there;
        worker_lock(&p->worker);
        status read = next_file(&f, name, &there, &m->files);
        worker_unlock(&p->worker);
        TRY(read);
        if (!there)
            break;
        status put = put_file(&h, s, &f);
        *fault = put != STATUS_OK && object_refused(s);
        TRY(put);
    }
    return STATUS_OK;
}

/* ---- a checkpoint ----------------------------------------------------------------------------------------------- */

/* Looks for a checkpoint of that name in the mirror. *there: one exists; *same: it is this one. */
static status look_for_same(bool *there, bool *same, mirror *m, object_store *s, const mapping *text, const char *name)
{
    object_facts o;
    AUTO_FREE char *key = mirror_prefix_key(&m->prefix, name, "manifest.json");
    *same = false;
    TRY(object_look(&o, s, key));
    *there = o.there;
    bool equal = o.there && o.bytes == text->bytes;
    for (int64_t at = 0, now; equal && at < text->bytes; at += now) {
        now = text->bytes - at < m->part ? text->bytes - at : m->part;
        TRY(object_read(m->buffer[0], s, key, at, now, o.etag));
        equal = memcmp(m->buffer[0], text->data + at, (size_t)now) == 0;
    }
    *same = equal;
    return STATUS_OK;
}

/* Chooses NAME, or NAME-2, ... if another checkpoint has that name, which stays until this one is there. */
static status choose_name(char to[MIRROR_NAME], bool *same, mirror *m, object_store *s, const mapping *text,
                          const char *name)
{
    bool there = true;
    snprintf(to, MIRROR_NAME, "%s", name);
    for (int turn = 2; there; turn++) {
        TRY(look_for_same(&there, same, m, s, text, to));
        if (*same)
            return STATUS_OK;
        if (there && snprintf(to, MIRROR_NAME, "%s-%d", name, turn) >= MIRROR_NAME)
            return status_fail(STATUS_FAILED, "its name is too long");
    }
    return STATUS_OK;
}

/* Fails unless this start holds the mirror. An emptied mirror is taken hold of again before the next attempt. */
static status check_holder(bool *shut_out, mirror *m, object_store *s)
{
    mirror_holder holder;
    TRY(mirror_prefix_confirm(&holder, s, &m->prefix, m->start));
    *shut_out = holder == MIRROR_OTHERS;
    m->held = holder == MIRROR_MINE;
    return m->held     ? STATUS_OK
           : *shut_out ? status_fail(STATUS_FAILED, "another start of this run has taken %s over", m->prefix.url)
                       : status_fail(STATUS_FAILED, "%s was emptied: its objects are written again", m->prefix.url);
}

/* Uploads a checkpoint; its manifest is on the disk whole, or not at all. */
static status put_checkpoint(char to[MIRROR_NAME], bool *shut_out, mirror *m, object_store *s, const mapping *text,
                             const char *name)
{
    bool same;
    TRY(check_holder(shut_out, m, s));
    TRY(choose_name(to, &same, m, s, text, name));
    if (same)
        return STATUS_OK;
    m->to = to;
    m->files = begin_files(text);
    AUTO_FREE char *last = mirror_prefix_key(&m->prefix, to, "manifest.json");
    const pool_task uploads = {.bucket = m->prefix.bucket,
                               .does = "uploads checkpoints",
                               .threads = HELPERS,
                               .limits = {.patience = MIRROR_PATIENCE, .stop = &m->worker.stop},
                               .work = upload_files,
                               .context = m};
    int refused = 0;
    status result = pool_run(&uploads, &refused);
    m->refused = refused;
    TRY(result);
    TRY(check_holder(shut_out, m, s));
    return object_put(s, last, text->data, text->bytes);
}

/* Uploads the checkpoint of that name, unless the mirror has it: `to` becomes its name there. Opens the folder once and
 * checks every file against the manifest's checksum, so that a checkpoint replaced or removed meanwhile is never
 * mirrored in part: the upload fails, and its objects are no checkpoint. */
static status upload_checkpoint(char to[MIRROR_NAME], bool *shut_out, mirror *m, object_store *s, const char *name)
{
    AUTO_FREE char *path = must_format("%s/%s", m->checkpoints, name), *listed = must_format("%s/manifest.json", path);
    RELEASED_BY(mapping_close) mapping text = {0};
    atomic_store(&m->done, 0);
    *shut_out = false;
    AUTO_CLOSE opened = m->opened = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    status result = opened >= 0 ? mapping_open(&text, listed)
                                : status_fail(STATUS_FAILED, "%s cannot be opened: %s", path, strerror(errno));
    if (result == STATUS_OK)
        result = put_checkpoint(to, shut_out, m, s, &text, name);
    return result == STATUS_OK ? result : status_context(result, "%s is not mirrored", name);
}

/* Uploads a small file of the run's folder as it is now; skips larger and missing ones. */
static status put_text(mirror *m, object_store *s, const char *name)
{
    struct stat about;
    AUTO_FREE char *path = must_format("%s/%s", m->folder, name), *key = mirror_prefix_key(&m->prefix, name, NULL);
    AUTO_CLOSE file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0 || fstat(file, &about) != 0 || !S_ISREG(about.st_mode) || about.st_size > m->part)
        return STATUS_OK;
    TRY(read_part(file, m->buffer[0], 0, about.st_size));
    return object_put(s, key, m->buffer[0], about.st_size);
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* Takes hold of the mirror now, if the store could not be reached when the start began. */
static status take_hold(mirror *m, object_store *s, bool *for_good)
{
    RELEASED_BY(mirror_owner_free) mirror_owner there = {0};
    if (m->held)
        return STATUS_OK;
    TRY(mirror_prefix_owner(&there, s, &m->prefix));
    *for_good = *there.run && strcmp(there.run, m->owner.run) != 0;
    if (*for_good)
        return status_fail(STATUS_FAILED, "%s is the mirror of another run (%s, of run.folder %s)", m->prefix.url,
                           there.run, there.folder);
    if (!*there.run)
        TRY(mirror_prefix_claim(s, &m->prefix, &m->owner));
    TRY(mirror_prefix_hold(s, &m->prefix, m->start));
    m->held = true;
    return STATUS_OK;
}

/* Uploads the checkpoint, `latest`, and the small files around them. */
static status mirror_by(mirror *m, object_store *s, const char *name, bool *for_good)
{
    char to[MIRROR_NAME];
    TRY(take_hold(m, s, for_good));
    TRY(upload_checkpoint(to, for_good, m, s, name));
    TRY(mirror_prefix_set_latest(s, &m->prefix, to));
    AUTO_FREE char *begin = mirror_prefix_key(&m->prefix, "step-", NULL);
    if (!m->tidied) /* uploads begun by a start that was killed */
        m->tidied = object_upload_abort_all(s, begin) == STATUS_OK;
    bool well = put_text(m, s, "config.yaml") == STATUS_OK && put_text(m, s, "events.jsonl") == STATUS_OK &&
                mirror_prefix_prune(s, &m->prefix, m->keep, m->keep_every) == STATUS_OK;
    if (!well && !atomic_load(&m->worker.stop))
        log_warn("checkpoint.mirror: %s; %s is there all the same", status_message(), name);
    return STATUS_OK;
}

static status mirror_one(mirror *m, const char *name, bool *for_good)
{
    AUTO(object_store) *s = NULL;
    m->refused = false;
    TRY(object_open(&s, m->prefix.bucket, &(object_limits){.patience = MIRROR_PATIENCE, .stop = &m->worker.stop}));
    status result = mirror_by(m, s, name, for_good);
    m->refused = result != STATUS_OK && (m->refused || object_refused(s));
    return result;
}

static void conclude_upload(mirror *m, status result, bool for_good, double *pause)
{
    AUTO_FREE char *words = must_strdup(result == STATUS_OK ? "" : status_message());
    if (result == STATUS_OK) {
        if (m->facts.failing)
            log_info("checkpoint.mirror: %s is in %s: all is well again", m->present, m->prefix.url);
        m->facts.failing = false;
        *m->facts.why = 0;
        memcpy(m->facts.name, m->present, sizeof m->facts.name);
        m->facts.step = mirror_prefix_step(m->present);
        m->facts.uploaded++;
    } else if (!atomic_load(&m->worker.stop)) {
        /* Warns once until it works again. The lock is held. */
        bool first = !m->facts.failing;
        m->facts.failing = true;
        snprintf(m->facts.why, sizeof m->facts.why, "%s", words);
        if (for_good) {
            m->facts.ended = true;
            log_warn("checkpoint.mirror: %s: nothing is mirrored any more; training goes on", words);
        } else if (first) {
            log_warn("checkpoint.mirror: %s; training goes on, and it is tried again with the newest checkpoint",
                     words);
        }
        if (!*m->next) { /* retries the failed one, unless a newer one has come */
            memcpy(m->next, m->present, sizeof m->next);
            m->next_bytes = m->present_bytes;
        }
    }
    *m->present = 0;
    if (m->facts.ended)
        *m->next = 0;
    double now = clock_seconds();
    m->refused_since = !m->hurries || !m->refused ? 0 : m->refused_since > 0 ? m->refused_since : now;
    m->hopeless = m->refused_since > 0 && now - m->refused_since >= REFUSED;
    worker_tell(&m->worker);
    bool hurries = m->hurries;
    double until = clock_seconds() + (hurries ? FIRST_PAUSE : *pause);
    while (result != STATUS_OK && !m->facts.ended && hurries == m->hurries && worker_wait_until(&m->worker, until))
        continue;
    *pause = result == STATUS_OK ? FIRST_PAUSE : *pause * 2 < LONGEST_PAUSE ? *pause * 2 : LONGEST_PAUSE;
}

static void mirror_all(void *argument)
{
    mirror *m = argument;
    double pause = FIRST_PAUSE;
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
    worker_lock(&m->worker);
    while (!atomic_load(&m->worker.stop)) {
        if (!*m->next) {
            worker_wait(&m->worker);
            continue;
        }
        bool for_good = false;
        memcpy(m->present, m->next, sizeof m->present);
        m->present_bytes = m->next_bytes;
        *m->next = 0;
        worker_unlock(&m->worker);
        status result = mirror_one(m, m->present, &for_good);
        worker_lock(&m->worker);
        conclude_upload(m, result, for_good, &pause);
    }
    worker_unlock(&m->worker);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

status mirror_open(mirror **out, const mirror_options *o)
{
    AUTO(mirror) *m = must_calloc(1, sizeof *m);
    worker_init(&m->worker);
    m->folder = must_strdup(o->folder);
    m->checkpoints = must_format("%s/checkpoints", o->folder);
    m->keep = o->keep;
    m->keep_every = o->keep_every;
    m->held = o->held;
    m->owner = *o->owner;
    m->owner.folder = must_strdup(o->owner->folder);
    m->facts.step = -1;
    snprintf(m->start, sizeof m->start, "%s", o->start);
    m->part = o->largest / MOST_PARTS > PART ? (o->largest / MOST_PARTS + PART) / PART * PART : PART;
    TRY(mirror_prefix_make(&m->prefix, o->url));
    for (int i = 0; i < HELPERS; i++)
        m->buffer[i] = must_alloc((unsigned long)m->part);
    TRY(worker_start(&m->worker, mirror_all, m, "mirrors checkpoints"));
    *out = TAKE(m);
    return STATUS_OK;
}

void mirror_close(mirror *m)
{
    if (!m)
        return;
    worker_close(&m->worker);
    for (int i = 0; i < HELPERS; i++)
        free(m->buffer[i]);
    mirror_prefix_free(&m->prefix);
    free(m->owner.folder);
    free(m->folder);
    free(m->checkpoints);
    free(m);
}

/* ---- from the run ------------------------------------------------------------------------------------------------ */

void mirror_offer(mirror *m, const char *name)
{
    int64_t bytes = bytes_of(m, name);
    worker_lock(&m->worker);
    bool slow = *m->present || *m->next, passes_over = *m->next;
    m->facts.passed_over += passes_over;
    if (!m->facts.ended) {
        snprintf(m->next, sizeof m->next, "%s", name);
        m->next_bytes = bytes;
    }
    if (slow && !m->facts.failing && !m->facts.ended && !m->reported_behind) {
        m->reported_behind = true;
        log_warn("checkpoint.mirror: %s is there before the one before it is uploaded: the newest goes first, and what "
                 "comes in between is passed over; a larger checkpoint.every would do",
                 name);
    }
    worker_tell(&m->worker);
    worker_unlock(&m->worker);
}

bool mirror_needs(mirror *m, const char *name)
{
    if (!m)
        return false;
    WORKER_HELD(&m->worker);
    return strcmp(m->present, name) == 0 || strcmp(m->next, name) == 0;
}

mirror_facts mirror_now(mirror *m)
{
    WORKER_HELD(&m->worker);
    mirror_facts f = m->facts;
    int64_t done = atomic_load(&m->done);
    if (*m->next)
        f.behind_bytes = m->next_bytes;
    else if (*m->present)
        f.behind_bytes = done < m->present_bytes ? m->present_bytes - done : 1;
    return f;
}

bool mirror_finish(mirror *m, double seconds)
{
    double until = clock_seconds() + seconds;
    WORKER_HELD(&m->worker);
    m->hurries = true;
    worker_tell(&m->worker);
    while ((*m->next || *m->present) && !m->hopeless && worker_wait_until(&m->worker, until))
        ;
    return !*m->next && !*m->present && !m->facts.ended;
}
