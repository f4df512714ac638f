#include "engine/store/blocks/blocks_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/system/crc32c.h"
#include "engine/system/reading.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { MAX_FILES = 1 << 16, PATH = 4096, NAME = 80 };
/* Seconds: patience for the admission lock, and for a block's; pause between waits for blocks' locks. */
static const double ADMISSION_SECONDS = 10, WAIT_FOR_OTHERS = 10, WAIT_AGAIN = 600;

/* A file of the folder, as eviction sees it. */
typedef struct entry {
    int64_t used, bytes; /* used: time in nanoseconds; only the order counts */
    blocks_name name;
    bool unfinished;
} entry;

struct blocks_disk {
    char *folder;
    int64_t bytes;  /* capacity */
    entry *entries; /* [MAX_FILES], used under the admission lock */
    pthread_mutex_t entries_lock;
    double patience;
    _Atomic double wait_after; /* earliest time of the next wait for another process */
};

static void write_name(char out[NAME], const blocks_name *name, bool unfinished)
{
    if (name->block < 0)
        snprintf(out, NAME, "%s-whole%s", name->object, unfinished ? ".tmp" : "");
    else
        snprintf(out, NAME, "%s-%lld%s", name->object, (long long)name->block, unfinished ? ".tmp" : "");
}

static void write_path(char out[PATH], const blocks_disk *d, const blocks_name *name, bool unfinished)
{
    char file[NAME];
    write_name(file, name, unfinished);
    snprintf(out, PATH, "%s/%s", d->folder, file);
}

char *blocks_disk_path(const blocks_disk *d, const blocks_name *name)
{
    char path[PATH];
    write_path(path, d, name, false);
    return must_strdup(path);
}

const char *blocks_disk_folder(const blocks_disk *d)
{
    return d->folder;
}

/* ---- locks ------------------------------------------------------------------------------------------------------- */

/* Returns the byte of the file `lock` that locks a block: blocks that share one by chance wait for each other. */
static off_t lock_byte(const blocks_name *name)
{
    char file[NAME];
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    write_name(file, name, false);
    for (const char *c = file; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    return (off_t)(hash >> 2) + 1;
}

static bool set_lock(int descriptor, off_t byte, short type)
{
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(descriptor, F_OFD_SETLK, &l) == 0;
}

int blocks_disk_descriptor(const blocks_disk *d)
{
    char path[PATH];
    snprintf(path, sizeof path, "%s/lock", d->folder);
    return open(path, O_RDWR | O_CREAT | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW, 0600);
}

void blocks_disk_unlock(int descriptor, const blocks_name *name)
{
    (void)set_lock(descriptor, lock_byte(name), F_UNLCK);
}

static bool is_held(int descriptor, const blocks_name *name)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = lock_byte(name), .l_len = 1};
    return fcntl(descriptor, F_OFD_GETLK, &l) != 0 || l.l_type != F_UNLCK;
}

/* Takes the lock for adding blocks. A running holder keeps it briefly; fails with ETIMEDOUT if it is stopped. */
static bool lock_admission(int descriptor)
{
    for (double until = clock_seconds() + ADMISSION_SECONDS; !set_lock(descriptor, 0, F_WRLCK);) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR)
            return false;
        if (clock_seconds() > until) {
            errno = ETIMEDOUT;
            return false;
        }
        clock_nap(0.002);
    }
    return true;
}

/* ---- room -------------------------------------------------------------------------------------------------------- */

/* Parses "OBJECT-BLOCK" or "OBJECT-whole", each with or without ".tmp"; false for another program's file. */
static bool parse_name(entry *out, const char *file)
{
    enum { HEX = BLOCKS_HEX - 1 };
    char again[NAME];
    if (strspn(file, "0123456789abcdef") != HEX || file[HEX] != '-')
        return false;
    memcpy(out->name.object, file, HEX);
    out->name.object[HEX] = 0;
    out->name.block = strncmp(file + HEX + 1, "whole", 5) == 0 ? -1 : strtoll(file + HEX + 1, NULL, 10);
    size_t length = strlen(file);
    out->unfinished = length > 4 && strcmp(file + length - 4, ".tmp") == 0;
    write_name(again, &out->name, out->unfinished);
    return strcmp(again, file) == 0;
}

/* Restores the heap, ordered by time with the least recently used entry first. */
static void sift_down(entry *heap, int count, int at)
{
    for (int child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1].used < heap[child].used)
            child++;
        if (heap[at].used <= heap[child].used)
            return;
        entry kept = heap[at];
        heap[at] = heap[child];
        heap[child] = kept;
    }
}

/* Returns the folder's bytes and lists its files that may be removed. Removes each .tmp file with an unheld lock, since
 * its process has ended. */
static int64_t scan_folder(int *count, blocks_disk *d, int locks)
{
    int64_t sum = 0;
    *count = 0;
    AUTO(DIR) *folder = opendir(d->folder);
    if (!folder)
        return 0;
    for (struct dirent *f; (f = readdir(folder));) {
        struct stat facts;
        entry e;
        if (!parse_name(&e, f->d_name) || fstatat(dirfd(folder), f->d_name, &facts, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (e.unfinished && !is_held(locks, &e.name) && unlinkat(dirfd(folder), f->d_name, 0) == 0)
            continue;
        sum += facts.st_size;
        e.used = (int64_t)facts.st_mtim.tv_sec * 1000000000 + facts.st_mtim.tv_nsec;
        e.bytes = facts.st_size;
        if (!e.unfinished && *count < MAX_FILES)
            d->entries[(*count)++] = e;
    }
    return sum;
}

/* Removes blocks until the folder takes at most `most` bytes; returns the bytes that it then takes. */
static int64_t evict_blocks(blocks_disk *d, int locks, int64_t most)
{
    int count;
    char path[PATH];
    pthread_mutex_lock(&d->entries_lock);
    int64_t sum = scan_folder(&count, d, locks);
    for (int i = count / 2 - 1; i >= 0; i--)
        sift_down(d->entries, count, i);
    while (count > 0 && sum > most) {
        write_path(path, d, &d->entries[0].name, false);
        if (unlink(path) == 0 || errno == ENOENT)
            sum -= d->entries[0].bytes;
        d->entries[0] = d->entries[--count];
        sift_down(d->entries, count, 0);
    }
    pthread_mutex_unlock(&d->entries_lock);
    return sum;
}

/* Makes room for `bytes` more. Counts them before they are written, so a killed process leaves the count too high. */
static bool make_room(blocks_disk *d, int locks, int64_t bytes)
{
    int64_t used = 0;
    if (bytes > d->bytes) {
        errno = EFBIG;
        return false;
    }
    bool known = pread(locks, &used, sizeof used, 0) == sizeof used && used >= 0;
    if (!known || used > d->bytes - bytes) {
        int64_t spare = d->bytes / 16, most = d->bytes - bytes;
        used = evict_blocks(d, locks, most > spare ? most - spare : 0);
        if (used > most) {
            errno = ENOSPC;
            return false;
        }
    }
    used += bytes;
    return pwrite(locks, &used, sizeof used, 0) == sizeof used;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static int64_t file_bytes(int64_t bytes)
{
    return bytes + (bytes + BLOCKS_CHUNK - 1) / BLOCKS_CHUNK * (int64_t)sizeof(uint32_t);
}

/* Returns a descriptor of a file of the right length, or -1 with errno (EBADF: wrong length). */
static int open_file(const blocks_disk *d, const blocks_name *name, int64_t bytes)
{
    char path[PATH];
    struct stat facts;
    write_path(path, d, name, false);
    int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0 || (fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size == file_bytes(bytes))) {
        if (file >= 0)
            (void)futimens(file, (struct timespec[2]){{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_NOW}});
        return file;
    }
    close(file);
    errno = EBADF;
    return -1;
}

bool blocks_disk_has(const blocks_disk *d, const blocks_name *name, int64_t bytes)
{
    AUTO_CLOSE file = open_file(d, name, bytes);
    return file >= 0;
}

/* Returns a number that changes while the lock's holder writes the file; 0: there is no unfinished file. */
static int64_t progress_of(const blocks_disk *d, const blocks_name *name)
{
    char path[PATH];
    struct stat facts;
    write_path(path, d, name, true);
    return lstat(path, &facts) == 0 ? (int64_t)facts.st_mtim.tv_sec * 1000000000 + facts.st_mtim.tv_nsec : 0;
}

blocks_turn blocks_disk_wait(blocks_disk *d, int locks, const blocks_name *name, int64_t bytes, const atomic_bool *stop)
{
    int64_t progress = -1;
    for (double since = 0, now; !atomic_load(stop); clock_nap(0.002)) {
        bool locked = set_lock(locks, lock_byte(name), F_WRLCK);
        int error = errno;
        bool there = blocks_disk_has(d, name, bytes);
        if (locked && there)
            blocks_disk_unlock(locks, name);
        if (there || locked)
            return there ? BLOCKS_COME : BLOCKS_LOCKED;
        errno = error;
        if (error != EAGAIN && error != EACCES && error != EINTR)
            return BLOCKS_UNLOCKED;
        int64_t seen = progress_of(d, name);
        now = clock_seconds();
        since = seen != progress ? now : since;
        progress = seen;
        if (now < atomic_load(&d->wait_after))
            break;
        if (now - since < d->patience)
            continue;
        atomic_store(&d->wait_after, now + WAIT_AGAIN);
        break;
    }
    return BLOCKS_STUCK;
}

blocks_sight blocks_disk_read(const blocks_disk *d, void *to, const blocks_name *name, int64_t bytes, int64_t chunk)
{
    uint32_t crc;
    int64_t offset = chunk * BLOCKS_CHUNK, count = bytes - offset < BLOCKS_CHUNK ? bytes - offset : BLOCKS_CHUNK;
    AUTO_CLOSE file = open_file(d, name, bytes);
    if (file < 0)
        return errno == ENOENT ? BLOCKS_MISSING : BLOCKS_DAMAGED;
    bool good = reading_exactly(file, to, offset, count) &&
                reading_exactly(file, &crc, bytes + 4 * chunk, sizeof crc) && crc32c(0, to, count) == crc;
    return good ? BLOCKS_THERE : BLOCKS_DAMAGED;
}

static int begin_file(const blocks_disk *d, const blocks_name *name, int64_t bytes)
{
    char path[PATH];
    write_path(path, d, name, true);
    int file = atomic_create(path, 0600);
    if (file < 0)
        return -1;
    int error = fallocate(file, 0, 0, (off_t)bytes) == 0 ? 0 : errno;
    if ((error == EOPNOTSUPP || error == ENOSYS) && ftruncate(file, (off_t)bytes) == 0)
        error = 0;
    if (!error)
        return file;
    close(file);
    unlink(path);
    errno = error;
    return -1;
}

int blocks_disk_begin(blocks_disk *d, int locks, const blocks_name *name, int64_t bytes)
{
    if (!lock_admission(locks))
        return -1;
    int64_t all = file_bytes(bytes);
    int file = make_room(d, locks, all) ? begin_file(d, name, all) : -1, error = errno;
    (void)set_lock(locks, 0, F_UNLCK);
    errno = error;
    return file;
}

bool blocks_disk_put(int file, const void *data, int64_t offset, int64_t bytes, int64_t total)
{
    MUST(offset % BLOCKS_CHUNK == 0, "a piece of a block's file begins within a chunk");
    if (atomic_write_all(file, data, bytes, offset) < bytes)
        return false;
    for (int64_t at = 0; at < bytes; at += BLOCKS_CHUNK) {
        uint32_t crc = crc32c(0, (const char *)data + at, bytes - at < BLOCKS_CHUNK ? bytes - at : BLOCKS_CHUNK);
        if (atomic_write_all(file, &crc, sizeof crc, total + (offset + at) / BLOCKS_CHUNK * 4) < (int64_t)sizeof crc)
            return false;
    }
    return true;
}

bool blocks_disk_end(const blocks_disk *d, int file, const blocks_name *name, bool good)
{
    char unfinished[PATH], path[PATH];
    int error = errno;
    write_path(unfinished, d, name, true);
    write_path(path, d, name, false);
    if (close(file) != 0 && good) {
        error = errno;
        good = false;
    }
    if (good && rename(unfinished, path) == 0)
        return true;
    error = good ? errno : error;
    unlink(unfinished);
    errno = error;
    return false;
}

bool blocks_disk_remove(const blocks_disk *d, const blocks_name *name)
{
    char path[PATH];
    write_path(path, d, name, false);
    return unlink(path) == 0 || errno == ENOENT;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* Checks that the folder can be written and locked. Removes files left by ended processes, and evicts any excess. */
static bool try_folder(blocks_disk *d)
{
    AUTO_CLOSE locks = blocks_disk_descriptor(d); /* closing unlocks */
    if (locks < 0 || !lock_admission(locks))
        return false;
    int64_t used = evict_blocks(d, locks, d->bytes);
    return pwrite(locks, &used, sizeof used, 0) == sizeof used;
}

status blocks_disk_open(blocks_disk **out, const char *folder, int64_t bytes, double patience)
{
    if (strlen(folder) > PATH - NAME - 2)
        return status_fail(STATUS_USAGE, "the path of a cache's folder is too long");
    TRY(atomic_make_folders(folder));
    blocks_disk *d = must_calloc(1, sizeof *d);
    d->folder = must_strdup(folder);
    d->bytes = bytes;
    d->patience = patience > 0 ? patience : WAIT_FOR_OTHERS;
    d->entries = must_alloc(MAX_FILES * sizeof *d->entries);
    pthread_mutex_init(&d->entries_lock, NULL);
    if (try_folder(d)) {
        *out = d;
        return STATUS_OK;
    }
    status s = status_fail(STATUS_FAILED, "%s cannot be written to: %s", folder, strerror(errno));
    blocks_disk_close(d);
    return s;
}

void blocks_disk_close(blocks_disk *d)
{
    if (!d)
        return;
    pthread_mutex_destroy(&d->entries_lock);
    free(d->entries);
    free(d->folder);
    free(d);
}
