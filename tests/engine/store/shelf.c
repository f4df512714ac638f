#include "tests/engine/store/shelf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <openssl/evp.h>

#include "engine/system/crc32c.h"
#include "engine/store/s3/signature.h"
#include "memory/log.h"
#include "memory/scope.h"

void shelf_checksum(char out[9], const void *data, int64_t bytes)
{
    uint32_t crc = crc32c(0, data, bytes);
    const unsigned char big[] = {(unsigned char)(crc >> 24), (unsigned char)(crc >> 16), (unsigned char)(crc >> 8),
                                 (unsigned char)crc};
    char text[16];
    EVP_EncodeBlock((unsigned char *)text, big, 4);
    memcpy(out, text, 9);
}

static void hash(unsigned char out[16], const void *data, int64_t bytes)
{
    unsigned char sum[EVP_MAX_MD_SIZE];
    EVP_Digest(data, (size_t)bytes, sum, NULL, EVP_md5(), NULL);
    memcpy(out, sum, 16);
}

static void write_etag(char out[64], const unsigned char sum[16], int parts)
{
    char digits[33];
    for (int i = 0; i < 16; i++)
        sprintf(digits + 2 * i, "%02x", sum[i]);
    snprintf(out, 64, parts ? "\"%s-%d\"" : "\"%s\"", digits, parts);
}

static void fill(shelf_object *o, const char *key, const void *data, int64_t bytes)
{
    unsigned char sum[16];
    *o = (shelf_object){must_strdup(key), must_alloc((unsigned long)bytes + 1), bytes, "", "", 0};
    memcpy(o->data, data, (size_t)bytes);
    o->data[bytes] = 0;
    hash(sum, data, bytes);
    write_etag(o->etag, sum, 0);
    shelf_checksum(o->crc32c, data, bytes);
}

static void empty(shelf_object *o)
{
    free(o->key);
    free(o->data);
}

void shelf_free(shelf *s)
{
    for (int i = 0; i < s->count; i++) {
        empty(s->object[i]);
        free(s->object[i]);
    }
    while (s->uploads > 0)
        shelf_forget(s, s->upload[0]);
    free(s->object);
    free(s->upload);
}

/* The first whose key is not below. */
static int place(const shelf *s, const char *key)
{
    int i = 0;
    while (i < s->count && strcmp(s->object[i]->key, key) < 0)
        i++;
    return i;
}

shelf_object *shelf_find(const shelf *s, const char *key)
{
    int i = place(s, key);
    return i < s->count && strcmp(s->object[i]->key, key) == 0 ? s->object[i] : NULL;
}

shelf_object *shelf_put(shelf *s, const char *key, const void *data, int64_t bytes)
{
    shelf_object made;
    fill(&made, key, data, bytes);
    shelf_remove(s, key);
    int at = place(s, key);
    s->object = must_realloc(s->object, (unsigned long)(s->count + 1) * sizeof *s->object);
    memmove(s->object + at + 1, s->object + at, (size_t)(s->count - at) * sizeof *s->object);
    s->object[at] = must_alloc(sizeof made);
    *s->object[at] = made;
    s->count++;
    return s->object[at];
}

void shelf_remove(shelf *s, const char *key)
{
    int at = place(s, key);
    if (!shelf_find(s, key))
        return;
    empty(s->object[at]);
    free(s->object[at]);
    s->count--;
    memmove(s->object + at, s->object + at + 1, (size_t)(s->count - at) * sizeof *s->object);
}

/* ---- uploads ----------------------------------------------------------------------------------------------------- */

shelf_upload *shelf_begin(shelf *s, const char *key)
{
    shelf_upload *u = must_calloc(1, sizeof *u);
    u->key = must_strdup(key);
    snprintf(u->id, sizeof u->id, "up+load/%d==", ++s->begun);
    s->upload = must_realloc(s->upload, (unsigned long)(s->uploads + 1) * sizeof *s->upload);
    s->upload[s->uploads++] = u;
    return u;
}

shelf_upload *shelf_find_upload(const shelf *s, const char *key, const char *id)
{
    for (int i = 0; i < s->uploads; i++)
        if (id && strcmp(s->upload[i]->id, id) == 0 && strcmp(s->upload[i]->key, key) == 0)
            return s->upload[i];
    return NULL;
}

shelf_object *shelf_put_part(shelf_upload *u, int number, const void *data, int64_t bytes)
{
    shelf_object *p = NULL;
    for (int i = 0; i < u->parts; i++)
        if (u->part[i].part == number)
            p = &u->part[i];
    if (p) {
        empty(p);
    } else {
        u->part = must_realloc(u->part, (unsigned long)(u->parts + 1) * sizeof *u->part);
        p = &u->part[u->parts++];
    }
    fill(p, u->key, data, bytes);
    p->part = number;
    return p;
}

/* The part that the list names next, with the ETag that it had; its checksum, if there is one, must be right. */
static const shelf_object *next_part(const char **wrong, const shelf_upload *u, const char *element, const char *end)
{
    int number = 0;
    char etag[64] = "", sum[16] = "", digits[40];
    sscanf(element, "<Part><PartNumber>%d</PartNumber><ETag>&quot;%39[0-9a-f]&quot;</ETag>", &number, digits);
    snprintf(etag, sizeof etag, "\"%s\"", digits);
    const char *checksum = strstr(element, "<ChecksumCRC32C>");
    if (checksum && checksum < end)
        sscanf(checksum, "<ChecksumCRC32C>%15[^<]", sum);
    for (int i = 0; i < u->parts; i++)
        if (u->part[i].part == number && strcmp(u->part[i].etag, etag) == 0) {
            *wrong = *sum && strcmp(sum, u->part[i].crc32c) != 0 ? "InvalidPart" : NULL;
            return &u->part[i];
        }
    *wrong = "InvalidPart";
    return NULL;
}

const char *shelf_end(shelf *s, shelf_upload *u, const char *list)
{
    AUTO_FREE char *data = NULL;
    int64_t bytes = 0, before = 0;
    int parts = 0, last = 0;
    unsigned char *sums = NULL, sum[16];
    const char *wrong = NULL;
    for (const char *at = list, *end; !wrong && (at = strstr(at, "<Part>")); at = end) {
        end = strstr(at, "</Part>");
        const shelf_object *p = end ? next_part(&wrong, u, at, end) : NULL;
        if (!p || wrong)
            break;
        wrong = p->part <= last ? "InvalidPartOrder" : parts > 0 && before < 5 << 20 ? "EntityTooSmall" : NULL;
        before = p->bytes;
        last = p->part;
        data = must_realloc(data, (unsigned long)(bytes + p->bytes + 1));
        memcpy(data + bytes, p->data, (size_t)p->bytes);
        bytes += p->bytes;
        sums = must_realloc(sums, 16 * (unsigned long)(parts + 1));
        hash(sums + 16 * parts++, p->data, p->bytes);
    }
    if (!wrong && parts == 0)
        wrong = "MalformedXML";
    if (!wrong) {
        shelf_object *o = shelf_put(s, u->key, data, bytes);
        hash(sum, sums, 16 * parts);
        write_etag(o->etag, sum, parts);
        snprintf(o->crc32c, sizeof o->crc32c, "AAAAAA==-%d", parts);
        shelf_forget(s, u);
    }
    free(sums);
    return wrong;
}

void shelf_forget(shelf *s, shelf_upload *u)
{
    int at = 0;
    while (s->upload[at] != u)
        at++;
    for (int i = 0; i < u->parts; i++)
        empty(&u->part[i]);
    free(u->part);
    free(u->key);
    free(u);
    s->uploads--;
    memmove(s->upload + at, s->upload + at + 1, (size_t)(s->uploads - at) * sizeof *s->upload);
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

static void add_text(char **text, char *more)
{
    size_t had = strlen(*text);
    *text = must_realloc(*text, had + strlen(more) + 1);
    strcpy(*text + had, more);
    free(more);
}

char *shelf_list(const shelf *s, const char *prefix, bool folders, const char *token, int most)
{
    char *out =
             must_strdup("<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
                         "<EncodingType>url</EncodingType>"),
         *last = must_strdup("");
    int count = 0, i = place(s, prefix);
    size_t length = strlen(prefix);
    for (; i < s->count && strncmp(s->object[i]->key, prefix, length) == 0; i++) {
        const shelf_object *o = s->object[i];
        const char *slash = folders ? strchr(o->key + length, '/') : NULL;
        char *name = slash ? must_format("%.*s", (int)(slash + 1 - o->key), o->key) : must_strdup(o->key);
        if (strcmp(name, last) == 0 || (token && strcmp(name, token) <= 0)) {
            free(name);
            continue;
        }
        if (count == most) {
            free(name);
            break;
        }
        count++;
        free(last);
        last = name;
        AUTO_FREE char *coded = signature_path(name);
        add_text(&out, slash ? must_format("<CommonPrefixes><Prefix>%s</Prefix></CommonPrefixes>", coded)
                             : must_format("<Contents><Key>%s</Key><ETag>&quot;%.*s&quot;</ETag><Size>%lld</Size>"
                                           "</Contents>",
                                           coded, (int)strlen(o->etag) - 2, o->etag + 1, (long long)o->bytes));
    }
    bool more = i < s->count && strncmp(s->object[i]->key, prefix, length) == 0;
    AUTO_FREE char *coded = signature_path(last);
    add_text(&out, must_format("<IsTruncated>%s</IsTruncated><NextContinuationToken>%s</NextContinuationToken>"
                               "</ListBucketResult>",
                               more ? "true" : "false", more ? coded : ""));
    free(last);
    return out;
}

char *shelf_list_uploads(const shelf *s, const char *prefix)
{
    char *out = must_strdup("<ListMultipartUploadsResult>");
    for (int i = 0; i < s->uploads; i++)
        if (strncmp(s->upload[i]->key, prefix, strlen(prefix)) == 0)
            add_text(&out, must_format("<Upload><Key>%s</Key><UploadId>%s</UploadId></Upload>", s->upload[i]->key,
                                       s->upload[i]->id));
    add_text(&out, must_strdup("</ListMultipartUploadsResult>"));
    return out;
}
