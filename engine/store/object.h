/* An object store, by the scheme of its URL: s3://, which speaks S3, whether AWS's or another's (AWS_ENDPOINT_URL).
 * Objects of one bucket are read in ranges, listed, written and removed.
 *
 * A handle is one thread's at a time, and its caller's until object_close; threads that work beside each other have a
 * handle each. It keeps its connection open from call to call. Who asks, and where, comes from AWS's environment
 * variables and files (account.h); https is verified, and every request is signed.
 *
 * What may pass is tried again: connections that fail or are cut, answers 500, 502, 503, 504, 429 and 408, bodies
 * shorter than they say (a range continues where it was cut), checksums that do not match, a server that is silent for
 * half a minute. Pauses double from a tenth of a second to ten, at random within their half, and no shorter than the
 * server's Retry-After; a call fails after `patience` seconds without progress. Credentials that have expired are read
 * again, a wrong region is taken from the answer, a clock that is wrong is set right by the server's. All else fails
 * at once. A failure's message says what (operation and object), where (the endpoint's host), why and what to do; no
 * message, log or list of processes has a credential.
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
    double first_pause;      /* seconds before the second try; 0: 0.1 */
    const atomic_bool *stop; /* when it becomes true, by any thread, a call fails soon; NULL: it never does */
} object_limits;

/* Does the path begin with s3:// ? */
bool object_is_url(const char *path);
/* "s3://BUCKET/KEY": both are the caller's to free; the key is "" where there is none. */
status object_split(char **bucket, char **key, const char *url);

/* Loads the credentials; nothing is asked yet. `limits` NULL: the defaults. */
status object_open(object_store **out, const char *bucket, const object_limits *limits);
/* The store of an object, whose key is the caller's to free. */
status object_open_url(object_store **out, char **key, const char *url, const object_limits *limits);
void object_close(object_store *s); /* NULL is accepted; overwrites the credentials */
AUTO_CLOSES(object_store, object_close)

/* "http://HOST:PORT" of the environment, or "" for AWS. */
const char *object_endpoint(const object_store *s);

/* What a handle has done so far. */
typedef struct object_counts {
    int64_t requests, retries;         /* retries: of these requests, those that repeat one that failed */
    int64_t bytes_read, bytes_written; /* of bodies */
} object_counts;
const object_counts *object_counted(const object_store *s);

enum { OBJECT_ETAG = 160 };

typedef struct object_facts {
    bool there;
    int64_t bytes;
    char etag[OBJECT_ETAG]; /* in quotes; another one is another version; "": the store says none */
    bool has_crc32c;        /* the server knows the checksum of the whole object */
    uint32_t crc32c;        /* engine/system/crc32c.h's */
} object_facts;

/* out->there is false where the store says that there is no such object; a store that does not let the caller list
 * says "denied" instead, which is a failure. */
status object_look(object_facts *out, object_store *s, const char *key);

/* Exactly the bytes [offset, offset + bytes) of an object, into `to`. `etag` of object_look() or a list: fails if the
 * object is another version now; NULL or "": any, but one version from the first byte to the last. A range that is the
 * whole object is held to the store's checksum, if it has one. */
status object_read(void *to, object_store *s, const char *key, int64_t offset, int64_t bytes, const char *etag);
/* A small object whole, and a 0 after it, the caller's to free: at most `most` bytes, or it fails. *out is NULL where
 * there is no such object. */
status object_read_whole(char **out, int64_t *bytes, object_store *s, const char *key, int64_t most);

/* An object of a list, or a folder: the part of keys up to a '/' behind the prefix. */
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

/* The objects whose keys begin with `prefix`: `deep`, all of them; else those without a further '/', and the folders.
 * More than `most` are a failure. What is not below the prefix, not ascending into something new, or has a key with
 * control characters is a failure: the server lies. */
status object_list(object_listing *out, object_store *s, const char *prefix, bool deep, int64_t most);
void object_listing_free(object_listing *l); /* one that is all zero is accepted */

/* An object of at most 5 GiB whole, with its checksum; one that is there is replaced. */
status object_put(object_store *s, const char *key, const void *data, int64_t bytes);
/* The same, if there is no such object: *made false: there is one, with other bytes, and it stays. Of several writers
 * at once one succeeds, if the store knows conditional writes; where it does not, the object is read back, so that the
 * others fail unless they write within the same moment. An object with the same bytes counts as made by this call (its
 * answer may have been lost), so the bytes should say whose they are. */
status object_put_new(bool *made, object_store *s, const char *key, const void *data, int64_t bytes);
/* What is not there is removed already. */
status object_remove(object_store *s, const char *key);

/* An object in parts, which appears when all are there, and then whole: an upload is its caller's from begin to end or
 * abort, each of which frees it. Parts are written in any order, by several threads at once if each has a handle of its
 * own for the same bucket, and may be written again. */
typedef struct object_upload object_upload;
enum {
    OBJECT_PART_LEAST = 5 << 20,
    OBJECT_PARTS = 10000
}; /* bytes of every part but the last, at least; parts, at most */

status object_upload_begin(object_upload **out, object_store *s, const char *key, int parts);
/* part: from 0 */
status object_upload_part(object_upload *u, object_store *s, int part, const void *data, int64_t bytes);
/* Publishes the object; it has then the size that the parts had, or this fails. */
status object_upload_end(object_upload *u, object_store *s);
/* Tells the store to forget the parts, once and without much waiting; NULL is accepted. The message of an earlier
 * failure is kept. */
void object_upload_abort(object_upload *u, object_store *s);
/* The same for uploads that earlier processes have begun below `prefix`, and never ended: their parts cost money. */
status object_upload_abort_all(object_store *s, const char *prefix);

/* ---- a folder kept on this machine (folder.c) ---- */

/* A folder of a store, s3://BUCKET/PREFIX, as one on this machine: its files are fetched, kept, and used again while
 * the store's objects are the same by size and ETag.
 *
 * They are kept below $XDG_CACHE_HOME/phalanx (~/.cache/phalanx), one folder for each prefix, readable by its owner.
 * Processes that want the same folder at once wait for the first, which fetches. Of a prefix that holds `latest` or
 * checkpoints/latest, it is the checkpoint's folder that is meant. Only the prefix's own objects are fetched, not those
 * of folders below it, and no weights in other formats than safetensors.
 */

/* A file of this name is in folders that were fetched as FOLDER_HEADERS: nobody may take values from their files. */
#define FOLDER_NO_VALUES ".no-values"

typedef enum folder_part {
    FOLDER_WHOLE,
    FOLDER_HEADERS, /* safetensors files have their headers and sizes, but no values: for shapes and names only */
} folder_part;

/* The path of the folder on this machine, the caller's; of a path that is not s3:// the path itself. */
status folder_local(char **out, const char *path, folder_part part);
