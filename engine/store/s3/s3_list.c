/* Lists objects by ListObjectsV2, page by page; entries that were not asked for are refused. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/store/s3/s3_internal.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { KEY = 3 * 1024 + 1, PER_SECOND = 1000 /* objects of a list that comes in time */ };

/* A page while it is read. */
typedef struct page {
    object_listing *list;
    int64_t most;
    const char *prefix;
    bool deep, listed, coded, truncated; /* coded: keys have %XX, as requested */
    object_entry entry;                  /* the entry being read */
    char token[KEY];
    const char *wrong; /* error in the page; NULL: none */
} page;

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : isxdigit((unsigned char)c) ? tolower((unsigned char)c) - 'a' + 10 : -1;
}

/* Decodes in place, "+" too; false: bad digits after a '%', or a key with a 0 or another control character. */
static bool decode_key(char *text, bool coded)
{
    char *to = text;
    for (const char *at = text; *at; at++, to++) {
        *to = *at;
        if (coded && *at == '+')
            *to = ' ';
        if (coded && *at == '%') {
            int high = hex_digit(at[1]), low = high < 0 ? -1 : hex_digit(at[2]);
            if (low < 0)
                return false;
            *to = (char)(high << 4 | low);
            at += 2;
        }
        if ((unsigned char)*to < ' ' || *to == 127)
            return false;
    }
    *to = 0;
    return true;
}

static void free_entry(object_entry *e)
{
    free(e->key);
    free(e->etag);
    *e = (object_entry){0};
}

static status refuse_list(page *p, const char *what)
{
    p->wrong = what;
    return STATUS_FAILED;
}

static status add_entry(page *p)
{
    object_listing *l = p->list;
    if (l->count == p->most)
        return refuse_list(p, "more objects than may be");
    if (!p->entry.key || (!p->entry.folder && p->entry.bytes < 0))
        return refuse_list(p, p->entry.key ? "an object without a size, or of more than 64 TiB" : "a key that is none");
    APPEND(l->entry, l->count) = p->entry;
    p->entry = (object_entry){.bytes = -1};
    return STATUS_OK;
}

static status take_text(page *p, char **to, const char *text)
{
    if (*to)
        return refuse_list(p, "an object with two names");
    *to = must_strdup(text);
    return STATUS_OK;
}

/* Takes an ETag; some stores omit the quotes. */
static void take_etag(page *p, const char *text)
{
    bool quoted = strchr(text, '"') != NULL;
    free(p->entry.etag);
    p->entry.etag = strlen(text) + 3 > OBJECT_ETAG ? NULL
                    : quoted || !*text             ? must_strdup(text)
                                                   : must_format("\"%s\"", text);
}

static status take_element(void *context, const char *path, const char *text)
{
    page *p = context;
    static const char root[] = "ListBucketResult";
    if (strncmp(path, root, strlen(root)) != 0)
        return refuse_list(p, "something else within");
    p->listed = true;
    path += strlen(root) + (path[strlen(root)] == '/');
    if (strcmp(path, "EncodingType") == 0)
        p->coded = strcmp(text, "url") == 0;
    else if (strcmp(path, "IsTruncated") == 0)
        p->truncated = strcmp(text, "true") == 0;
    else if (strcmp(path, "NextContinuationToken") == 0)
        s3_take_word(p->token, sizeof p->token, text);
    else if (strcmp(path, "Contents/Key") == 0)
        return take_text(p, &p->entry.key, text);
    else if (strcmp(path, "Contents/ETag") == 0)
        take_etag(p, text);
    else if (strcmp(path, "Contents/Size") == 0)
        p->entry.bytes = s3_number(text);
    else if (strcmp(path, "Contents") == 0)
        return add_entry(p);
    else if (strcmp(path, "CommonPrefixes/Prefix") == 0) {
        p->entry.folder = true;
        TRY(take_text(p, &p->entry.key, text));
        return add_entry(p);
    }
    return STATUS_OK;
}

/* Checks the entries that the page has added, after all of it is read: the encoding may be stated at its end. */
static status check_page(page *p, int64_t from)
{
    if (!p->listed)
        return refuse_list(p, "nothing that is one");
    for (int64_t i = from; i < p->list->count; i++) {
        object_entry *e = &p->list->entry[i];
        if (!decode_key(e->key, p->coded) || !*e->key)
            return refuse_list(p, "a key that is none");
        if (strncmp(e->key, p->prefix, strlen(p->prefix)) != 0)
            return refuse_list(p, "a key that was not asked for");
        if (e->folder && (p->deep || e->key[strlen(e->key) - 1] != '/'))
            return refuse_list(p, "a folder that is none");
        if (e->folder)
            e->bytes = 0;
        if (!e->etag)
            e->etag = must_strdup("");
    }
    return STATUS_OK;
}

static status fetch_page(page *p, object_store *s)
{
    RELEASED_BY(s3_reply_free) s3_reply r = {0};
    s3_call c = {.method = "GET", .doing = "list", .key = ""};
    AUTO_FREE char *before = must_strdup(p->token);
    c.query[c.queries++] = (http_pair){"list-type", "2"};
    c.query[c.queries++] = (http_pair){"encoding-type", "url"};
    c.query[c.queries++] = (http_pair){"prefix", p->prefix};
    if (!p->deep)
        c.query[c.queries++] = (http_pair){"delimiter", "/"};
    if (*before)
        c.query[c.queries++] = (http_pair){"continuation-token", before};
    int64_t had = p->list->count;
    p->listed = p->coded = p->truncated = false;
    p->token[0] = 0;
    TRY(s3_perform(&r, s, &c));
    c.key = p->prefix; /* used in messages */
    p->entry = (object_entry){.bytes = -1};
    status read = xml_read(r.text ? r.text : "", r.bytes, take_element, p);
    free_entry(&p->entry);
    if (read == STATUS_OK)
        read = check_page(p, had);
    if (read != STATUS_OK) {
        AUTO_FREE char *why =
            p->wrong ? must_format("the store's list has %s", p->wrong) : must_strdup(status_message());
        return s3_refuse(s, &c, why);
    }
    if (p->truncated && (!*p->token || !strcmp(p->token, before) || p->list->count == had))
        return s3_refuse(s, &c, "the store's list does not go on where it ended");
    return STATUS_OK;
}

static int compare_keys(const void *a, const void *b)
{
    const object_entry *x = a, *y = b;
    return strcmp(x->key, y->key);
}

static status check_order(const page *p, const object_store *s)
{
    object_listing *l = p->list;
    if (l->count > 0)
        qsort(l->entry, (size_t)l->count, sizeof *l->entry, compare_keys);
    for (int64_t i = 1; i < l->count; i++)
        if (strcmp(l->entry[i - 1].key, l->entry[i].key) == 0)
            return s3_refuse(s, &(s3_call){.doing = "list", .key = p->prefix}, "the store's list has an object twice");
    return STATUS_OK;
}

status object_list(object_listing *out, object_store *s, const char *prefix, bool deep, int64_t most)
{
    RELEASED_BY(object_listing_free) object_listing list = {0};
    page p = {.list = &list, .most = most, .prefix = prefix, .deep = deep};
    double until = clock_seconds() + s3_answer_seconds(s) + s->limits.patience;
    do {
        TRY(fetch_page(&p, s));
        if (p.truncated && clock_seconds() > until + (double)list.count / PER_SECOND) /* small pages without an end */
            return s3_refuse(s, &(s3_call){.doing = "list", .key = prefix}, "the store's list does not come to an end");
    } while (p.truncated);
    TRY(check_order(&p, s));
    *out = list;
    list = (object_listing){0};
    return STATUS_OK;
}

void object_listing_free(object_listing *l)
{
    for (int64_t i = 0; i < l->count; i++)
        free_entry(&l->entry[i]);
    free(l->entry);
    *l = (object_listing){0};
}
