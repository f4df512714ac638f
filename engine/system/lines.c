#include "engine/system/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/system/lock.h"
#include "engine/system/reading.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { MOST_KEPT = 16 << 20 }; /* bytes of lines that wait for a disk that fails */

/* A line that could not be written yet. */
typedef struct kept_line {
    struct kept_line *next;
    int64_t bytes;
    char data[];
} kept_line;

struct lines {
    char *path, *folder;
    int file;                /* -1: none at the moment */
    int moved;               /* moved away with its folder, and gets the same lines in case it comes back; -1: none */
    int home;                /* the folder of `file`, open; -1: it is not known */
    _Atomic(bool) displaced; /* `file` was moved with its folder, and another run's folder has the name */
    lock *owner;
    kept_line *kept, **kept_end; /* linked in order; kept_end: the place of the next one */
    int64_t kept_bytes;
    long long kept_count, lost; /* lost: lines that were not kept either */
    pthread_mutex_t lock;       /* one thread at a time looks and writes */
};

static status fail_lines(const lines *l, int error)
{
    return status_fail(STATUS_FAILED, "cannot write to %s: %s", l->path, strerror(error));
}

status lines_own(const char *path)
{
    struct stat info;
    AUTO_FREE char *all = NULL;
    int64_t bytes;
    bool there;
    TRY(reading_look(&there, &info, path));
    if (!there || !S_ISREG(info.st_mode) || info.st_nlink < 2)
        return STATUS_OK;
    TRY(reading_file(&all, &bytes, path));
    return all ? atomic_replace(path, all, bytes) : STATUS_OK;
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev;
}

static void find_home(lines *l)
{
    if (l->home >= 0)
        close(l->home);
    l->home = open(l->folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/* Opens the file; `only`: O_EXCL, where an existing file is another run's; else 0. */
static status open_file(lines *l, int only)
{
    if (!only)
        TRY(lines_own(l->path));
    l->file = open(l->path, O_WRONLY | O_APPEND | O_CREAT | O_NONBLOCK | O_CLOEXEC | only, 0666);
    if (l->file < 0)
        return fail_lines(l, errno);
    find_home(l);
    return STATUS_OK;
}

status lines_open(lines **out, const char *path, lock *owner)
{
    TRY(lock_check(owner));
    AUTO(lines) *l = must_calloc(1, sizeof *l);
    l->path = must_strdup(path);
    l->owner = owner;
    l->file = l->moved = l->home = -1;
    l->kept_end = &l->kept;
    pthread_mutex_init(&l->lock, NULL);
    AUTO_FREE char *copy = must_strdup(path);
    l->folder = must_strdup(dirname(copy));
    TRY(open_file(l, 0));
    *out = TAKE(l);
    return STATUS_OK;
}

/* ---- which file is the run's ---- */

/* Leaves a file that has lost its name, which is free: writes on if its folder was moved, else gives it up. */
static void leave_file(lines *l, bool with_folder)
{
    if (l->moved < 0 && with_folder) {
        log_warn("%s was moved with its folder: it begins anew, and the one that was moved goes on as well", l->path);
        l->moved = l->file;
    } else {
        log_warn("%s was deleted or replaced: it begins anew, without its earlier lines", l->path);
        close(l->file);
    }
    l->file = -1;
    l->displaced = false;
}

/* Another run's folder has the name: its file gets none of this run's lines. */
static void stay_away(lines *l)
{
    if (!l->displaced)
        log_warn("%s is in another folder than the run's, which was moved: it stays as it is, and the lines go on in "
                 "the one that was moved",
                 l->path);
    l->displaced = true;
}

/* Takes back a moved file that has its name again: it has all lines. */
static bool take_back(lines *l, const struct stat *named)
{
    struct stat moved;
    if (l->moved < 0 || fstat(l->moved, &moved) != 0 || !is_same(&moved, named))
        return false;
    log_info("%s is back", l->path);
    if (l->file >= 0)
        close(l->file);
    l->file = l->moved;
    l->moved = -1;
    l->displaced = false;
    find_home(l);
    return true;
}

/* Begins a new file in a new folder after the name was lost, unless a folder with such a file takes the name meanwhile:
 * the run's own, or another's. */
static status begin_anew(lines *l)
{
    struct stat named;
    bool there;
    TRY(atomic_make_folders(l->folder));
    status s = open_file(l, l->moved >= 0 ? O_EXCL : 0);
    if (s == STATUS_OK || l->moved < 0)
        return s;
    TRY(reading_look(&there, &named, l->path));
    if (there && !take_back(l, &named)) {
        l->file = l->moved;
        l->moved = -1;
        stay_away(l);
    }
    return l->file >= 0 ? STATUS_OK : s;
}

/* Checks that the open file is still the one of the path. If that is unknown, keeps it. */
static status check_file(lines *l)
{
    struct stat own, named;
    reading_place place = PLACE_STALE;
    bool there = stat(l->path, &named) == 0, gone = !there && (errno == ENOENT || errno == ENOTDIR);
    if (there && take_back(l, &named))
        return STATUS_OK;
    if (l->file < 0)
        return begin_anew(l);
    bool known = fstat(l->file, &own) == 0, stale = !known && errno == ESTALE;
    if ((!known && !stale) || (!there && !gone))
        return STATUS_OK;
    if (known && there && is_same(&own, &named)) {
        if (l->displaced)
            log_info("%s is back", l->path);
        l->displaced = false;
        return STATUS_OK;
    }
    /* A file without a name lies in no folder. */
    if ((stale || own.st_nlink > 0) && (l->home < 0 || reading_place_of(&place, l->home, l->folder) != STATUS_OK))
        return STATUS_OK;
    if (there && place == PLACE_TAKEN) {
        stay_away(l);
        return STATUS_OK;
    }
    leave_file(l, place == PLACE_FREE || place == PLACE_TAKEN);
    return begin_anew(l);
}

/* Writes the bytes whole, or not at all. */
static status append_bytes(const lines *l, int file, const void *data, int64_t bytes)
{
    struct stat before;
    bool known = fstat(file, &before) == 0; /* a failing fstat loses no line */
    int64_t done = atomic_write_all(file, data, bytes, -1);
    if (done == bytes)
        return STATUS_OK;
    status s = fail_lines(l, errno);
    return done && (!known || ftruncate(file, before.st_size) != 0) ? status_context(s, "and a torn line is left in it")
                                                                    : s;
}

static void keep_line(lines *l, const void *data, int64_t bytes)
{
    if (l->kept_bytes + bytes > MOST_KEPT) {
        l->lost++;
        return;
    }
    kept_line *k = must_alloc(sizeof *k + (unsigned long)bytes);
    k->next = NULL;
    k->bytes = bytes;
    memcpy(k->data, data, (size_t)bytes);
    *l->kept_end = k;
    l->kept_end = &k->next;
    l->kept_bytes += bytes;
    l->kept_count++;
}

static void drop_first(lines *l)
{
    kept_line *k = l->kept;
    l->kept = k->next;
    l->kept_end = l->kept ? l->kept_end : &l->kept;
    l->kept_bytes -= k->bytes;
    l->kept_count--;
    free(k);
}

/* Writes the lines that wait, in order. */
static status write_kept(lines *l)
{
    for (; l->kept; drop_first(l))
        TRY(append_bytes(l, l->file, l->kept->data, l->kept->bytes));
    return STATUS_OK;
}

status lines_write(lines *l, const void *data, int64_t bytes, bool here)
{
    TRY(lock_check(l->owner));
    pthread_mutex_lock(&l->lock);
    status s = check_file(l);
    if (s == STATUS_OK && !here && l->moved >= 0 && append_bytes(l, l->moved, data, bytes) != STATUS_OK) {
        close(l->moved); /* gives up the moved file if it cannot be written */
        l->moved = -1;
    }
    s = s == STATUS_OK ? write_kept(l) : s;
    s = s == STATUS_OK ? append_bytes(l, l->file, data, bytes) : s;
    if (s != STATUS_OK)
        keep_line(l, data, bytes);
    pthread_mutex_unlock(&l->lock);
    return s;
}

bool lines_are_here(lines *l, bool look_now)
{
    if (!look_now)
        return !l->displaced;
    pthread_mutex_lock(&l->lock);
    bool here = check_file(l) != STATUS_OK || !l->displaced;
    pthread_mutex_unlock(&l->lock);
    return here;
}

long long lines_lost(const lines *l)
{
    return l->lost + l->kept_count;
}

/* Tries once more to write the lines that wait. Keeps the message of an earlier failure. */
static void end_kept(lines *l)
{
    if (!l->kept)
        return;
    AUTO_FREE char *said = must_strdup(status_message());
    if (lock_check(l->owner) != STATUS_OK || check_file(l) != STATUS_OK || write_kept(l) != STATUS_OK)
        log_warn("%s: %lld lines at its end are missing: %s", l->path, lines_lost(l), status_message());
    while (l->kept)
        drop_first(l);
    (void)status_fail(STATUS_FAILED, "%s", said);
}

void lines_close(lines *l)
{
    if (!l)
        return;
    end_kept(l);
    if (l->file >= 0)
        close(l->file);
    if (l->moved >= 0)
        close(l->moved);
    if (l->home >= 0)
        close(l->home);
    pthread_mutex_destroy(&l->lock);
    free(l->path);
    free(l->folder);
    free(l);
}
