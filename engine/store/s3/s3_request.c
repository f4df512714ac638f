/* One call: signs and sends it, reads the answer, and retries where that may help. */
#include <ctype.h>
#include <endian.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <openssl/evp.h>
#include <time.h>

#include "engine/store/s3/s3_internal.h"
#include "engine/system/crc32c.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { MOST_TEXT = 16 << 20, SLOW = 1024, MOST_HEADERS = S3_CALL_PAIRS + 10 };              /* bytes; bytes a second */
static const double CONNECT = 10, STALL = 30, LONGEST_PAUSE = 10, LONGEST_RETRY_AFTER = 60; /* seconds */
static const double WHOLE = 30, RATE = 1 << 20; /* seconds of a whole answer; bytes that add one */
static const double JOINS = 20; /* times as long for an upload's end: a store that joins parts sends spaces meanwhile */
static const double UNREACHED = 15; /* seconds: a store that has never answered is a wrong address */

/* One attempt at a call. */
typedef struct attempt {
    object_store *s;
    s3_call *c;
    s3_reply *r;
    int64_t from;       /* start of the rest of a range */
    const char *broken; /* fault in the answer, if this end has closed the connection */
} attempt;

typedef enum s3_verdict {
    S3_ANSWERED,
    S3_AGAIN,         /* retry after a pause */
    S3_AGAIN_AT_ONCE, /* retry: a cause was corrected */
    S3_FAILED,        /* s3_reply.why has the reason */
} s3_verdict;

/* ---- reading an answer ------------------------------------------------------------------------------------------- */

/* True if the name may precede AWS's host: one label of small letters, digits and hyphens. */
static bool is_label(const char *name)
{
    return *name && !name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-")] && *name != '-';
}

static bool is_stopped(const object_store *s)
{
    return s->limits.stop && atomic_load(s->limits.stop);
}

double s3_answer_seconds(const object_store *s)
{
    return fmax(1, fmin(WHOLE, s->limits.patience));
}

/* True if no more may be tried. `since`: time of the last progress. */
static bool is_over(const object_store *s, double since)
{
    double now = clock_seconds(), patience = s->reached ? s->limits.patience : fmin(UNREACHED, s->limits.patience);
    return is_stopped(s) || now - since > patience || (s->limits.until > 0 && now > s->limits.until);
}

void s3_take_word(char *out, size_t room, const char *text)
{
    snprintf(out, room, "%s", text);
    if (strlen(text) >= room)
        *out = 0;
    for (const char *at = out; *at; at++)
        if (!isprint((unsigned char)*at))
            *out = 0;
}

int64_t s3_number(const char *text)
{
    size_t digits = strspn(text, "0123456789");
    int64_t number = digits > 0 && digits < 19 && !text[digits] ? strtoll(text, NULL, 10) : -1;
    return number > S3_OBJECT_MOST ? -1 : number;
}

/* Parses "bytes 0-99/1234". */
static void take_range(s3_reply *r, const char *value)
{
    long long first, last, all;
    char rest;
    if (sscanf(value, "bytes %18lld-%18lld/%18lld%c", &first, &last, &all, &rest) == 3 && first >= 0 && all > last &&
        all <= S3_OBJECT_MOST) {
        r->begins = first;
        r->length = all;
    }
}

static void take_header(s3_reply *r, const char *name, const char *value)
{
    const struct {
        const char *name;
        char *to;
        size_t room;
    } words[] = {{"etag", r->etag, sizeof r->etag},
                 {"x-amz-checksum-crc32c", r->crc32c, sizeof r->crc32c},
                 {"x-amz-checksum-type", r->checksum_type, sizeof r->checksum_type},
                 {"x-amz-bucket-region", r->region, sizeof r->region},
                 {"x-amz-request-id", r->request, sizeof r->request}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(name, words[i].name) == 0)
            s3_take_word(words[i].to, words[i].room, value);
    if (strcasecmp(name, "content-length") == 0 && r->begins < 0)
        r->length = s3_number(value);
    else if (strcasecmp(name, "content-range") == 0)
        take_range(r, value);
    else if (strcasecmp(name, "retry-after") == 0)
        r->retry_after = fmin((double)s3_number(value), LONGEST_RETRY_AFTER);
    else if (strcasecmp(name, "date") == 0)
        r->date = fmax(0, http_date(value));
}

static status take_error(void *context, const char *path, const char *text)
{
    s3_reply *r = context;
    if (strcmp(path, "Error/Code") == 0)
        s3_take_word(r->error, sizeof r->error, text);
    else if (strcmp(path, "Error/Region") == 0)
        s3_take_word(r->region, sizeof r->region, text);
    else if (strcmp(path, "Error/Message") == 0)
        snprintf(r->message, sizeof r->message, "%s", strlen(text) < sizeof r->message ? text : "");
    return STATUS_OK;
}

void s3_reply_free(s3_reply *r)
{
    free(r->text);
    r->text = NULL;
    r->bytes = 0;
}

/* ---- interpreting an answer -------------------------------------------------------------------------------------- */

/* Advice to the user by the store's name of an error; %s: the source of the credentials. */
static const struct {
    const char *error, *advice;
    s3_verdict verdict;
} errors[] = {
    {"AccessDenied", "the credentials of %s may not do this, or there is no such object and they may not list",
     S3_FAILED},
    {"InvalidAccessKeyId", "the store does not know the access key of %s", S3_FAILED},
    {"SignatureDoesNotMatch", "the secret key of %s is not the access key's", S3_FAILED},
    {"ExpiredToken", "the credentials of %s have expired: renew them and try again", S3_FAILED},
    {"ExpiredTokenException", "the credentials of %s have expired: renew them and try again", S3_FAILED},
    {"TokenRefreshRequired", "the credentials of %s have expired: renew them and try again", S3_FAILED},
    {"InvalidToken", "the session token of %s is not its access key's, or has expired: renew them", S3_FAILED},
    {"RequestTimeTooSkewed", "this machine's clock is wrong: set it", S3_FAILED},
    {"NoSuchBucket", "check the bucket's name, AWS_ENDPOINT_URL and AWS_REGION", S3_FAILED},
    {"NoSuchKey", "there is no such object", S3_FAILED},
    {"InvalidObjectState", "the object is archived: restore it first", S3_FAILED},
    {"PreconditionFailed", "the object has been replaced since it was looked at", S3_FAILED},
    {"InvalidRange", "the object is shorter than that", S3_FAILED},
    {"QuotaExceeded", "free some space in the store", S3_FAILED},
    {"NotImplemented", "this store lacks the operation", S3_FAILED},
    {"InternalError", "", S3_AGAIN},
    {"ServiceUnavailable", "", S3_AGAIN},
    {"SlowDown", "", S3_AGAIN},
    {"RequestTimeout", "", S3_AGAIN},
    {"OperationAborted", "", S3_AGAIN},
    {"ConditionalRequestConflict", "", S3_AGAIN},
    {"IncompleteBody", "", S3_AGAIN},
    {"BadDigest", "", S3_AGAIN},
    {"XAmzContentSHA256Mismatch", "", S3_AGAIN},
    {"XAmzContentChecksumMismatch", "", S3_AGAIN},
};

/* Advice for answers without an error name. */
static const struct {
    long code;
    const char *name;
    s3_verdict verdict;
} codes[] = {
    {404, "NoSuchKey", S3_FAILED},         {403, "AccessDenied", S3_FAILED},   {412, "PreconditionFailed", S3_FAILED},
    {416, "InvalidRange", S3_FAILED},      {501, "NotImplemented", S3_FAILED}, {408, "RequestTimeout", S3_AGAIN},
    {429, "SlowDown", S3_AGAIN},           {500, "InternalError", S3_AGAIN},   {502, "Bad Gateway", S3_AGAIN},
    {503, "ServiceUnavailable", S3_AGAIN}, {504, "Gateway Timeout", S3_AGAIN},
};

/* True if the server's words might repeat a credential; they are then left out. */
static bool has_secret(const object_store *s, const char *text)
{
    const char *const secrets[] = {s->who.id, s->who.secret, s->who.token};
    for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++)
        if (secrets[i] && strstr(text, secrets[i]))
            return true;
    return false;
}

static s3_verdict explain_reply(const object_store *s, s3_reply *r)
{
    s3_verdict v = S3_FAILED;
    const char *advice = NULL, *name = r->error;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].code == r->code) {
            v = codes[i].verdict;
            name = *name ? name : codes[i].name;
        }
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (strcmp(name, errors[i].error) == 0) {
            v = errors[i].verdict;
            advice = errors[i].advice;
        }
    if (has_secret(s, r->message) || has_secret(s, name) || has_secret(s, r->request))
        *r->message = *r->request = 0, name = has_secret(s, name) ? "" : name;
    char words[512] = "";
    const char *gap = advice ? strstr(advice, "%s") : NULL; /* where the source of the credentials goes */
    if (gap)
        snprintf(words, sizeof words, "%.*s%s%s", (int)(gap - advice), advice, s->who.source, gap + 2);
    else
        snprintf(words, sizeof words, "%s", advice ? advice : "");
    snprintf(r->why, sizeof r->why, "%ld %s%s%.200s%s%s%s%s%s", r->code, name, *r->message ? ": " : "", r->message,
             *words ? ": " : "", words, *r->request ? " (request " : "", r->request, *r->request ? ")" : "");
    log_make_printable(r->why);
    return v;
}

/* Reads the credentials again: their files may have been renewed. */
static s3_verdict renew_account(object_store *s)
{
    account now = {0};
    if (account_load(&now) != STATUS_OK || account_same(&now, &s->who)) {
        account_wipe(&now);
        return S3_FAILED;
    }
    char *region = s->who.region; /* maybe the region that the store has named */
    s->who.region = now.region;
    now.region = region;
    account_wipe(&s->who);
    s->who = now;
    return S3_AGAIN_AT_ONCE;
}

/* Changes the region, which becomes part of a host's name. */
static s3_verdict change_region(object_store *s, s3_reply *r)
{
    if (!is_label(r->region) || strlen(r->region) > 40 || strcmp(r->region, s->who.region) == 0) {
        size_t used = strlen(r->why);
        snprintf(r->why + used, sizeof r->why - used,
                 ": the bucket is elsewhere, and the answer does not say where: set AWS_REGION or AWS_ENDPOINT_URL");
        return S3_FAILED;
    }
    free(s->who.region);
    s->who.region = must_strdup(r->region);
    return S3_AGAIN_AT_ONCE;
}

static s3_verdict set_clock(object_store *s, const s3_reply *r)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double offset = r->date - (double)now.tv_sec;
    if (r->date <= 0 || fabs(offset - s->clock_offset) < 60)
        return S3_FAILED;
    log_warn("s3://%s: this machine's clock is %.0f seconds %s the store's, which requests go by now: set it",
             s->bucket, fabs(offset), offset > 0 ? "behind" : "ahead of");
    s->clock_offset = offset;
    return S3_AGAIN_AT_ONCE;
}

static s3_verdict judge_error(object_store *s, s3_reply *r)
{
    s3_verdict v = explain_reply(s, r);
    if (v == S3_FAILED && strcmp(r->error, "RequestTimeTooSkewed") == 0)
        return set_clock(s, r);
    if (r->code == 301 || r->code == 307 || strcmp(r->error, "AuthorizationHeaderMalformed") == 0)
        return change_region(s, r);
    bool expired = r->code == 401 || r->code == 403 || strstr(r->error, "Expired") || strstr(r->error, "Token");
    if (v == S3_FAILED && expired)
        return renew_account(s);
    return v;
}

void s3_checksum_text(char out[9], uint32_t crc32c)
{
    const uint32_t lies = htobe32(crc32c);
    EVP_EncodeBlock((unsigned char *)out, (const unsigned char *)&lies, sizeof lies);
}

/* Decodes a checksum, and rejects a text that differs from our encoding of it. */
static bool checksum_of(uint32_t *crc32c, const char *text)
{
    uint32_t lies = 0;
    unsigned char decoded[6]; /* includes the padding's bytes */
    char again[9];
    if (strlen(text) == 8 && EVP_DecodeBlock(decoded, (const unsigned char *)text, 8) == sizeof decoded)
        memcpy(&lies, decoded, sizeof lies);
    *crc32c = be32toh(lies);
    s3_checksum_text(again, *crc32c);
    return strcmp(again, text) == 0;
}

/* Reads an object's checksum. An object of parts (ETag "..."-N) has its parts' checksums unless the type is stated. */
bool s3_object_checksum(uint32_t *crc32c, const s3_reply *r)
{
    bool of_parts = strchr(r->etag, '-') && strcmp(r->checksum_type, "FULL_OBJECT") != 0;
    return !of_parts && checksum_of(crc32c, r->crc32c);
}

/* Notes the version that later answers must have. Only the answer to the first request states the checksum of a range
 * that is the whole object. */
static void note_version(s3_call *c, const s3_reply *r)
{
    if (!c->to || r->code / 100 != 2)
        return;
    if (!*c->etag && strncmp(r->etag, "W/", 2) != 0)
        memcpy(c->etag, r->etag, sizeof c->etag);
    if (c->offset == 0 && r->length == c->wanted && r->begins <= 0)
        c->has_crc32c = s3_object_checksum(&c->crc32c, r);
}

static s3_verdict judge_range(s3_call *c, s3_reply *r)
{
    if (c->got == c->wanted) { /* compares with the object's checksum */
        if (!c->has_crc32c || crc32c(0, c->to, c->wanted) == c->crc32c)
            return S3_ANSWERED;
        snprintf(r->why, sizeof r->why, "the bytes do not have the checksum that the store says");
        c->got = 0;
        return S3_AGAIN;
    }
    bool short_object = r->length >= 0 && c->offset + c->wanted > r->length;
    snprintf(r->why, sizeof r->why,
             short_object ? "the object has %lld bytes, and fewer than were asked for"
                          : "the answer ends after %lld bytes of the object",
             (long long)(short_object ? r->length : c->got));
    return short_object ? S3_FAILED : S3_AGAIN;
}

static s3_verdict judge_transport(attempt *a, http_answer *answer)
{
    bool stopped = is_stopped(a->s);
    const char *broken = answer->too_long ? "the answer is too long" : a->broken;
    log_make_printable(answer->words);
    snprintf(a->r->why, sizeof a->r->why, "%s%s",
             stopped          ? "stopped"
             : broken         ? broken
             : *answer->words ? answer->words
                              : answer->failure,
             answer->untrusted ? ": a certificate of your own authority is named by AWS_CA_BUNDLE" : "");
    return answer->hopeless || stopped || broken ? S3_FAILED : S3_AGAIN;
}

/* Classifies the result of an attempt, and corrects credentials, region or clock where possible. */
static s3_verdict classify_answer(attempt *a, http_answer *answer)
{
    s3_reply *r = a->r;
    note_version(a->c, r);
    if (answer->failure)
        return judge_transport(a, answer);
    if (r->code / 100 == 2 && *r->error)
        return judge_error(a->s, r);
    if (r->code == 200 || r->code == 204 || r->code == 206)
        return a->c->to ? judge_range(a->c, r) : S3_ANSWERED;
    if (r->code == 404 && a->c->may_miss && strcmp(r->error, "NoSuchBucket") != 0)
        return S3_ANSWERED;
    if (r->code == 412 && a->c->may_refuse)
        return S3_ANSWERED;
    return judge_error(a->s, r);
}

/* ---- endpoint ---------------------------------------------------------------------------------------------------- */

/* Returns scheme and host ("https://HOST:PORT"), and the bucket's path ("" or "/BUCKET", after the endpoint's own). */
static void locate_bucket(char **origin, char **folder, const object_store *s)
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
    bool own_host = is_label(s->bucket); /* a dot would not match the certificate */
    *origin = own_host ? must_format("https://%s.s3.%s.%s", s->bucket, region, end)
                       : must_format("https://s3.%s.%s", region, end);
    *folder = own_host ? must_strdup("") : must_format("/%s", s->bucket);
}

/* Returns the header Host: without the scheme's default port. */
static char *host_of(const char *origin)
{
    bool secure = strncmp(origin, "https", 5) == 0;
    char *host = must_strdup(strstr(origin, "://") + 3);
    char *colon = strrchr(host, ':');
    if (colon && strcmp(colon, secure ? ":443" : ":80") == 0)
        *colon = 0;
    return host;
}

/* ---- sending and receiving --------------------------------------------------------------------------------------- */

static void on_header(void *context, const char *name, const char *value)
{
    attempt *a = context;
    if (name)
        take_header(a->r, name, value);
    else
        *a->r = (s3_reply){.length = -1, .begins = -1};
}

static http_took break_off(attempt *a, const char *why)
{
    a->broken = why;
    return HTTP_BROKEN;
}

/* Takes a range's bytes; any other body is the answer's text. */
static http_took on_body(void *context, long code, const char *data, int64_t bytes)
{
    attempt *a = context;
    s3_call *c = a->c;
    if (!c->to || (code != 200 && code != 206))
        return HTTP_PASSED;
    bool said = code == 206 || a->r->begins >= 0; /* some stores answer 200 to a range, and state it elsewhere */
    if (said ? a->r->begins != a->from : a->from > 0)
        return break_off(a, said ? "the store answers with another range than was asked for"
                                 : "the store does not read ranges (it answers 200 to one)");
    if (*c->etag && *a->r->etag && strcmp(c->etag, a->r->etag) != 0) /* some stores ignore If-Match */
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

/* Returns the header, which the caller frees; NULL: anonymous. */
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

static void try_once(http_answer *answer, attempt *a, headers *h)
{
    object_store *s = a->s;
    const s3_call *c = a->c;
    AUTO_FREE char *origin = NULL, *folder = NULL;
    locate_bucket(&origin, &folder, s);
    AUTO_FREE char *host = host_of(origin), *path = must_format("%s/%s", folder, c->key);
    make_headers(h, s, c, host, strncmp(origin, "https", 5) == 0);
    AUTO_FREE char *sent = signature_path(path), *query = signature_query(c->query, c->queries);
    AUTO_FREE char *url = must_format("%s%s%s%s", origin, sent, *query ? "?" : "", query);
    AUTO_FREE char *authorization = add_signature(h, s, c, path);
    double whole = s3_answer_seconds(s) * (c->may_fail_late ? JOINS : 1),
           left = s->limits.until > 0 ? s->limits.until - clock_seconds() : whole;
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
                                  .answer = fmax(0.1, fmin(whole, left)),
                                  .rate = (int64_t)RATE,
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
    bool may_fail = a->r->code >= 300 || c->body; /* a write may be answered with 200 and an error */
    if (a->r->text && may_fail && xml_read(a->r->text, a->r->bytes, take_error, a->r) != STATUS_OK && a->r->code >= 300)
        *a->r->error = 0;
}

/* ---- retrying ---------------------------------------------------------------------------------------------------- */

static char *describe_call(const object_store *s, const s3_call *c)
{
    AUTO_FREE char *origin = NULL, *folder = NULL, *key = must_strdup(c->key);
    locate_bucket(&origin, &folder, s);
    log_make_printable(key);
    return must_format("s3://%s/%s at %s", s->bucket, key, origin);
}

status s3_refuse(const object_store *s, const s3_call *c, const char *why)
{
    AUTO_FREE char *what = describe_call(s, c);
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
        attempt a = {.s = s, .c = c, .r = out, .from = c->offset + c->got};
        http_answer answer;
        try_once(&answer, &a, &h);
        s3_verdict v = classify_answer(&a, &answer);
        if (v == S3_ANSWERED)
            return STATUS_OK;
        if (v == S3_AGAIN_AT_ONCE && ++set_right <= MOST_SET_RIGHT) {
            s->counts.retries++;
            continue;
        }
        double now = clock_seconds();
        since = failures == 0 ? now : fmin(now, since + (double)(c->got - had) / RATE);
        failures = c->got > had ? 1 : failures + 1;
        s->refused = v == S3_FAILED && out->code / 100 == 4;
        if (v != S3_AGAIN || c->once || is_over(s, since))
            return give_up(s, c, out, failures, now - since);
        if (failures == SAID) {
            AUTO_FREE char *what = describe_call(s, c);
            log_warn("%s: %s; trying again", what, out->why);
        }
        double base = s->limits.first_pause > 0 ? s->limits.first_pause : 0.1;
        uint64_t random = (uint64_t)(1e9 * clock_seconds()) * 0x9E3779B97F4A7C15u;
        double half = 0.5 + 0.5 * (double)(random >> 40) / (double)(1 << 24); /* 0.5 to 1 */
        double seconds = fmin(LONGEST_PAUSE, base * pow(2, failures - 1)) * half;
        double until = clock_seconds() + fmax(seconds, out->retry_after);
        for (double left; (left = until - clock_seconds()) > 0 && !is_stopped(s);)
            clock_nap(fmin(left, 0.1));
        s->counts.retries++;
    }
}

status s3_do(object_store *s, s3_call *c)
{
    RELEASED_BY(s3_reply_free) s3_reply r = {0};
    return s3_perform(&r, s, c);
}
