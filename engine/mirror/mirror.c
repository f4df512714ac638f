#include "engine/mirror/mirror.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/mirror/mirror_upload.h"
#include "engine/system/worker.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { NICE = 19 };
static const double FIRST_PAUSE = 2, LONGEST_PAUSE = 120; /* seconds after a failure */

struct mirror {
    mirror_prefix prefix;
    char start[MANIFEST_RUN], *folder, *checkpoints;
    int keep, keep_every;
    mirror_owner owner;
    bool held, tidied; /* the thread's */
    mirror_upload *upload;

    /* shared with the thread, under the lock */
    worker worker;
    char next[MIRROR_NAME], present[MIRROR_NAME]; /* to be uploaded, being uploaded; "": none */
    int64_t next_bytes, present_bytes;
    mirror_facts facts;
    bool reported_behind;
    bool hurries; /* somebody waits for the end */
};

/* ---- what is said ------------------------------------------------------------------------------------------------ */

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* A start that began while the store could not be asked asks now. */
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

static status put_text(mirror *m, object_store *s, const char *name)
{
    AUTO_FREE char *path = must_format("%s/%s", m->folder, name);
    return mirror_upload_text(m->upload, s, path, name);
}

/* The checkpoint, `latest`, and what lies around them. */
static status mirror_one(mirror *m, const char *name, bool *for_good)
{
    AUTO(object_store) *s = NULL;
    char to[MIRROR_NAME];
    TRY(object_open(&s, m->prefix.bucket, &(object_limits){.patience = MIRROR_PATIENCE, .stop = &m->worker.stop}));
    TRY(take_hold(m, s, for_good));
    TRY(mirror_upload_run(to, for_good, m->upload, s, m->checkpoints, name));
    TRY(mirror_prefix_set_latest(s, &m->prefix, to));
    if (!m->tidied) /* what a start that was killed has begun */
        m->tidied = object_upload_abort_all(s, m->prefix.root) == STATUS_OK;
    bool well = put_text(m, s, "config.yaml") == STATUS_OK && put_text(m, s, "events.jsonl") == STATUS_OK &&
                mirror_prefix_prune(s, &m->prefix, m->keep, m->keep_every) == STATUS_OK;
    if (!well && !atomic_load(&m->worker.stop))
        log_warn("checkpoint.mirror: %s; %s is there all the same", status_message(), name);
    return STATUS_OK;
}

static void conclude(mirror *m, status result, bool for_good, double *pause)
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
        /* One warning until it is well again. Under the lock. */
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
        if (!*m->next) { /* what has failed is tried again, if no newer one has come */
            memcpy(m->next, m->present, sizeof m->next);
            m->next_bytes = m->present_bytes;
        }
    }
    *m->present = 0;
    if (m->facts.ended)
        *m->next = 0;
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
        conclude(m, result, for_good, &pause);
    }
    worker_unlock(&m->worker);
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

status mirror_open(mirror **out, const mirror_options *o)
{
    mirror *m = must_calloc(1, sizeof *m);
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
    status result = mirror_prefix_make(&m->prefix, o->url);
    if (result == STATUS_OK) {
        m->upload = mirror_upload_open(&m->prefix, m->start, o->largest, &m->worker.stop);
        result = worker_start(&m->worker, mirror_all, m, "mirrors checkpoints");
    }
    if (result != STATUS_OK)
        mirror_close(m);
    else
        *out = m;
    return result;
}

void mirror_close(mirror *m)
{
    if (!m)
        return;
    worker_close(&m->worker);
    mirror_upload_close(m->upload);
    mirror_prefix_free(&m->prefix);
    free(m->owner.folder);
    free(m->folder);
    free(m->checkpoints);
    free(m);
}

/* ---- from the run ------------------------------------------------------------------------------------------------ */

void mirror_offer(mirror *m, const char *name)
{
    int64_t bytes = mirror_upload_bytes(m->checkpoints, name);
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
    int64_t done = mirror_upload_done(m->upload);
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
    while ((*m->next || *m->present) && worker_wait_until(&m->worker, until))
        ;
    return !*m->next && !*m->present && !m->facts.ended;
}
