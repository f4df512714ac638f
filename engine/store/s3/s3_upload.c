/* Uploads objects in parts. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <openssl/evp.h>

#include "engine/system/crc32c.h"
#include "engine/store/s3/s3_internal.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { MOST_ID = 1024 };

typedef struct part {
    int64_t bytes; /* -1: it is not there yet */
    char etag[OBJECT_ETAG], crc32c[9];
    bool has_crc32c; /* also confirmed by the store */
} part;

struct object_upload {
    char *key, *id;
    int parts;
    part *part; /* [parts] */
};

static void free_upload(object_upload *u)
{
    free(u->key);
    free(u->id);
    free(u->part);
    free(u);
}

/* ---- begin, parts ------------------------------------------------------------------------------------------------ */

static status take_id(void *context, const char *path, const char *text)
{
    const char *name = strchr(path, '/'); /* stores differ in the root's name */
    if (name && strcmp(name, "/UploadId") == 0)
        s3_take_word(context, MOST_ID, text);
    return STATUS_OK;
}

status object_upload_begin(object_upload **out, object_store *s, const char *key, int parts)
{
    MUST(parts > 0 && parts <= OBJECT_PARTS, "an upload of %d parts", parts);
    RELEASED_BY(s3_reply_free) s3_reply r = {0};
    char id[MOST_ID] = "";
    s3_call c = {.method = "POST", .doing = "begin to write", .key = key};
    c.query[c.queries++] = (http_pair){"uploads", ""};
    c.header[c.headers++] = (http_pair){"x-amz-checksum-algorithm", "CRC32C"};
    TRY(s3_perform(&r, s, &c));
    if (!r.text || xml_read(r.text, r.bytes, take_id, id) != STATUS_OK || !*id)
        return s3_refuse(s, &c, "the store does not name the upload");
    object_upload *u = must_calloc(1, sizeof *u);
    *u = (object_upload){must_strdup(key), must_strdup(id), parts, must_calloc((unsigned long)parts, sizeof(part))};
    for (int i = 0; i < parts; i++)
        u->part[i].bytes = -1;
    *out = u;
    return STATUS_OK;
}

status object_upload_part(object_upload *u, object_store *s, int number, const void *data, int64_t bytes)
{
    MUST(number >= 0 && number < u->parts, "part %d of %d", number, u->parts);
    RELEASED_BY(s3_reply_free) s3_reply r = {0};
    part made = {.bytes = bytes};
    char name[16];
    snprintf(name, sizeof name, "%d", number + 1);
    s3_checksum_text(made.crc32c, crc32c(0, data, bytes));
    s3_call c = {.method = "PUT", .doing = "write a part of", .key = u->key, .body = data, .body_bytes = bytes};
    c.query[c.queries++] = (http_pair){"partNumber", name};
    c.query[c.queries++] = (http_pair){"uploadId", u->id};
    c.header[c.headers++] = (http_pair){"x-amz-checksum-crc32c", made.crc32c};
    TRY(s3_perform(&r, s, &c));
    if (!*r.etag)
        return s3_refuse(s, &c, "the store does not say the part's ETag");
    made.has_crc32c = *r.crc32c != 0;
    if (made.has_crc32c && strcmp(r.crc32c, made.crc32c) != 0)
        return s3_refuse(s, &c, "the store has other bytes than were sent");
    memcpy(made.etag, r.etag, sizeof made.etag);
    u->part[number] = made;
    return STATUS_OK;
}

/* ---- end --------------------------------------------------------------------------------------------------------- */

/* Computes the ETag that stores give to an object of parts: the MD5 of the parts' MD5s and their number, in quotes; ""
 * if a part's ETag is not an MD5. */
static void expected_etag(char out[OBJECT_ETAG], const object_upload *u)
{
    AUTO_FREE unsigned char *sums = must_alloc(16 * (unsigned long)u->parts);
    unsigned char hash[EVP_MAX_MD_SIZE];
    bool known = true;
    *out = 0;
    for (int i = 0; i < u->parts && known; i++) {
        const char *text = u->part[i].etag + (u->part[i].etag[0] == '"');
        known = strspn(text, "0123456789abcdefABCDEF") == 32;
        for (int k = 0; k < 16 && known; k++) {
            const char digits[] = {text[2 * k], text[2 * k + 1], 0};
            sums[16 * i + k] = (unsigned char)strtoul(digits, NULL, 16);
        }
    }
    known = known && EVP_Digest(sums, 16 * (size_t)u->parts, hash, NULL, EVP_md5(), NULL) == 1;
    size_t used = known ? (size_t)snprintf(out, OBJECT_ETAG, "\"") : 0;
    for (int k = 0; k < 16 && known; k++)
        used += (size_t)snprintf(out + used, OBJECT_ETAG - used, "%02x", hash[k]);
    if (known)
        snprintf(out + used, OBJECT_ETAG - used, "-%d\"", u->parts);
}

static void print_parts(FILE *out, const object_upload *u)
{
    fputs("<CompleteMultipartUpload>", out);
    for (int i = 0; i < u->parts; i++) {
        const part *p = &u->part[i];
        fprintf(out, "<Part><PartNumber>%d</PartNumber><ETag>", i + 1);
        for (const char *at = p->etag; *at; at++)
            fprintf(out, *at == '"' ? "&quot;" : *at == '&' ? "&amp;" : *at == '<' ? "&lt;" : "%c", *at);
        fputs("</ETag>", out);
        if (p->has_crc32c)
            fprintf(out, "<ChecksumCRC32C>%s</ChecksumCRC32C>", p->crc32c);
        fputs("</Part>", out);
    }
    fputs("</CompleteMultipartUpload>", out);
}

/* Checks that the object exists and has the parts' bytes: the answer to its completion may have been lost. */
static status check_object(object_store *s, const object_upload *u, const s3_call *c, bool answered)
{
    object_facts o;
    char etag[OBJECT_ETAG];
    int64_t bytes = 0;
    for (int i = 0; i < u->parts; i++)
        bytes += u->part[i].bytes;
    TRY(object_look(&o, s, u->key));
    expected_etag(etag, u);
    if (o.there && o.bytes == bytes && (answered || strcmp(o.etag, etag) == 0))
        return STATUS_OK;
    return s3_refuse(s, c,
                     !o.there           ? "the store has not made an object of the parts"
                     : o.bytes != bytes ? "the object has another size than its parts"
                                        : "the store has forgotten the upload, and has another object");
}

status object_upload_end(object_upload *u, object_store *s)
{
    for (int i = 0; i < u->parts; i++)
        MUST(u->part[i].bytes >= 0, "part %d of %d of %s is missing", i, u->parts, u->key);
    RELEASED_BY(s3_reply_free) s3_reply r = {0};
    AUTO_FREE char *text = MUST_PRINT(out, print_parts(out, u));
    s3_call c = {.method = "POST",
                 .doing = "end to write",
                 .key = u->key,
                 .body = text,
                 .body_bytes = (int64_t)strlen(text),
                 .may_fail_late = true,
                 .may_miss = true};
    c.query[c.queries++] = (http_pair){"uploadId", u->id};
    status result = s3_perform(&r, s, &c);
    if (result == STATUS_OK)
        result = check_object(s, u, &c, r.code == 200);
    if (result == STATUS_OK)
        free_upload(u);
    else
        object_upload_abort(u, s);
    return result;
}

/* ---- abort ------------------------------------------------------------------------------------------------------- */

static status abort_one(object_store *s, const char *key, const char *id, bool once)
{
    s3_call c = {.method = "DELETE", .doing = "abort writing", .key = key, .may_miss = true, .once = once};
    c.query[c.queries++] = (http_pair){"uploadId", id};
    return s3_do(s, &c);
}

void object_upload_abort(object_upload *u, object_store *s)
{
    if (!u)
        return;
    AUTO_FREE char *message = must_strdup(status_message());
    bool refused = s->refused;
    (void)abort_one(s, u->key, u->id, true);
    s->refused = refused;
    (void)status_fail(STATUS_FAILED, "%s", message);
    free_upload(u);
}

typedef struct open_uploads {
    object_store *s;
    const char *prefix;
    int count;
    char *key, *id; /* the next upload, as read so far */
    status aborted;
} open_uploads;

static void free_uploads(open_uploads *o)
{
    free(o->key);
    free(o->id);
}

static status take_upload(void *context, const char *path, const char *text)
{
    open_uploads *o = context;
    path = strchr(path, '/') ? strchr(path, '/') + 1 : ""; /* path within the root */
    char **to = strcmp(path, "Upload/Key") == 0 ? &o->key : strcmp(path, "Upload/UploadId") == 0 ? &o->id : NULL;
    if (to) {
        free(*to);
        *to = must_strdup(text);
    }
    if (strcmp(path, "Upload") != 0 || !o->key || !o->id)
        return STATUS_OK;
    AUTO_FREE char *key = TAKE(o->key), *id = TAKE(o->id);
    if (strncmp(key, o->prefix, strlen(o->prefix)) != 0)
        return STATUS_OK; /* not requested */
    o->count++;
    return o->aborted = abort_one(o->s, key, id, false);
}

/* Aborts one page of at most 1,000 uploads. */
static status abort_page(int *count, object_store *s, const char *prefix)
{
    RELEASED_BY(s3_reply_free) s3_reply r = {0};
    RELEASED_BY(free_uploads) open_uploads o = {.s = s, .prefix = prefix};
    s3_call c = {.method = "GET", .doing = "list uploads of", .key = ""};
    c.query[c.queries++] = (http_pair){"uploads", ""};
    c.query[c.queries++] = (http_pair){"prefix", prefix};
    TRY(s3_perform(&r, s, &c));
    status read = r.text ? xml_read(r.text, r.bytes, take_upload, &o) : STATUS_FAILED;
    *count = o.count;
    return read == STATUS_OK || o.aborted != STATUS_OK ? read : s3_refuse(s, &c, "the store's list is none");
}

status object_upload_abort_all(object_store *s, const char *prefix)
{
    enum { PAGES = 100 };
    int count = 1;
    for (int i = 0; i < PAGES && count > 0; i++)
        TRY(abort_page(&count, s, prefix));
    return STATUS_OK;
}
