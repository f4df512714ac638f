#include "engine/host/incident_log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/system/lines.h"
#include "engine/system/lock.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

/* ---- text without a heap ---- */

typedef struct line {
    char *text;
    size_t used, room;
} line;

static void append_line(line *l, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void append_line(line *l, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(l->text + l->used, l->room - l->used, format, arguments);
    va_end(arguments);
    l->used += more > 0 ? (size_t)more : 0;
    l->used = l->used < l->room ? l->used : l->room - 1;
}

/* Adds `, "key": "value"`; skips a missing text. */
static void add_text(line *l, const char *key, const char *value)
{
    if (!value || !*value)
        return;
    append_line(l, ", \"%s\": \"", key);
    for (const char *c = value; *c; c++) {
        if ((unsigned char)*c < 0x20)
            append_line(l, "\\u%04x", (unsigned char)*c);
        else
            append_line(l, *c == '"' || *c == '\\' ? "\\%c" : "%c", *c);
    }
    append_line(l, "\"");
}

/* ---- one incident ---- */

static void describe_incident(line *l, const incident *i)
{
    double now = clock_of(CLOCK_REALTIME);
    append_line(l, "{\"time\": %.3f, \"verdict\": \"%s\"", now, incident_verdict_name(i->verdict));
    if (i->rank >= 0)
        append_line(l, ", \"rank\": %d", i->rank);
    append_line(l, ", \"ranks\": %d", i->ranks);
    add_text(l, "run", i->run);
    add_text(l, "host", i->host);
    add_text(l, "device", i->device);
    add_text(l, "phase", i->phase < INCIDENT_PHASES ? incident_phase_name(i->phase) : NULL);
    append_line(l, ", \"step\": %lld", (long long)i->step);
    if (i->micro_batch >= 0)
        append_line(l, ", \"micro_batch\": %d", i->micro_batch);
    add_text(l, "action", i->action);
    add_text(l, "op", i->op);
    if (i->waiting_for >= 0)
        append_line(l, ", \"waiting_for\": %d", i->waiting_for);
    append_line(l, ", \"since\": %.3f, \"ends\": %s", now - i->quiet, i->ends ? "true" : "false");
    add_text(l, "words", i->words);
    append_line(l, "}\n");
}

/* The start `run` may have lost the folder while it stood still: its incidents are none of the next one's. */
static bool is_anothers(const char *folder, const char *run)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.*s/lock", PATH_MAX - 32, folder);
    return run && lock_is_anothers(path, run);
}

status incident_log_append(const char *folder, const incident *what)
{
    char path[PATH_MAX], text[4096];
    if (is_anothers(folder, what->run))
        return status_fail(STATUS_LOST, "another run has %s by now", folder);
    line l = {.text = text, .room = sizeof text};
    describe_incident(&l, what);
    snprintf(path, sizeof path, "%.*s/" INCIDENTS_FILE, PATH_MAX - 32, folder);
    mkdir(folder, 0777); /* a run may fail before it has made its folder */
    TRY(lines_own(path));
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0666);
    bool good = file >= 0 && atomic_write_all(file, l.text, (int64_t)l.used, -1) == (int64_t)l.used;
    int error = errno;
    if (file >= 0)
        close(file);
    return good ? STATUS_OK : status_fail(STATUS_FAILED, "cannot write to %s: %s", path, strerror(error));
}

void incident_log_say(const char *folder, watchdog *w, incident_verdict verdict, bool ends, const char *words)
{
    watchdog_text text;
    incident what = watchdog_incident(w, &text, verdict, words);
    what.ends = ends;
    (void)incident_log_append(folder, &what);
}

void incident_log_hold(incident_log_held *k, const incident *what)
{
    if (k->held)
        return;
    k->held = true;
    k->what = *what;
    snprintf(k->words, sizeof k->words, "%s", what->words);
    snprintf(k->text.action, sizeof k->text.action, "%s", what->action ? what->action : "");
    snprintf(k->text.op, sizeof k->text.op, "%s", what->op ? what->op : "");
    k->what.words = k->words;
    k->what.action = k->text.action;
    k->what.op = k->text.op;
    k->what.ends = true;
}

void incident_log_say_held(const char *folder, incident_log_held *k)
{
    if (!k->held)
        return;
    AUTO_FREE char *said = must_strdup(status_message());
    (void)incident_log_append(folder, &k->what);
    (void)status_fail(STATUS_FAILED, "%s", said);
    k->held = false;
}

/* ---- the flight record ---- */

static void describe_entry(line *l, const watchdog_position *e, double offset)
{
    append_line(l, "{\"time\": %.6f, \"step\": %lld", 1e-9 * (double)e->time + offset, (long long)e->step);
    if (e->micro_batch >= 0)
        append_line(l, ", \"micro_batch\": %d", e->micro_batch);
    add_text(l, "action", e->action);
    add_text(l, "kind", e->kind);
    add_text(l, "op", e->op);
    if (e->bytes > 0)
        append_line(l, ", \"bytes\": %lld", (long long)e->bytes);
    if (e->peer >= 0)
        append_line(l, ", \"peer\": %d", e->peer);
    append_line(l, "}\n");
}

static void write_flight(const incident_log *k, watchdog *w)
{
    char path[PATH_MAX], text[16384];
    watchdog_position entries[HISTORY_ENTRIES];
    line l = {.text = text, .room = sizeof text};
    int count = watchdog_read_history(w, entries);
    double offset = clock_of(CLOCK_REALTIME) - clock_of(CLOCK_MONOTONIC);
    snprintf(path, sizeof path, "%.*s/flight-%d.jsonl", PATH_MAX - 32, k->folder, log_rank());
    int file = atomic_create(path, 0666);
    if (file < 0)
        return; /* no way is left to report it */
    for (int i = 0; i < count; i++) {
        describe_entry(&l, &entries[i], offset);
        if (l.used < l.room - 1024 && i + 1 < count)
            continue;
        if (atomic_write_all(file, l.text, (int64_t)l.used, -1) < (int64_t)l.used)
            break;
        l.used = 0;
    }
    close(file);
}

void incident_log_write(void *context, const incident *what, bool ours)
{
    incident_log *k = context;
    watchdog *w = atomic_load(&k->watchdog);
    if (!w)
        return;
    incident said = *what;
    said.run = watchdog_run(w);
    if (ours && incident_log_append(k->folder, &said) != STATUS_OK)
        return; /* then the flight record cannot be written either */
    if (!is_anothers(k->folder, said.run))
        write_flight(k, w);
}

/* ---- */

void incident_log_place(incident_log *k, const char *folder, watchdog *w)
{
    snprintf(k->folder, sizeof k->folder, "%s", folder);
    atomic_store(&k->watchdog, w);
}
