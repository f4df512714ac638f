#include "engine/store/object.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/crc32c.h"
#include "engine/store/s3/s3_internal.h"
#include "memory/log.h"
#include "memory/scope.h"

static const double PATIENCE = 120; /* seconds */

bool object_is_url(const char *path)
{
    return strncmp(path, "s3://", 5) == 0;
}

bool object_is_folder(const char *path)
{
    return object_is_url(path) && (path[strlen(path) - 1] == '/' || !strchr(path + 5, '/'));
}

status object_split(char **bucket, char **key, const char *url)
{
    enum { MOST_KEY = 1024, MOST_BUCKET = 255 };
    /* bucket names of all stores: AWS is stricter; others allow upper-case letters and '_' */
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_";
    const char *path = object_is_url(url) ? url + 5 : "", *slash = strchr(path, '/');
    AUTO_FREE char *name = must_format("%.*s", (int)strcspn(path, "/"), path);
    if (!*name || *name == '.' || name[strspn(name, letters)] || strlen(name) > MOST_BUCKET)
        return status_fail(STATUS_USAGE, "%s is no path of an object store: s3://BUCKET/KEY", url);
    if (slash && (strlen(slash + 1) > MOST_KEY || log_has_control(slash + 1)))
        return status_fail(STATUS_USAGE, "the key of an s3:// path has a control character or more than 1,024 bytes");
    *key = must_strdup(slash ? slash + 1 : "");
    *bucket = TAKE(name);
    return STATUS_OK;
}

status object_open(object_store **out, const char *bucket, const object_limits *limits)
{
    AUTO(object_store) *s = must_calloc(1, sizeof *s);
    s->bucket = must_strdup(bucket);
    s->limits = limits ? *limits : (object_limits){0};
    if (s->limits.patience <= 0)
        s->limits.patience = PATIENCE;
    TRY(account_load(&s->who));
    TRY(http_open(&s->http));
    *out = TAKE(s);
    return STATUS_OK;
}

status object_open_url(object_store **out, char **key, const char *url, const object_limits *limits)
{
    AUTO_FREE char *bucket = NULL, *found = NULL;
    TRY(object_split(&bucket, &found, url));
    TRY(object_open(out, bucket, limits));
    *key = TAKE(found);
    return STATUS_OK;
}

void object_close(object_store *s)
{
    if (!s)
        return;
    http_close(s->http);
    account_wipe(&s->who);
    free(s->bucket);
    free(s);
}

const char *object_endpoint(const object_store *s)
{
    return s->who.endpoint ? s->who.endpoint : "";
}

bool object_refused(const object_store *s)
{
    return s->refused;
}

const object_counts *object_counted(const object_store *s)
{
    return &s->counts;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static status head_object(s3_reply *r, object_store *s, const char *key)
{
    s3_call c = {.method = "HEAD", .doing = "look at", .key = key, .may_miss = true};
    c.header[c.headers++] = (http_pair){"x-amz-checksum-mode", "ENABLED"};
    return s3_perform(r, s, &c);
}

status object_look(object_facts *out, object_store *s, const char *key)
{
    RELEASED_BY(s3_reply_free) s3_reply r = {0};
    status result = head_object(&r, s, key);
    /* Requests the first byte, since an answer to HEAD has no body to state the reason; this may correct a cause. */
    char byte;
    s3_call ask = {.method = "GET", .doing = "look at", .key = key, .to = &byte, .wanted = 1, .may_miss = true};
    if (result != STATUS_OK && r.code >= 300 && r.code < 500 && s3_do(s, &ask) == STATUS_OK) {
        s3_reply_free(&r);
        result = head_object(&r, s, key);
    } else if (result == STATUS_OK && r.code == 404 && !s->has_bucket) {
        result = s3_do(s, &ask);
    }
    TRY(result);
    s->has_bucket = true;
    if (r.code != 404 && r.length < 0)
        return s3_refuse(s, &(s3_call){.doing = "look at", .key = key},
                         "the store does not say how long it is, or says more than 64 TiB");
    *out = (object_facts){.there = r.code != 404, .bytes = r.length};
    memcpy(out->etag, r.etag, sizeof out->etag);
    out->has_crc32c = s3_object_checksum(&out->crc32c, &r);
    return STATUS_OK;
}

static status get_range(void *to, object_store *s, const char *key, int64_t offset, int64_t bytes, const char *etag,
                        bool whole)
{
    if (bytes == 0)
        return STATUS_OK;
    s3_call c = {
        .method = "GET", .doing = "read", .key = key, .to = to, .offset = offset, .wanted = bytes, .whole = whole};
    snprintf(c.etag, sizeof c.etag, "%s", etag && strncmp(etag, "W/", 2) != 0 ? etag : "");
    return s3_do(s, &c);
}

status object_read(void *to, object_store *s, const char *key, int64_t offset, int64_t bytes, const char *etag)
{
    return get_range(to, s, key, offset, bytes, etag, false);
}

status object_read_whole(char **out, int64_t *bytes, object_store *s, const char *key, int64_t most)
{
    object_facts o = {0};
    TRY(object_look(&o, s, key));
    *out = NULL;
    if (!o.there)
        return STATUS_OK;
    if (o.bytes > most)
        return s3_refuse(s, &(s3_call){.doing = "read", .key = key}, "it is larger than such a file may be");
    AUTO_FREE char *text = must_alloc((unsigned long)o.bytes + 1);
    TRY(get_range(text, s, key, 0, o.bytes, o.etag, true));
    text[o.bytes] = 0;
    *out = TAKE(text);
    *bytes = o.bytes;
    return STATUS_OK;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static status put_object(object_store *s, const char *key, const void *data, int64_t bytes, bool new)
{
    char checksum[9];
    s3_checksum_text(checksum, crc32c(0, data, bytes));
    s3_call c = {.method = "PUT", .doing = "write", .key = key, .body = data, .body_bytes = bytes, .may_refuse = new};
    c.header[c.headers++] = (http_pair){"x-amz-checksum-crc32c", checksum};
    if (new)
        c.header[c.headers++] = (http_pair){"if-none-match", "*"};
    return s3_do(s, &c);
}

status object_put(object_store *s, const char *key, const void *data, int64_t bytes)
{
    return put_object(s, key, data, bytes, false);
}

/* Looks before and after, for stores that ignore the condition and for lost answers. */
status object_put_new(bool *made, object_store *s, const char *key, const void *data, int64_t bytes)
{
    object_facts o = {0};
    AUTO_FREE char *there = NULL;
    int64_t length = 0;
    TRY(object_look(&o, s, key));
    if (!o.there) {
        TRY(put_object(s, key, data, bytes, true));
        TRY(object_look(&o, s, key));
    }
    if (o.there && o.bytes == bytes)
        TRY(object_read_whole(&there, &length, s, key, bytes));
    *made = there && length == bytes && memcmp(there, data, (size_t)bytes) == 0;
    return STATUS_OK;
}

status object_remove(object_store *s, const char *key)
{
    return s3_do(s, &(s3_call){.method = "DELETE", .doing = "remove", .key = key, .may_miss = true});
}
