/* One call: signed, sent, and tried again where that may help. */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/store/s3/s3_internal.h"
#include "engine/store/s3/xml.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { MOST_TEXT = 16 << 20, MOST_HEADERS = S3_CALL_PAIRS + 8 };
static const long BUFFER = 32 << 10, SLOW = 1024;                 /* bytes; bytes a second */
static const double CONNECT = 10, STALL = 30, LONGEST_PAUSE = 10; /* seconds */
static const double UNREACHED = 15; /* seconds: a store that has never answered is a wrong address */

/* ---- where ------------------------------------------------------------------------------------------------------- */

/* Scheme and host ("https://HOST:PORT"), and the path of the bucket ("" or "/BUCKET", behind an endpoint's own). */
static void locate(char **origin, char **folder, const s3 *s)
{
    const char *endpoint = s->who.endpoint, *region = s->who.region;
    if (endpoint) {
        size_t scheme = strncmp(endpoint, "https", 5) == 0 ? 8 : 7;
        size_t length = scheme + strcspn(endpoint + scheme, "/");
        *origin = must_format("%.*s", (int)length, endpoint);
        *folder = must_format("%s/%s", endpoint + length, s->bucket);
        return;
    }
    const char *end = strncmp(region, "cn-", 3) == 0 ? "amazonaws.com.cn" : "amazonaws.com";
    bool own_host = s3_is_label(s->bucket); /* a dot would not match the certificate */
    *origin = own_host ? must_format("https://%s.s3.%s.%s", s->bucket, region, end)
                       : must_format("https://s3.%s.%s", region, end);
    *folder = own_host ? must_strdup("") : must_format("/%s", s->bucket);
}

/* As the header Host has it: without the scheme's own port. */
static char *host_of(const char *origin)
{
    bool secure = strncmp(origin, "https", 5) == 0;
    char *host = must_strdup(strstr(origin, "://") + 3);
    char *colon = strrchr(host, ':');
    if (colon && strcmp(colon, secure ? ":443" : ":80") == 0)
        *colon = 0;
    return host;
}

/* ---- what comes and goes ----------------------------------------------------------------------------------------- */

static void forget_answer(s3_reply *r)
{
    s3_reply_free(r);
    *r = (s3_reply){.length = -1, .begins = -1};
}

static size_t on_header(char *data, size_t size, size_t count, void *context)
{
    enum { MOST_LINE = 8192 };
    s3_attempt *a = context;
    size_t bytes = size * count;
    char line[MOST_LINE];
    if (bytes >= 5 && memcmp(data, "HTTP/", 5) == 0) /* an answer 100 may have been before it */
        forget_answer(a->r);
    if (bytes >= sizeof line || memchr(data, 0, bytes))
        return bytes;
    memcpy(line, data, bytes);
    while (bytes > 0 && isspace((unsigned char)line[bytes - 1]))
        bytes--;
    line[bytes] = 0;
    char *colon = strchr(line, ':');
    if (colon) {
        *colon++ = 0;
        s3_take_header(a->r, line, colon + strspn(colon, " \t"));
    }
    return size * count;
}

static size_t break_off(s3_attempt *a, const char *why)
{
    a->broken = why;
    return 0;
}

static size_t take_range_bytes(s3_attempt *a, const char *data, size_t bytes, long code)
{
    s3_call *c = a->c;
    bool said = code == 206 || a->r->begins >= 0; /* some stores answer 200 to a range, and say which it is */
    if (said ? a->r->begins != a->from : a->from > 0)
        return break_off(a, said ? "the store answers with another range than was asked for"
                                 : "the store does not read ranges (it answers 200 to one)");
    if (*c->etag && *a->r->etag && strcmp(c->etag, a->r->etag) != 0) /* some stores pass over If-Match */
        return break_off(a, "the object has been replaced since it was looked at");
    if ((int64_t)bytes > c->wanted - c->got)
        return break_off(a, "the store sends more than was asked for");
    memcpy(c->to + c->got, data, bytes);
    c->got += (int64_t)bytes;
    a->s->counts.bytes_read += (int64_t)bytes;
    return bytes;
}

static size_t on_body(char *data, size_t size, size_t count, void *context)
{
    s3_attempt *a = context;
    s3_reply *r = a->r;
    size_t bytes = size * count;
    long code = 0;
    curl_easy_getinfo(a->s->curl, CURLINFO_RESPONSE_CODE, &code);
    if (a->c->to && (code == 200 || code == 206))
        return take_range_bytes(a, data, bytes, code);
    if (r->bytes + (int64_t)bytes > MOST_TEXT)
        return break_off(a, "the answer is too long");
    int64_t had = r->bytes, room = had ? had : 1024; /* a power of two that grows with it */
    while (room <= had + (int64_t)bytes)
        room *= 2;
    r->text = must_realloc(r->text, (unsigned long)room);
    memcpy(r->text + had, data, bytes);
    r->bytes += (int64_t)bytes;
    r->text[r->bytes] = 0;
    return bytes;
}

static size_t on_upload(char *to, size_t size, size_t count, void *context)
{
    s3_attempt *a = context;
    int64_t left = a->c->body_bytes - a->sent, room = (int64_t)(size * count), now = left < room ? left : room;
    memcpy(to, (const char *)a->c->body + a->sent, (size_t)now);
    a->sent += now;
    a->s->counts.bytes_written += now;
    return (size_t)now;
}

/* The connection was closed before anything was answered: curl sends it again. */
static int on_seek(void *context, curl_off_t offset, int origin)
{
    s3_attempt *a = context;
    if (origin != SEEK_SET || offset < 0 || offset > a->c->body_bytes)
        return CURL_SEEKFUNC_FAIL;
    a->sent = offset;
    return CURL_SEEKFUNC_OK;
}

static int on_progress(void *context, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    return s3_is_stopped(context);
}

/* ---- one attempt ------------------------------------------------------------------------------------------------- */

typedef struct headers {
    signature_pair pair[MOST_HEADERS];
    int count;
    char time[32], range[64], hash[SIGNATURE_HEX];
} headers;

static void add_header(headers *h, const char *name, const char *value)
{
    MUST(h->count < MOST_HEADERS, "too many headers");
    h->pair[h->count++] = (signature_pair){name, value};
}

static void make_headers(headers *h, const s3 *s, const s3_call *c, const char *host, bool secure)
{
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    time_t seconds = now.tv_sec + (time_t)s->clock_offset;
    strftime(h->time, sizeof h->time, "%Y%m%dT%H%M%SZ", gmtime_r(&seconds, &utc));
    if (secure && c->body_bytes > 0)
        snprintf(h->hash, sizeof h->hash, "%s", SIGNATURE_UNSIGNED);
    else if (!*h->hash)
        signature_hash(h->hash, c->body ? c->body : "", c->body_bytes);
    h->count = 0;
    add_header(h, "host", host);
    add_header(h, "x-amz-content-sha256", h->hash);
    add_header(h, "x-amz-date", h->time);
    if (s->who.token)
        add_header(h, "x-amz-security-token", s->who.token);
    for (int i = 0; i < c->headers; i++)
        add_header(h, c->header[i].name, c->header[i].value);
    if (!c->to)
        return;
    add_header(h, "x-amz-checksum-mode", "ENABLED");
    if (*c->etag)
        add_header(h, "if-match", c->etag);
    if (c->whole && c->got == 0)
        return;
    snprintf(h->range, sizeof h->range, "bytes=%lld-%lld", (long long)(c->offset + c->got),
             (long long)(c->offset + c->wanted - 1));
    add_header(h, "range", h->range);
}

static struct curl_slist *list_headers(const s3 *s, const s3_call *c, const headers *h, const char *path)
{
    struct curl_slist *list = NULL;
    for (int i = 0; i < h->count; i++) {
        char *line = must_format("%s: %s", h->pair[i].name, h->pair[i].value);
        list = curl_slist_append(list, line);
        explicit_bzero(line, strlen(line));
        free(line);
    }
    if (!s->who.anonymous) {
        const signature_key key = {s->who.id, s->who.secret, s->who.region, "s3"};
        const signature_request request = {c->method, path, c->query, h->pair, c->queries, h->count, h->hash, h->time};
        char *value = signature_authorization(&key, &request), *line = must_format("authorization: %s", value);
        list = curl_slist_append(list, line);
        free(line);
        free(value);
    }
    list = curl_slist_append(list, "expect:");
    return curl_slist_append(list, "content-type: application/octet-stream");
}

static void free_headers(struct curl_slist *list)
{
    for (struct curl_slist *at = list; at; at = at->next)
        explicit_bzero(at->data, strlen(at->data));
    curl_slist_free_all(list);
}

static void set_options(s3_attempt *a, const char *url, struct curl_slist *list)
{
    CURL *curl = a->s->curl;
    const s3_call *c = a->c;
    double patience = a->s->limits.patience;
    bool body = strcmp(c->method, "PUT") == 0 || strcmp(c->method, "POST") == 0;
    curl_easy_reset(curl); /* connections stay */
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, list);
    curl_easy_setopt(curl, CURLOPT_NOBODY, (long)(strcmp(c->method, "HEAD") == 0));
    curl_easy_setopt(curl, CURLOPT_UPLOAD, (long)body);
    if (body) {
        curl_easy_setopt(curl, CURLOPT_READFUNCTION, on_upload);
        curl_easy_setopt(curl, CURLOPT_READDATA, a);
        curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, on_seek);
        curl_easy_setopt(curl, CURLOPT_SEEKDATA, a);
        curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)c->body_bytes);
    }
    if (strcmp(c->method, "HEAD") != 0)
        curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, c->method);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, a);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, a);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, a->s);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, a->words);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)(1000 * fmin(CONNECT, patience)));
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, c->to || c->body_bytes > SLOW ? SLOW : 1L);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)fmax(1, fmin(STALL, patience)));
    curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, BUFFER);
    curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, BUFFER);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "phalanx");
    if (a->s->who.ca_file)
        curl_easy_setopt(curl, CURLOPT_CAINFO, a->s->who.ca_file);
}

static CURLcode try_once(s3_attempt *a, headers *h)
{
    s3 *s = a->s;
    char *origin, *folder;
    locate(&origin, &folder, s);
    char *host = host_of(origin), *path = must_format("%s/%s", folder, a->c->key);
    make_headers(h, s, a->c, host, strncmp(origin, "https", 5) == 0);
    char *sent = signature_path(path), *query = signature_query(a->c->query, a->c->queries);
    char *url = must_format("%s%s%s%s", origin, sent, *query ? "?" : "", query);
    struct curl_slist *list = list_headers(s, a->c, h, path);
    forget_answer(a->r);
    set_options(a, url, list);
    s->counts.requests++;
    CURLcode result = curl_easy_perform(s->curl);
    curl_easy_getinfo(s->curl, CURLINFO_RESPONSE_CODE, &a->r->code);
    s->reached = s->reached || a->r->code > 0;
    bool may_fail = a->r->code >= 300 || a->c->may_fail_late;
    if (a->r->text && may_fail && !s3_take_error(a->r) && a->r->code >= 300)
        *a->r->error = 0;
    free_headers(list);
    char *const made[] = {origin, folder, host, path, sent, query, url};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        free(made[i]);
    return result;
}

/* ---- again and again --------------------------------------------------------------------------------------------- */

static double random_half(void)
{
    uint64_t x = (uint64_t)(1e9 * clock_seconds()) * 0x9E3779B97F4A7C15u;
    return 0.5 + 0.5 * (double)(x >> 40) / (double)(1 << 24);
}

static void pause_before(const s3 *s, int failures, double at_least)
{
    double base = s->limits.first_pause > 0 ? s->limits.first_pause : 0.1;
    double seconds = fmin(LONGEST_PAUSE, base * pow(2, failures - 1)) * random_half();
    double until = clock_seconds() + fmax(seconds, at_least);
    for (double left; (left = until - clock_seconds()) > 0 && !s3_is_stopped(s);)
        clock_nap(fmin(left, 0.1));
}

static char *describe(const s3 *s, const s3_call *c)
{
    AUTO_FREE char *origin = NULL, *folder = NULL, *key = must_strdup(c->key);
    locate(&origin, &folder, s);
    log_make_printable(key);
    char *out = must_format("s3://%s/%s at %s", s->bucket, key, origin);
    return out;
}

status s3_refuse(const s3 *s, const s3_call *c, const char *why)
{
    AUTO_FREE char *what = describe(s, c);
    return status_fail(STATUS_FAILED, "cannot %s %s: %s", c->doing, what, why);
}

static status give_up(const s3 *s, const s3_call *c, const s3_reply *r, int failures, double seconds)
{
    AUTO_FREE char *why =
        failures > 1 ? must_format("%s (%d tries in %.0f s)", r->why, failures, seconds) : must_strdup(r->why);
    return s3_refuse(s, c, why);
}

static void warn(const s3 *s, const s3_call *c, const s3_reply *r)
{
    AUTO_FREE char *what = describe(s, c);
    log_warn("%s: %s; trying again", what, r->why);
}

status s3_perform(s3_reply *out, s3 *s, s3_call *c)
{
    enum { SAID = 4, MOST_SET_RIGHT = 4 };
    int failures = 0, set_right = 0;
    double since = clock_seconds();
    headers h = {0};
    *out = (s3_reply){0};
    for (;;) {
        int64_t had = c->got;
        s3_attempt a = {.s = s, .c = c, .r = out, .from = c->offset + c->got};
        s3_verdict v = s3_judge(&a, try_once(&a, &h));
        if (v == S3_ANSWERED)
            return STATUS_OK;
        if (v == S3_AGAIN_AT_ONCE && ++set_right <= MOST_SET_RIGHT) {
            s->counts.retries++;
            continue;
        }
        if (c->got > had || failures == 0) {
            since = clock_seconds();
            failures = 0;
        }
        failures++;
        double patience = s->reached ? s->limits.patience : fmin(UNREACHED, s->limits.patience);
        if (v != S3_AGAIN || c->once || s3_is_stopped(s) || clock_seconds() - since > patience)
            return give_up(s, c, out, failures, clock_seconds() - since);
        if (failures == SAID)
            warn(s, c, out);
        pause_before(s, failures, out->retry_after);
        s->counts.retries++;
    }
}
