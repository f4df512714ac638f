/* Mirrors a folder of an object store on this machine, as the end of object.h describes. */
#include "engine/store/object.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/system/reading.h"
#include "engine/store/download.h"
#include "engine/store/s3/signature.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/units.h"

enum { MAX_FILES = 100000 };
static const int64_t DISK_RESERVE = 1 << 30; /* disk space to leave free, bytes */
static const double LEASE = 60; /* seconds until a process that holds the lock and does not renew it has stopped */

#define INDEX ".fetched.json" /* index of the folder's files: {"url": ..., "files": {NAME: {"bytes", "etag"}}} */

typedef struct fetch {
    const char *url;
    char *bucket, *prefix; /* the prefix is "" or ends in a slash */
    folder_part part;
    object_store *s;
    object_listing list;
    char *folder;        /* local path */
    json_t *index;       /* contents of INDEX */
    download_item *item; /* [items] files to download */
    int items;
    int64_t bytes, local_bytes; /* total; bytes of files that are current here */
    double start_seconds;
    int lock; /* descriptor; -1: none */
} fetch;

/* ---- choice of objects ------------------------------------------------------------------------------------------- */

/* True if the name is valid for a file in the local folder. */
static bool is_file_name(const char *name)
{
    return reading_is_name(name) && strlen(name) < 200;
}

/* False for weights of other formats, which repeat the safetensors files. */
static bool is_needed(const char *name)
{
    static const char *const others[] = {".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ot", ".tflite"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (reading_ends_in(name, others[i]))
            return false;
    return is_file_name(name);
}

static const object_entry *find_object(const fetch *f, const char *name)
{
    for (int64_t i = 0; i < f->list.count; i++)
        if (strcmp(f->list.entry[i].key + strlen(f->prefix), name) == 0)
            return &f->list.entry[i];
    return NULL;
}

static status list_objects(fetch *f)
{
    object_listing_free(&f->list);
    return object_list(&f->list, f->s, f->prefix, false, MAX_FILES);
}

static void enter_subfolder(fetch *f, const char *name)
{
    char *prefix = must_format("%s%s/", f->prefix, name);
    free(f->prefix);
    f->prefix = prefix;
}

/* Moves the prefix to the checkpoint that `latest` names. */
static status enter_latest(fetch *f)
{
    AUTO_FREE char *key = must_format("%slatest", f->prefix), *name = NULL;
    int64_t bytes = 0;
    status s = object_read_whole(&name, &bytes, f->s, key, 200);
    if (s == STATUS_OK && name) {
        name[strcspn(name, "\r\n")] = 0;
        if (is_file_name(name))
            enter_subfolder(f, name);
        else
            s = status_fail(STATUS_FAILED, "s3://%s/%s names no checkpoint", f->bucket, key);
    }
    return s == STATUS_OK ? list_objects(f) : s;
}

static status choose_checkpoint(fetch *f)
{
    TRY(list_objects(f));
    size_t length = strlen(f->prefix), latest = strlen("latest/");
    if (f->list.count == 0 && length > latest && strcmp(f->prefix + length - latest, "latest/") == 0) {
        f->prefix[length - latest] = 0; /* no folder, but the text that names one */
        TRY(list_objects(f));
    }
    if (!find_object(f, "latest") && find_object(f, "checkpoints/")) {
        enter_subfolder(f, "checkpoints");
        TRY(list_objects(f));
    }
    if (find_object(f, "latest"))
        TRY(enter_latest(f));
    for (int64_t i = 0; i < f->list.count; i++)
        if (!f->list.entry[i].folder && is_needed(f->list.entry[i].key + strlen(f->prefix)))
            return STATUS_OK;
    return status_fail(STATUS_FAILED, "%s: there is no object in this folder of the store", f->url);
}

/* ---- local folder ------------------------------------------------------------------------------------------------ */

static status name_folder(fetch *f)
{
    const char *given = getenv("XDG_CACHE_HOME"), *home = getenv("HOME"), *endpoint = object_endpoint(f->s);
    if ((!given || !*given) && (!home || !*home))
        return status_fail(STATUS_FAILED, "%s: neither XDG_CACHE_HOME nor HOME says where fetched files are kept",
                           f->url);
    char hash[SIGNATURE_HEX];
    AUTO_FREE char *whole = must_format("%s\n%s\n%s", endpoint, f->bucket, f->prefix);
    signature_hash(hash, whole, (int64_t)strlen(whole));
    AUTO_FREE char *base = given && *given ? must_format("%s/phalanx", given) : must_format("%s/.cache/phalanx", home);
    size_t length = strlen(f->prefix), end = length > 0 ? length - 1 : 0, begin = end;
    while (begin > 0 && f->prefix[begin - 1] != '/')
        begin--;
    AUTO_FREE char *last = must_format("%.*s", (int)(end - begin), f->prefix + begin);
    f->folder = must_format("%s/%s-%.12s%s", base, is_file_name(last) ? last : f->bucket, hash,
                            f->part == FOLDER_HEADERS ? "-headers" : "");
    return STATUS_OK;
}

/* Prints to standard error, since the command's output may go to standard output. */
__attribute__((format(printf, 1, 2))) static void log_line(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    if (log_rank() == 0)
        vfprintf(stderr, format, list);
    va_end(list);
}

/* Locks the folder; waits while another process fetches into it and renews the lock. */
static status lock_folder(fetch *f)
{
    double renewed = 0, at = 0;
    bool told = false;
    TRY(atomic_make_folders(f->folder));
    if (chmod(f->folder, 0700) != 0)
        return status_fail(STATUS_FAILED, "cannot keep files in %s: %s", f->folder, strerror(errno));
    AUTO_FREE char *path = must_format("%s/.lock", f->folder);
    f->lock = open(path, O_RDWR | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0600);
    for (double since = clock_seconds(); f->lock < 0 || flock(f->lock, LOCK_EX | LOCK_NB) != 0; clock_nap(0.05)) {
        if (f->lock < 0 || (errno != EINTR && errno != EWOULDBLOCK))
            return status_fail(STATUS_FAILED, "cannot lock %s: %s", path, strerror(errno));
        (void)!pread(f->lock, &at, sizeof at, 0);
        since = at != renewed ? clock_seconds() : since;
        renewed = at;
        if (!told)
            log_line("%s: waits for another process that fetches it\n", f->url);
        told = true;
        if (clock_seconds() - since > LEASE)
            return status_fail(STATUS_FAILED,
                               "%s: another process fetches it into %s, and has not moved for %.0f s: end it, or set "
                               "XDG_CACHE_HOME",
                               f->url, f->folder, LEASE);
    }
    return STATUS_OK;
}

static status read_index(fetch *f)
{
    AUTO_FREE char *path = must_format("%s/" INDEX, f->folder), *text = NULL;
    int64_t bytes = 0;
    TRY(reading_file(&text, &bytes, path));
    f->index = text ? json_loadb(text, (size_t)bytes, 0, NULL) : NULL;
    if (!json_is_object(json_object_get(f->index, "files"))) { /* all files are fetched again */
        json_decref(f->index);
        f->index = json_pack("{s:s, s:{}}", "url", f->url, "files");
    }
    return STATUS_OK;
}

static status write_index(const fetch *f)
{
    AUTO_FREE char *path = must_format("%s/" INDEX, f->folder),
                   *text = json_dumps(f->index, JSON_INDENT(1) | JSON_SORT_KEYS);
    return atomic_replace(path, text, (int64_t)strlen(text));
}

/* True if the local file has the object's size and ETag. A store without ETags has no versions: always false. */
static bool is_current(const fetch *f, const char *name, const object_entry *e)
{
    struct stat facts;
    AUTO_FREE char *path = must_format("%s/%s", f->folder, name);
    bool there = stat(path, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size == e->bytes;
    const json_t *known = json_object_get(json_object_get(f->index, "files"), name);
    const char *etag = json_string_value(json_object_get(known, "etag"));
    return there && etag && *etag && strcmp(etag, e->etag) == 0;
}

/* Removes files that the store no longer has or has changed, so that versions do not mix. */
static status remove_stale(const fetch *f)
{
    const char *name;
    json_t *value, *files = json_object_get(f->index, "files");
    void *next;
    json_object_foreach_safe(files, next, name, value)
    {
        const object_entry *e = find_object(f, name);
        if (e && is_file_name(name) && is_current(f, name, e))
            continue;
        AUTO_FREE char *path = must_format("%s/%s", f->folder, name);
        status removed = is_file_name(name) ? atomic_remove(path) : STATUS_OK;
        json_object_del(files, name);
        TRY(removed);
    }
    return write_index(f);
}

/* ---- fetching ---------------------------------------------------------------------------------------------------- */

static void list_missing(fetch *f)
{
    f->item = must_calloc((unsigned long)f->list.count + 1, sizeof *f->item);
    for (int64_t i = 0; i < f->list.count; i++) {
        const object_entry *e = &f->list.entry[i];
        const char *name = e->key + strlen(f->prefix);
        if (e->folder || !is_needed(name))
            continue;
        f->bytes += e->bytes;
        if (is_current(f, name, e)) {
            f->local_bytes += e->bytes;
            continue;
        }
        f->item[f->items++] =
            (download_item){.key = e->key,
                            .etag = e->etag,
                            .path = must_format("%s/%s", f->folder, name),
                            .bytes = e->bytes,
                            .header = f->part == FOLDER_HEADERS && reading_ends_in(name, ".safetensors")};
    }
}

static status check_room(const fetch *f)
{
    struct statvfs disk;
    int64_t wanted = 0;
    for (int i = 0; i < f->items; i++)
        wanted += f->item[i].header ? 0 : f->item[i].bytes;
    if (statvfs(f->folder, &disk) != 0)
        return STATUS_OK; /* a write then reports a full disk */
    int64_t room = (int64_t)disk.f_bavail * (int64_t)disk.f_frsize;
    if (wanted > 0 && room - wanted < DISK_RESERVE)
        return status_fail(STATUS_FAILED,
                           "%s: %s are to be fetched into %s, whose disk has %s free, and 1 GiB is left: "
                           "free some, or set XDG_CACHE_HOME",
                           f->url, BYTES_TEXT(wanted), f->folder, BYTES_TEXT(room));
    return STATUS_OK;
}

static void record_fetched(void *context, int item)
{
    fetch *f = context;
    const download_item *it = &f->item[item];
    json_object_set_new(json_object_get(f->index, "files"), it->key + strlen(f->prefix),
                        json_pack("{s:s, s:I}", "etag", it->etag, "bytes", (json_int_t)it->bytes));
    if (write_index(f) != STATUS_OK) /* the next run fetches this file again */
        log_warn("%s", status_message());
}

static void log_progress(void *context, int64_t bytes)
{
    const fetch *f = context;
    const double now = clock_seconds();
    (void)!pwrite(f->lock, &now, sizeof now, 0); /* renews the lock, by whatever number */
    log_line("%s: %s of %s, %s/s\n", f->url, BYTES_TEXT(f->local_bytes + bytes), BYTES_TEXT(f->bytes),
             BYTES_TEXT((double)bytes / (clock_seconds() - f->start_seconds)));
}

static status fetch_missing(fetch *f)
{
    list_missing(f);
    TRY(check_room(f));
    const char *all = BYTES_TEXT(f->bytes);
    if (f->items == 0) {
        log_line("%s: %s, kept in %s\n", f->url, all, f->folder);
        return STATUS_OK;
    }
    if (f->part == FOLDER_HEADERS)
        log_line("%s: names and sizes of %s\n", f->url, all);
    else
        log_line("%s: %s, of which %s are here, into %s\n", f->url, all, BYTES_TEXT(f->local_bytes), f->folder);
    f->start_seconds = clock_seconds();
    const download_watcher watcher = {.finished = record_fetched, .progress = log_progress, .context = f};
    return download(f->bucket, f->item, f->items, 0600, &watcher, NULL);
}

static status fetch_all(fetch *f)
{
    TRY(object_open(&f->s, f->bucket, NULL));
    TRY(choose_checkpoint(f));
    TRY(name_folder(f));
    TRY(lock_folder(f));
    AUTO_FREE char *mark = must_format("%s/" FOLDER_NO_VALUES, f->folder);
    if (f->part == FOLDER_HEADERS)
        TRY(atomic_replace(mark, "", 0));
    TRY(read_index(f));
    TRY(remove_stale(f));
    return fetch_missing(f);
}

static void free_fetch(fetch *f)
{
    for (int i = 0; i < f->items; i++)
        free((char *)f->item[i].path);
    free(f->item);
    object_listing_free(&f->list);
    object_close(f->s);
    json_decref(f->index);
    free(f->folder);
    free(f->bucket);
    free(f->prefix);
    if (f->lock >= 0)
        close(f->lock);
}

status folder_local(char **out, const char *path, folder_part part)
{
    RELEASED_BY(free_fetch) fetch f = {.url = path, .part = part, .lock = -1};
    if (!object_is_url(path)) {
        AUTO_FREE char *latest = must_format("%s/latest", path), *config = must_format("%s/config.json", latest);
        *out = atomic_exists(config) ? TAKE(latest) : must_strdup(path);
        return STATUS_OK;
    }
    TRY(object_split(&f.bucket, &f.prefix, path));
    if (*f.prefix && f.prefix[strlen(f.prefix) - 1] != '/') {
        char *prefix = must_format("%s/", f.prefix);
        free(f.prefix);
        f.prefix = prefix;
    }
    TRY(fetch_all(&f));
    *out = TAKE(f.folder);
    return STATUS_OK;
}
