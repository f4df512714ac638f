#include "engine/system/lock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <libgen.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/system/reading.h"
#include "engine/system/retry.h"
#include "engine/system/worker.h"
#include "memory/machine.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { TEXT_BYTES = 1024, BEATS = 6 /* BEATS: per lease */, TAIL_BYTES = 8192 };

/* The content of a lock file; strings of an unreadable one are empty. */
typedef struct holder {
    char id[40], host[256], boot[MACHINE_BOOT], space[64]; /* space: namespace of process ids */
    long long pid, started, beat;
} holder;

struct lock {
    char *path;
    holder me;
    double lease;
    int descriptor; /* open on our own file, wherever it has been moved; -1: another process of the run holds it */
    int home;       /* the folder in which the file was made */
    worker keeper;  /* one thread at a time looks and writes */
    _Atomic(double) sure;    /* clock_of(CLOCK_BOOTTIME), which counts a suspension, before the last beat */
    _Atomic(uint64_t) inode; /* inode of our file as last read by its name; 0: none */
    _Atomic(bool) removed, lost;
    char why[640]; /* how it was lost; written before `lost` */
};

/* ---- who ------------------------------------------------------------------------------------------------------- */

/* Returns when a process began, in the kernel's ticks: with its number it identifies one process. 0: there is none, or
 * it is a zombie. -1: unknown. */
static long long start_of(long long pid)
{
    char path[64], line[1024], how = 0;
    long long ticks = 0;
    int64_t length;
    snprintf(path, sizeof path, "/proc/%lld/stat", pid);
    if (reading_at(&length, line, path, 0, sizeof line - 1) != STATUS_OK && errno != ESRCH) /* it ended just now */
        return -1;
    line[length > 0 ? length : 0] = 0;
    const char *at = strrchr(line, ')'); /* the program's name may hold anything */
    if (!at || sscanf(at, ") %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %lld", &how,
                      &ticks) != 2)
        return 0;
    return how == 'Z' || how == 'X' ? 0 : ticks;
}

static holder this_process(const char *id)
{
    holder h = {.pid = (long long)getpid(), .beat = 1};
    MUST(strlen(id) < sizeof h.id, "an id of %zu characters", strlen(id));
    strcpy(h.id, id);
    if (gethostname(h.host, sizeof h.host - 1) != 0)
        strcpy(h.host, "unknown");
    (void)machine_boot(h.boot);
    ssize_t length = readlink("/proc/self/ns/pid", h.space, sizeof h.space - 1);
    h.space[length > 0 ? length : 0] = 0;
    h.started = start_of(h.pid);
    return h;
}

/* Writes the content. The counter has a fixed width, so that raising it changes no other byte. */
static void write_text(char out[TEXT_BYTES], const holder *h)
{
    snprintf(out, TEXT_BYTES,
             "{\"run\":\"%s\",\"host\":\"%s\",\"pid\":%lld,\"started\":%lld,\"boot\":\"%s\",\"space\":\"%s\",\"beat\":%"
             "lld}\n",
             h->id, h->host, h->pid, h->started, h->boot, h->space, 1000000000000 + h->beat);
}

/* Takes a string, made printable since messages show it and the file may be a stranger's. */
static void take_text(char *out, size_t bytes, const json_t *root, const char *key)
{
    const char *text = json_string_value(json_object_get(root, key));
    snprintf(out, bytes, "%s", text ? text : "");
    log_make_printable(out);
}

static void read_text(holder *out, const char *text)
{
    json_auto_t *root = json_loads(text, 0, NULL);
    *out = (holder){.pid = json_integer_value(json_object_get(root, "pid")),
                    .started = json_integer_value(json_object_get(root, "started")),
                    .beat = json_integer_value(json_object_get(root, "beat"))};
    take_text(out->id, sizeof out->id, root, "run");
    take_text(out->host, sizeof out->host, root, "host");
    take_text(out->boot, sizeof out->boot, root, "boot");
    take_text(out->space, sizeof out->space, root, "space");
}

/* ---- the file --------------------------------------------------------------------------------------------------- */

/* Reads the file; 0, or an errno: ENOENT if there is none. */
static int read_holder(holder *out, const char *path)
{
    char text[TEXT_BYTES];
    AUTO_CLOSE descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    ssize_t got = descriptor < 0 ? -1 : read(descriptor, text, sizeof text - 1);
    if (got < 0)
        return errno;
    text[got] = 0;
    read_text(out, text);
    return 0;
}

/* Writes a new file to storage; 0 and a descriptor to write it by, or an errno. */
static int write_new(int *out, const char *path, const holder *me)
{
    char text[TEXT_BYTES];
    write_text(text, me);
    int descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (descriptor < 0)
        return errno;
    ssize_t length = (ssize_t)strlen(text);
    if (write(descriptor, text, (size_t)length) != length || fsync(descriptor) != 0) {
        int error = errno;
        close(descriptor);
        unlink(path);
        return error;
    }
    *out = descriptor;
    return 0;
}

/* Gives a new file its name; 0, or an errno, and then it is removed. */
static int link_new(int descriptor, const char *aside, const char *path)
{
    struct stat info;
    bool linked = link(aside, path) == 0;
    int error = errno;
    if (linked || (fstat(descriptor, &info) == 0 && info.st_nlink == 2)) /* an answer of NFS may be lost */
        error = 0;
    unlink(aside);
    if (error)
        close(descriptor);
    return error;
}

/* Creates the file; EEXIST if there is one. It takes its name when it is whole: an empty lock, of a run that was killed
 * before it could write, would have to be watched for a lease. Without hard links it is made under its name. */
static int create_file(int *out, const char *path, const holder *me)
{
    enum { TRIES = 8 };
    AUTO_FREE char *aside = must_format("%s.%s", path, me->id);
    int error = ENOENT; /* result of linking if the lock's holder has swept the file away */
    for (int i = 0; i < TRIES && error == ENOENT; i++) {
        unlink(aside);
        error = write_new(out, aside, me);
        if (error)
            break;
        error = link_new(*out, aside, path);
    }
    return error == EPERM || error == ENOTSUP || error == ENOSYS ? write_new(out, path, me) : error;
}

/* ---- holders so far: FILE.holders has a line for each, which the end of a holder does not remove ---- */

static status add_holder(const char *path, const holder *me)
{
    char text[TEXT_BYTES];
    write_text(text, me);
    AUTO_FREE char *all = must_format("%s.holders", path);
    AUTO_CLOSE file = open(all, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
    int64_t length = (int64_t)strlen(text);
    if (file < 0 || atomic_write_all(file, text, length, -1) != length || fsync(file) != 0)
        return status_fail(STATUS_FAILED, "cannot write to %s: %s", all, strerror(errno));
    return STATUS_OK;
}

/* Finds the last holder if it came after `id`; an id that is not there has not held this lock. Uses no heap. */
static const char *last_after(char tail[TAIL_BYTES + 1], const char *path, const char *id)
{
    char all[PATH_MAX], key[64];
    int64_t got = 0;
    struct stat info;
    snprintf(all, sizeof all, "%.*s.holders", PATH_MAX - 16, path);
    snprintf(key, sizeof key, "{\"run\":\"%s\"", id);
    AUTO_CLOSE file = open(all, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (file >= 0 && fstat(file, &info) == 0)
        got = pread(file, tail, TAIL_BYTES, info.st_size > TAIL_BYTES ? info.st_size - TAIL_BYTES : 0);
    tail[got > 0 ? got : 0] = 0;
    const char *own = NULL, *last = NULL;
    for (const char *at = tail; (at = strstr(at, "{\"run\":")); at++) {
        own = strncmp(at, key, strlen(key)) == 0 ? at : own;
        last = at;
    }
    return own && last > own ? last : NULL;
}

bool lock_is_anothers(const char *path, const char *id)
{
    char tail[TAIL_BYTES + 1];
    return last_after(tail, path, id) != NULL;
}

/* ---- staleness -------------------------------------------------------------------------------------------------- */

typedef enum verdict { ALIVE, STALE, UNKNOWN } verdict;

static bool lives(const holder *found)
{
    long long started = start_of(found->pid);
    return started < 0 || (started && (found->started < 0 || started == found->started));
}

static bool is_here(const holder *found, const holder *me)
{
    return *found->boot && strcmp(found->boot, me->boot) == 0 && strcmp(found->space, me->space) == 0;
}

/* Checks a holder of this machine. A run that has just been ended may need a moment to exit. */
static verdict classify_holder(const holder *found, const holder *me, double lease)
{
    if (!is_here(found, me))
        return UNKNOWN;
    for (double until = clock_seconds() + lease / BEATS; lives(found) && clock_seconds() < until;)
        clock_nap(0.02);
    return lives(found) ? ALIVE : STALE;
}

/* Watches the counter of a holder of another machine, or of an unreadable file. */
static verdict watch_holder(const char *path, const holder *found, double lease)
{
    log_info("%s is held by process %lld on %s; looking for up to %.0f s whether it is alive", path, found->pid,
             found->host, lease);
    for (double until = clock_seconds() + lease; clock_seconds() < until; clock_nap(lease / BEATS / 2)) {
        holder now = {0};
        int error = read_holder(&now, path);
        if (error == ENOENT)
            return STALE; /* it has been released; taking it is retried in any case */
        if (!error && (now.beat != found->beat || strcmp(now.id, found->id) != 0))
            return ALIVE;
    }
    return STALE;
}

bool lock_watch(lock_sight *sight, const char *path, double lease)
{
    holder found = {0}, me = this_process("");
    double now = clock_seconds();
    int error = read_holder(&found, path);
    if (error && error != ENOENT && error != ENOTDIR) /* an unreadable file may still be held */
        return *sight->id && now - sight->moved < lease;
    if (error || !*found.id)
        return false;
    sight->here = is_here(&found, &me);
    if (sight->here || strcmp(found.id, sight->id) != 0 || found.beat != sight->beat)
        sight->moved = now;
    memcpy(sight->id, found.id, sizeof sight->id);
    memcpy(sight->host, found.host, sizeof sight->host);
    sight->pid = found.pid;
    sight->beat = found.beat;
    return sight->here ? lives(&found) : now - sight->moved < lease;
}

/* ---- a holder known to have exited: FILE.ended holds its id ---- */

static char *ended_path(const char *path)
{
    return must_format("%s.ended", path);
}

void lock_retire(const char *path, const char *id)
{
    holder found = {0};
    if (read_holder(&found, path) != 0 || strcmp(found.id, id) != 0)
        return;
    AUTO_FREE char *ended = ended_path(path);
    int file = atomic_create(ended, 0644);
    if (file >= 0) {
        dprintf(file, "%s\n", id); /* a write that fails costs a lease */
        close(file);
    }
}

static bool is_retired(const char *path, const holder *found)
{
    char id[64] = "";
    AUTO_FREE char *ended = ended_path(path);
    AUTO(FILE) *f = reading_stream(ended);
    if (f && fgets(id, sizeof id, f))
        id[strcspn(id, "\n")] = 0;
    return *id && strcmp(id, found->id) == 0;
}

/* Moves the file aside; puts it back if it is not the one that was judged, or cannot be read. */
static void displace_file(const char *path, const holder *judged, const char *id)
{
    holder moved = {0};
    AUTO_FREE char *aside = must_format("%s.%s", path, id);
    if (rename(path, aside) == 0) {
        if (read_holder(&moved, aside) != 0 || strcmp(moved.id, judged->id) != 0 || moved.beat != judged->beat)
            (void)!link(aside, path);
        unlink(aside);
    }
}

/* Removes files that were moved aside by runs that died before they removed them. Only the lock's holder calls it: a
 * file that is put back is its own. The file of another live start stays: it is about to find the lock held. */
static void sweep_aside(const char *path, const holder *me)
{
    AUTO_FREE char *copy = must_strdup(path);
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *folder = dirname(copy);
    size_t length = strlen(name);
    AUTO(DIR) *entries = opendir(folder);
    for (struct dirent *e; entries && (e = readdir(entries));) {
        holder aside = {0};
        const char *end = e->d_name + length;
        if (strncmp(e->d_name, name, length) != 0 || *end++ != '.' ||
            (end[strspn(end, "0123456789abcdef")] && strcmp(end, "ended") != 0))
            continue;
        AUTO_FREE char *one = must_format("%s/%s", folder, e->d_name);
        bool known = read_holder(&aside, one) == 0, begins = known && *aside.id && is_here(&aside, me) && lives(&aside);
        if (known && strcmp(aside.id, me->id) != 0 && !begins)
            unlink(one);
    }
}

/* ---- holding it -------------------------------------------------------------------------------------------------- */

/* True if another run holds the file now; an unreadable one has no holder. */
static bool is_other(const lock *l, holder *now)
{
    return read_holder(now, l->path) == 0 && *now->id && strcmp(now->id, l->me.id) != 0;
}

static void find_home(lock *l)
{
    AUTO_FREE char *copy = must_strdup(l->path);
    if (l->home >= 0)
        close(l->home);
    l->home = open(dirname(copy), O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/* Makes the file again; false if it cannot be made now, or another run's is there. */
static bool make_again(lock *l, const char *what)
{
    int descriptor = -1;
    if (l->descriptor < 0) /* its holder makes it */
        return true;
    if (create_file(&descriptor, l->path, &l->me) != 0)
        return false;
    log_warn("%s %s while it was held; it is there again", l->path, what);
    close(l->descriptor);
    l->descriptor = descriptor;
    find_home(l);
    if (add_holder(l->path, &l->me) != STATUS_OK)
        log_warn("%s", status_message());
    return true;
}

static void lose(lock *l, const holder *to, const char *how)
{
    bool more = is_here(to, &l->me) ? lives(to) : read_holder(&(holder){0}, l->path) == 0;
    snprintf(l->why, sizeof l->why,
             "%s %s: process %lld on %s (run %.32s) has held it since%s; this run ends without a save", l->path, how,
             to->pid, *to->host ? to->host : "a host that it does not name", to->id, more ? "" : ", and has ended");
    atomic_store(&l->lost, true);
}

/* Judges a missing file: it begins anew if its folder lost the name to another one. In the same folder it is lost
 * if another run has held it since; else somebody has removed it. */
static void judge_missing(lock *l)
{
    char tail[TAIL_BYTES + 1];
    holder since;
    reading_place place = PLACE_SAME;
    AUTO_FREE char *copy = must_strdup(l->path);
    const char *last = last_after(tail, l->path, l->me.id);
    if (last) {
        read_text(&since, last);
        lose(l, &since, "is gone");
    } else if (reading_place_of(&place, l->home, dirname(copy)) != STATUS_OK) {
        return; /* unknown: the next look tells */
    } else if (place != PLACE_SAME) {
        (void)make_again(l, "has gone with its folder");
    } else if (make_again(l, "has been removed") && l->descriptor >= 0) {
        atomic_store(&l->removed, true);
    }
}

/* Beats, so that a start that watches sees it, and then reads the holder of the file. */
static void look_at_file(lock *l)
{
    holder now = {0};
    double before = clock_of(CLOCK_BOOTTIME);
    bool beats = l->descriptor < 0;
    WORKER_HELD(&l->keeper);
    if (atomic_load(&l->lost))
        return;
    if (!beats) { /* a failed write shows only when the lease is over */
        char text[TEXT_BYTES];
        l->me.beat++;
        write_text(text, &l->me);
        beats = pwrite(l->descriptor, text, strlen(text), 0) > 0 && fsync(l->descriptor) == 0;
    }
    struct stat info = {0};
    (void)stat(l->path, &info);
    int error = read_holder(&now, l->path);
    if (error == ENOENT)
        judge_missing(l);
    /* A process of this machine that began before this one and has ended cannot have taken the lock from this one: its
     * file has come back with its folder, which was moved away and replaced for a while. */
    if (is_other(l, &now) && is_here(&now, &l->me) && now.started > 0 && now.started < l->me.started && !lives(&now)) {
        displace_file(l->path, &now, l->me.id);
        (void)make_again(l, "was replaced by that of a process which had ended before");
    }
    if (is_other(l, &now)) {
        lose(l, &now, "has been taken");
    } else if (beats && !error && strcmp(now.id, l->me.id) == 0) {
        atomic_store(&l->sure, before);
        atomic_store(&l->inode, info.st_ino);
    }
}

status lock_check(lock *l)
{
    struct stat now;
    if (!l)
        return STATUS_OK;
    bool lost = atomic_load(&l->lost), fresh = clock_of(CLOCK_BOOTTIME) - atomic_load(&l->sure) < l->lease / 2;
    if (!lost && (!fresh || stat(l->path, &now) != 0 || now.st_ino != atomic_load(&l->inode)))
        look_at_file(l);
    return atomic_load(&l->lost) ? status_fail(STATUS_LOST, "%s", l->why) : STATUS_OK;
}

bool lock_lost(const lock *l)
{
    return l && atomic_load(&l->lost);
}

bool lock_removed(const lock *l)
{
    return l && atomic_load(&l->removed);
}

static void renew_lock(void *argument)
{
    lock *l = argument;
    while (worker_pause(&l->keeper, l->lease / BEATS))
        if (!lock_lost(l))
            look_at_file(l);
}

/* Makes the file, and displaces a stale one. */
static status obtain_file(int *out, const char *path, const holder *me, double lease)
{
    enum { ROUNDS = 20 };
    retry r = {0};
    for (int round = 0; round < ROUNDS; round++) {
        int error = create_file(out, path, me);
        if (!error)
            return STATUS_OK;
        if (error != EEXIST && !retry_again(&r, error, path))
            return status_fail(STATUS_FAILED, "cannot make %s: %s", path, strerror(error));
        if (error != EEXIST)
            continue;
        holder found = {0};
        error = read_holder(&found, path);
        if (error && error != ENOENT && !retry_again(&r, error, path))
            return status_fail(STATUS_FAILED, "cannot read %s: %s", path, strerror(error));
        if (error)
            continue;
        verdict v = is_retired(path, &found) ? STALE : classify_holder(&found, me, lease);
        if (v == UNKNOWN)
            v = watch_holder(path, &found, lease);
        if (v == ALIVE)
            return status_fail(
                STATUS_FAILED,
                "%s: another run is at work here, process %lld on %s: let it end, or take another run.folder", path,
                found.pid, *found.host ? found.host : "a host that it does not name");
        displace_file(path, &found, me->id);
        log_info("%s was left by a run that is no more (process %lld on %s)", path, found.pid,
                 *found.host ? found.host : "an unknown host");
    }
    return status_fail(STATUS_FAILED, "%s: other runs take it again and again: start one run in a folder", path);
}

static lock *new_lock(const char *path, const holder *me, double lease, int descriptor)
{
    lock *l = must_calloc(1, sizeof *l);
    l->path = must_strdup(path);
    l->me = *me;
    l->lease = lease;
    l->descriptor = descriptor;
    l->home = -1;
    find_home(l);
    worker_init(&l->keeper);
    return l;
}

status lock_take(lock **out, const char *path, const char *id, double lease)
{
    holder me = this_process(id);
    int descriptor = -1;
    double before = clock_of(CLOCK_BOOTTIME);
    TRY(obtain_file(&descriptor, path, &me, lease));
    sweep_aside(path, &me); /* also removes FILE.ended */
    lock *l = new_lock(path, &me, lease, descriptor);
    status s = add_holder(path, &me);
    if (s != STATUS_OK) {
        lock_release(l);
        return s;
    }
    atomic_store(&l->sure, before);
    MUST(worker_start(&l->keeper, renew_lock, l, "keeps the lock") == STATUS_OK, "%s", status_message());
    *out = l;
    return STATUS_OK;
}

lock *lock_join(const char *path, const char *id, double lease)
{
    const holder me = this_process(id);
    return new_lock(path, &me, lease, -1);
}

/* Removes the file if it is ours. */
static bool remove_own(const lock *l, const char *path)
{
    holder now = {0};
    return read_holder(&now, path) == 0 && !strcmp(now.id, l->me.id) && unlink(path) == 0;
}

/* Removes the file in its moved folder, found by the descriptor's link in /proc/self/fd, whatever name the file had
 * when it was made. */
static void remove_moved(const lock *l)
{
    char link[40], known[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", l->descriptor);
    ssize_t length = readlink(link, known, sizeof known - 1);
    while (length > 0 && known[length - 1] != '/')
        length--;
    if (length <= 0)
        return;
    const char *name = strrchr(l->path, '/');
    AUTO_FREE char *path = must_format("%.*s%s", (int)length, known, name ? name + 1 : l->path);
    (void)remove_own(l, path);
}

void lock_release(lock *l)
{
    if (!l)
        return;
    worker_close(&l->keeper);
    if (l->descriptor >= 0) {
        if (!remove_own(l, l->path))
            remove_moved(l);
        close(l->descriptor);
    }
    if (l->home >= 0)
        close(l->home);
    free(l->path);
    free(l);
}
