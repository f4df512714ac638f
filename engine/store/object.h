/* An object store, chosen by its URL's scheme: s3:// speaks S3, AWS's or another's (AWS_ENDPOINT_URL). Reads objects of
 * one bucket in ranges, lists, writes and removes them.
 *
 * One thread at a time uses a handle, which the caller owns until object_close; concurrent threads have a handle each.
 * It keeps its connection open from call to call. Credentials and endpoint come from AWS's environment variables and
 * files (account.h); https is verified, and every request is signed.
 *
 * Transient failures are retried: connections that fail or are cut, answers 500, 502, 503, 504, 429 and 408, bodies
 * shorter than they say (a range continues where it was cut), checksums that do not match, a server that is silent for
 * half a minute. Pauses double from a tenth of a second to ten, at random within their half, and no shorter than the
 * server's Retry-After; a call fails after `patience` seconds without progress, which bytes are at 1 MiB/s. A whole
 * answer has 30 s (or `patience`, if that is less) and 1 s for each MiB; a list of pages has both, and 1 s for each
 * 1,000 objects. Expired credentials are read again, a wrong region is replaced by the answer's, a wrong clock is
 * corrected by the server's. All else fails at once. A failure's message names the operation and object, the endpoint's
 * host, the reason in the store's words and a remedy; no message, log or list of processes has a credential.
 *
 * object_look, object_read, object_put, object_remove and object_upload_part make no allocation of 64 KiB or more of
 * their own, so they may run beside training (memory/seal.h); lists and the end of an upload of hundreds of parts may
 * make larger ones.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory/scope.h"
#include "memory/status.h"

typedef struct object_store object_store;

typedef struct object_limits {
    double patience;         /* seconds without progress until a call fails; 0: 120 */
    double first_pause;      /* seconds before the first retry; 0: 0.1 */
    double until;            /* time (memory/clock.h) at which all calls of the handle end; 0: never */
    const atomic_bool *stop; /* any thread may set it: a call then fails soon; or NULL */
} object_limits;

/* True if the path begins with s3://. */
bool object_is_url(const char *path);
/* True if it names a prefix, as a folder: it ends in '/', or is a bucket alone. */
bool object_is_folder(const char *path);
/* Splits "s3://BUCKET/KEY"; the caller frees both. The key is "" where there is none. */
status object_split(char **bucket, char **key, const char *url);

/* Loads the credentials without contacting the store. `limits` NULL: the defaults. */
status object_open(object_store **out, const char *bucket, const object_limits *limits);
/* Opens the store of an object's URL; the caller frees the key. */
status object_open_url(object_store **out, char **key, const char *url, const object_limits *limits);
void object_close(object_store *s); /* NULL is accepted; overwrites the credentials */
AUTO_CLOSES(object_store, object_close)

/* Returns "http://HOST:PORT" of the environment, or "" for AWS. */
const char *object_endpoint(const object_store *s);

/* True if the store has refused the last call that failed, by an answer that stays the same (403, no such bucket). */
bool object_refused(const object_store *s);

/* Counts of a handle so far. */
typedef struct object_counts {
    int64_t requests, retries;         /* retries: requests that repeat a failed one */
    int64_t bytes_read, bytes_written; /* body bytes */
} object_counts;
const object_counts *object_counted(const object_store *s);

enum { OBJECT_ETAG = 160 };

typedef struct object_facts {
    bool there;
    int64_t bytes;
    char etag[OBJECT_ETAG]; /* in quotes; differs between versions; "": the store has none */
    bool has_crc32c;        /* the server states the whole object's checksum */
    uint32_t crc32c;        /* as in engine/system/crc32c.h */
} object_facts;

/* Sets out->there to false if the store has no such object; a store that does not let the caller list answers "denied"
 * instead, which is a failure. */
status object_look(object_facts *out, object_store *s, const char *key);

/* Reads exactly the bytes [offset, offset + bytes) of an object into `to`. With an `etag` of object_look() or a list,
 * fails if the object is another version now; NULL or "": any, but one version from the first byte to the last. A range
 * that is the whole object is checked against the store's checksum, if it has one. */
status object_read(void *to, object_store *s, const char *key, int64_t offset, int64_t bytes, const char *etag);
/* Reads a small object whole and appends a 0; the caller frees it. Fails above `most` bytes. *out is NULL if there is
 * no such object. */
status object_read_whole(char **out, int64_t *bytes, object_store *s, const char *key, int64_t most);

/* An object of a list, or a folder: a key up to the first '/' after the prefix. */
typedef struct object_entry {
    char *key; /* whole, with the prefix; a folder's ends in '/' */
    bool folder;
    int64_t bytes;
    char *etag;
} object_entry;

typedef struct object_listing {
    int64_t count;
    object_entry *entry; /* [count], ascending by key */
} object_listing;

/* Lists objects with keys that begin with `prefix`: all if `deep`, else only keys without a further '/', and the
 * folders. Fails above `most` objects, and if the server sends keys outside the prefix, not ascending into something
 * new, or with control characters. */
status object_list(object_listing *out, object_store *s, const char *prefix, bool deep, int64_t most);
void object_listing_free(object_listing *l); /* one that is all zero is accepted */

/* Writes a whole object of at most 5 GiB with its checksum; replaces an existing one. */
status object_put(object_store *s, const char *key, const void *data, int64_t bytes);
/* Writes an object unless its key is taken; *made false: one with other bytes exists, and stays. One of several
 * concurrent writers succeeds if the store knows conditional writes; otherwise the object is read back, so that the
 * others fail unless they write within the same moment. An object with the same bytes counts as made by this call (its
 * answer may have been lost), so the bytes should name their writer. */
status object_put_new(bool *made, object_store *s, const char *key, const void *data, int64_t bytes);
/* Removes an object; succeeds if it does not exist. */
status object_remove(object_store *s, const char *key);

/* An upload in parts: the object appears whole once all parts are there. The caller owns it from begin to end or abort,
 * each of which frees it. Threads may write parts concurrently and in any order, each with a handle of its own for the
 * same bucket, and may write a part again. */
typedef struct object_upload object_upload;
enum {
    OBJECT_PART_LEAST = 5 << 20,
    OBJECT_PARTS = 10000
}; /* least bytes of every part but the last; greatest number of parts */

status object_upload_begin(object_upload **out, object_store *s, const char *key, int parts);
/* part: counted from 0 */
status object_upload_part(object_upload *u, object_store *s, int part, const void *data, int64_t bytes);
/* Publishes the object; fails unless its size is the parts' sum. */
status object_upload_end(object_upload *u, object_store *s);
/* Tells the store to forget the parts, once and without much waiting; NULL is accepted. Keeps the message of an earlier
 * failure. */
void object_upload_abort(object_upload *u, object_store *s);
/* Aborts uploads that earlier processes began below `prefix` and never ended: their parts cost money. */
status object_upload_abort_all(object_store *s, const char *prefix);

/* ---- a folder kept on this machine (folder.c) ---- */

/* Mirrors a store's folder s3://BUCKET/PREFIX on this machine: fetches its files, keeps them, and reuses them while the
 * store's objects have the same size and ETag.
 *
 * They are kept below $XDG_CACHE_HOME/phalanx (~/.cache/phalanx), one folder for each prefix, readable by its owner.
 * Processes that want the same folder at once wait for the first, which fetches. A prefix that holds `latest` or
 * checkpoints/latest means that checkpoint's folder. Only the prefix's own objects are fetched, without subfolders, and
 * no weights in formats other than safetensors.
 */

/* This file marks folders fetched as FOLDER_HEADERS: their files have no values to read. */
#define FOLDER_NO_VALUES ".no-values"

typedef enum folder_part {
    FOLDER_WHOLE,
    FOLDER_HEADERS, /* fetches headers and sizes of safetensors files without values: for shapes and names only */
} folder_part;

/* Returns the folder's path on this machine, which the caller frees; a path that is not s3:// is copied, and of a run's
 * exports the latest one's is returned. */
status folder_local(char **out, const char *path, folder_part part);

/* ---- a folder of this machine (upload.c) ---- */

typedef struct upload_target {
    const char *bucket, *root; /* objects are ROOT and a file's name; root: "" or ends in a slash */
    object_limits limits;
    status (*asked)(void); /* asked between parts by any thread: a failure ends the upload; or NULL */
} upload_target;

/* Uploads the regular files of a folder, without subfolders, so that readers find it whole or not at all: the file
 * `last`, without which the others have no meaning (an index, a config.json), is removed from the store first, and
 * written last. A long file is an upload of parts, several at once; a failure removes its parts, and the next upload
 * of the same file removes parts that a killed process left. */
status upload_folder(const upload_target *to, const char *folder, const char *last);
