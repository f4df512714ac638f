/* One call: signed, sent, and tried again where that may help. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/store/s3/s3_internal.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { MOST_TEXT = 16 << 20, SLOW = 1024, MOST_HEADERS = S3_CALL_PAIRS + 10 }; /* bytes; bytes a second */
static const double CONNECT = 10, STALL = 30, LONGEST_PAUSE = 10;              /* seconds */
static const double UNREACHED = 15; /* seconds: a store that has never answered is a wrong address */

/* ---- where ------------------------------------------------------------------------------------------------------- */

/* Scheme and host ("https://HOST:PORT"), and the path of the bucket ("" or "/BUCKET", behind an endpoint's own). */
static void locate(char **origin, char **folder, const object_store *s)
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

static void on_header(void *context, const char *name, const char *value)
{
    s3_attempt *a = context;
    if (name)
        s3_take_header(a->r, name, value);
    else
        *a->r = (s3_reply){.length = -1, .begins = -1};
}

static http_took break_off(s3_attempt *a, const char *why)
{
    a->broken = why;
    return HTTP_BROKEN;
}

/* Of a range; all else is the answer's text. */
static http_took on_body(void *context, long code, const char *data, int64_t bytes)
{
    s3_attempt *a = context;
    s3_call *c = a->c;
    if (!c->to || (code != 200 && code != 206))
        return HTTP_PASSED;
    bool said = code == 206 || a->r->begins >= 0; /* some stores answer 200 to a range, and say which it is */
    if (said ? a->r->begins != a->from : a->from > 0)
        return break_off(a, said ? "the store answers with another range than was asked for"
                                 : "the store does not read ranges (it answers 200 to one)");
    if (*c->etag && *a->r->etag && strcmp(c->etag, a->r->etag) != 0) /* some stores pass over If-Match */
        return break_off(a, "the object has been replaced since it was looked at");
    if (bytes > c->wanted - c->got)
        return break_off(a, "the store sends more than was asked for");
    memcpy(c->to + c->got, data, (size_t)bytes);
    c->got += bytes;
    a->s->counts.bytes_read += bytes;
    return HTTP_TOOK;
}

/* ---- one attempt ------------------------------------------------------------------------------------------------- */

typedef struct headers {
    http_pair pair[MOST_HEADERS];
    int count;
    char time[32], range[64], hash[SIGNATURE_HEX];
} headers;

static void add_header(headers *h, const char *name, const char *value)
{
    MUST(h->count < MOST_HEADERS, "too many headers");
    h->pair[h->count++] = (http_pair){name, value};
}

static void make_headers(headers *h, const object_store *s, const s3_call *c, const char *host, bool secure)
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

/* To be freed by its caller, whose header it is; NULL: nobody asks. */
static char *add_signature(headers *h, const object_store *s, const s3_call *c, const char *path)
{
    const signature_key key = {s->who.id, s->who.secret, s->who.region, "s3"};
    const signature_request request = {c->method, path, c->query, h->pair, c->queries, h->count, h->hash, h->time};
    char *value = s->who.anonymous ? NULL : signature_authorization(&key, &request);
    if (value)
        add_header(h, "authorization", value);
    add_header(h, "content-type", "application/octet-stream");
    return value;
}

static void try_once(http_answer *answer, s3_attempt *a, headers *h)
{
    object_store *s = a->s;
    const s3_call *c = a->c;
    AUTO_FREE char *origin = NULL, *folder = NULL;
    locate(&origin, &folder, s);
    AUTO_FREE char *host = host_of(origin), *path = must_format("%s/%s", folder, c->key);
    make_headers(h, s, c, host, strncmp(origin, "https", 5) == 0);
    AUTO_FREE char *sent = signature_path(path), *query = signature_query(c->query, c->queries);
    AUTO_FREE char *url = must_format("%s%s%s%s", origin, sent, *query ? "?" : "", query);
    AUTO_FREE char *authorization = add_signature(h, s, c, path);
    bool body = strcmp(c->method, "PUT") == 0 || strcmp(c->method, "POST") == 0;
    const http_request request = {.method = c->method,
                                  .url = url,
                                  .header = h->pair,
                                  .headers = h->count,
                                  .body = !body     ? NULL
                                          : c->body ? c->body
                                                    : "",
                                  .body_bytes = c->body_bytes,
                                  .authorities = s->who.ca_file,
                                  .connect = fmin(CONNECT, s->limits.patience),
                                  .stall = fmax(1, fmin(STALL, s->limits.patience)),
                                  .slow = c->to || c->body_bytes > SLOW ? SLOW : 1,
                                  .most = MOST_TEXT,
                                  .stop = s->limits.stop,
                                  .on_header = on_header,
                                  .on_body = on_body,
                                  .context = a};
    s3_reply_free(a->r);
    on_header(a, NULL, NULL);
    s->counts.requests++;
    http_ask(answer, s->http, &request);
    s->counts.bytes_written += answer->sent;
    a->r->code = answer->code;
    a->r->text = answer->text;
    a->r->bytes = answer->bytes;
    s->reached = s->reached || a->r->code > 0;
    bool may_fail = a->r->code >= 300 || c->may_fail_late;
    if (a->r->text && may_fail && !s3_take_error(a->r) && a->r->code >= 300)
        *a->r->error = 0;
}

/* ---- again and again --------------------------------------------------------------------------------------------- */

static double random_half(void)
{
    uint64_t x = (uint64_t)(1e9 * clock_seconds()) * 0x9E3779B97F4A7C15u;
    return 0.5 + 0.5 * (double)(x >> 40) / (double)(1 << 24);
}

static char *describe(const object_store *s, const s3_call *c)
{
    AUTO_FREE char *origin = NULL, *folder = NULL, *key = must_strdup(c->key);
    locate(&origin, &folder, s);
    log_make_printable(key);
    return must_format("s3://%s/%s at %s", s->bucket, key, origin);
}

status s3_refuse(const object_store *s, const s3_call *c, const char *why)
{
    AUTO_FREE char *what = describe(s, c);
    return status_fail(STATUS_FAILED, "cannot %s %s: %s", c->doing, what, why);
}

static status give_up(const object_store *s, const s3_call *c, const s3_reply *r, int failures, double seconds)
{
    AUTO_FREE char *why =
        failures > 1 ? must_format("%s (%d tries in %.0f s)", r->why, failures, seconds) : must_strdup(r->why);
    return s3_refuse(s, c, why);
}

status s3_perform(s3_reply *out, object_store *s, s3_call *c)
{
    enum { SAID = 4, MOST_SET_RIGHT = 4 };
    int failures = 0, set_right = 0;
    double since = clock_seconds();
    headers h = {0};
    *out = (s3_reply){0};
    for (;;) {
        int64_t had = c->got;
        s3_attempt a = {.s = s, .c = c, .r = out, .from = c->offset + c->got};
        http_answer answer;
        try_once(&answer, &a, &h);
        s3_verdict v = s3_judge(&a, &answer);
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
        if (failures == SAID) {
            AUTO_FREE char *what = describe(s, c);
            log_warn("%s: %s; trying again", what, out->why);
        }
        double base = s->limits.first_pause > 0 ? s->limits.first_pause : 0.1;
        double seconds = fmin(LONGEST_PAUSE, base * pow(2, failures - 1)) * random_half();
        double until = clock_seconds() + fmax(seconds, out->retry_after);
        for (double left; (left = until - clock_seconds()) > 0 && !s3_is_stopped(s);)
            clock_nap(fmin(left, 0.1));
        s->counts.retries++;
    }
}

status s3_do(object_store *s, s3_call *c)
{
    RELEASED_BY(s3_reply_free) s3_reply r = {0};
    return s3_perform(&r, s, c);
}
