#include "tests/engine/store/s3_server.h"

#include <arpa/inet.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "engine/store/s3/signature.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/store/s3_request.h"
#include "tests/engine/store/shelf.h"

enum { CONNECTIONS = 512 };

/* A connection that is over keeps its number until its thread is joined, so that no other one gets it. */
typedef struct connection {
    struct s3_server *server;
    pthread_t thread;
    int fd;
    bool used;
    atomic_bool over;
} connection;

struct s3_server {
    int listener;
    char endpoint[64];
    atomic_bool stopping, down;
    pthread_t thread;
    pthread_mutex_t accepting; /* of the connections */
    connection connection[CONNECTIONS];
    pthread_mutex_t lock; /* of what follows */
    s3_server_traits traits;
    shelf shelf;
    char *secret, *script, *lie;
    const char *word; /* the fault of the request at hand */
    bool token;
    int64_t requests;
};

/* ---- who asks ---------------------------------------------------------------------------------------------------- */

static double store_time(const s3_server *s)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + s->traits.clock_offset;
}

static double time_of(const char *text)
{
    struct tm t = {0};
    return strptime(text, "%Y%m%dT%H%M%SZ", &t) ? (double)timegm(&t) : 0;
}

/* The header as it should be: signed for `region`, by the secret that is right just now. */
static char *expected(const s3_server *s, const s3_request *r, const char *names, const char *region)
{
    http_pair signed_headers[S3_MOST_PAIRS];
    int count = 0;
    for (int i = 0; i < r->headers; i++) {
        AUTO_FREE char *name = must_format(";%s;", r->header[i].name), *all = must_format(";%s;", names);
        if (strstr(all, name))
            signed_headers[count++] = r->header[i];
    }
    const signature_key key = {S3_SERVER_ID, s->secret, region, "s3"};
    const signature_request asked = {.method = r->method,
                                     .path = r->path,
                                     .query = r->pair,
                                     .queries = r->pairs,
                                     .header = signed_headers,
                                     .headers = count,
                                     .payload = s3_request_header(r, "x-amz-content-sha256"),
                                     .time = s3_request_header(r, "x-amz-date")};
    return signature_authorization(&key, &asked);
}

/* The error's name, or NULL: it is who it says. */
static const char *refusal(s3_server *s, const s3_request *r)
{
    const char *given = s3_request_header(r, "authorization"), *time = s3_request_header(r, "x-amz-date");
    const char *hash = s3_request_header(r, "x-amz-content-sha256"),
               *token = s3_request_header(r, "x-amz-security-token");
    char region[64], names[1024], actual[SIGNATURE_HEX];
    if (!given || !time || !hash)
        return "AccessDenied";
    if (sscanf(given,
               "AWS4-HMAC-SHA256 Credential=" S3_SERVER_ID "/%*8[0-9]/%63[^/]/s3/aws4_request, "
               "SignedHeaders=%1023[^,],",
               region, names) != 2)
        return "InvalidAccessKeyId";
    if (s->traits.region && strcmp(region, s->traits.region) != 0)
        return "AuthorizationHeaderMalformed";
    if (fabs(time_of(time) - store_time(s)) > 900)
        return "RequestTimeTooSkewed";
    if (s->token && (!token || strcmp(token, S3_SERVER_TOKEN) != 0))
        return "InvalidToken";
    if (!strstr(names, "host") || !strstr(names, "x-amz-date") || (token && !strstr(names, "x-amz-security-token")))
        return "AccessDenied";
    AUTO_FREE char *right = expected(s, r, names, region);
    bool same = strcmp(right, given) == 0;
    if (!same)
        return "SignatureDoesNotMatch";
    signature_hash(actual, r->body, r->bytes);
    return strcmp(actual, hash) == 0 ? NULL : "XAmzContentSHA256Mismatch";
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

typedef struct answer {
    int code;
    char *headers; /* lines with their ends */
    char *body;
    int64_t bytes;
} answer;

static answer say(int code, char *headers, const char *body, int64_t bytes)
{
    answer a = {code, headers, must_alloc((unsigned long)bytes + 1), bytes};
    memcpy(a.body, body, (size_t)bytes);
    return a;
}

static answer fail(const s3_server *s, int code, const char *error)
{
    char *body = must_format("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>%s</Code><Message>as it is"
                             "</Message><Region>%s</Region></Error>",
                             error, s->traits.region ? s->traits.region : "");
    answer a =
        say(code, s->traits.region ? must_format("x-amz-bucket-region: %s\r\n", s->traits.region) : must_strdup(""),
            body, (int64_t)strlen(body));
    free(body);
    return a;
}

static answer done(char *headers)
{
    return say(200, headers, "", 0);
}

static bool is_word(const char *word, const char *what)
{
    return strcmp(word, what) == 0;
}

static answer answer_object(const s3_server *s, const s3_request *r, const shelf_object *o)
{
    long long first = 0, last = o->bytes - 1;
    const char *range = s3_request_header(r, "range"), *match = s3_request_header(r, "if-match");
    if (match && strcmp(match, o->etag) != 0)
        return fail(s, 412, "PreconditionFailed");
    if (range && (sscanf(range, "bytes=%lld-%lld", &first, &last) != 2 || first >= o->bytes))
        return fail(s, 416, "InvalidRange");
    last = last < o->bytes - 1 ? last : o->bytes - 1;
    if (is_word(s->word, "whole"))
        range = NULL, first = 0, last = o->bytes - 1;
    if (is_word(s->word, "elsewhere"))
        first++;
    if (is_word(s->word, "long"))
        last = o->bytes - 1;
    char *part = range ? must_format("content-range: bytes %lld-%lld/%lld\r\n", first, last, (long long)o->bytes)
                       : must_strdup("");
    bool checksum =
        !s->traits.old && s3_request_header(r, "x-amz-checksum-mode") && (!range || last - first + 1 == o->bytes);
    char *headers = must_format("etag: %s\r\n%s%s%s%s", o->etag, part, checksum ? "x-amz-checksum-crc32c: " : "",
                                checksum ? o->crc32c : "", checksum ? "\r\n" : "");
    free(part);
    return say(range ? 206 : 200, headers, o->data + first, last - first + 1);
}

static answer answer_put(s3_server *s, const s3_request *r)
{
    const char *said = s3_request_header(r, "x-amz-checksum-crc32c"), *number = s3_request_parameter(r, "partNumber");
    char sum[9];
    shelf_checksum(sum, r->body, r->bytes);
    if (said && !s->traits.old && strcmp(said, sum) != 0)
        return fail(s, 400, "BadDigest");
    if (!number && s3_request_header(r, "if-none-match") && !s->traits.old && shelf_find(&s->shelf, r->key))
        return fail(s, 412, "PreconditionFailed");
    shelf_object *made;
    if (number) {
        shelf_upload *u = shelf_find_upload(&s->shelf, r->key, s3_request_parameter(r, "uploadId"));
        if (!u)
            return fail(s, 404, "NoSuchUpload");
        made = shelf_put_part(u, atoi(number), r->body, r->bytes);
    } else {
        made = shelf_put(&s->shelf, r->key, r->body, r->bytes);
    }
    return done(must_format("etag: %s\r\n%s%s%s", made->etag, s->traits.old ? "" : "x-amz-checksum-crc32c: ",
                            s->traits.old ? "" : made->crc32c, s->traits.old ? "" : "\r\n"));
}

static answer answer_post(s3_server *s, const s3_request *r)
{
    char *body = NULL;
    if (s3_request_parameter(r, "uploads")) {
        const shelf_upload *u = shelf_begin(&s->shelf, r->key);
        body = must_format("<InitiateMultipartUploadResult><Bucket>" S3_SERVER_BUCKET "</Bucket><UploadId>%s"
                           "</UploadId></InitiateMultipartUploadResult>",
                           u->id);
    } else {
        shelf_upload *u = shelf_find_upload(&s->shelf, r->key, s3_request_parameter(r, "uploadId"));
        if (!u)
            return fail(s, 404, "NoSuchUpload");
        const char *wrong = shelf_end(&s->shelf, u, r->body);
        if (wrong)
            return fail(s, 400, wrong);
        body = must_strdup("<CompleteMultipartUploadResult></CompleteMultipartUploadResult>");
    }
    answer a = say(200, must_strdup(""), body, (int64_t)strlen(body));
    free(body);
    return a;
}

static answer answer_delete(s3_server *s, const s3_request *r)
{
    const char *id = s3_request_parameter(r, "uploadId");
    if (!id) {
        shelf_remove(&s->shelf, r->key);
    } else {
        shelf_upload *u = shelf_find_upload(&s->shelf, r->key, id);
        if (!u)
            return fail(s, 404, "NoSuchUpload");
        shelf_forget(&s->shelf, u);
    }
    return say(204, must_strdup(""), "", 0);
}

/* A token is the last key of the page before, encoded. */
static char *list_page(s3_server *s, const s3_request *r, const char *prefix)
{
    const char *token = s3_request_parameter(r, "continuation-token");
    AUTO_FREE char *behind = token ? must_strdup(token) : NULL;
    if (behind)
        s3_request_unescape(behind);
    return shelf_list(&s->shelf, prefix, s3_request_parameter(r, "delimiter") != NULL, behind,
                      s->traits.page ? s->traits.page : 1000);
}

static answer answer_list(s3_server *s, const s3_request *r)
{
    AUTO_FREE char *body = s->lie;
    s->lie = NULL;
    const char *prefix = s3_request_parameter(r, "prefix");
    if (!body && s3_request_parameter(r, "uploads"))
        body = shelf_list_uploads(&s->shelf, prefix ? prefix : "");
    else if (!body)
        body = list_page(s, r, prefix ? prefix : "");
    answer a = say(200, must_strdup(""), body, (int64_t)strlen(body));
    return a;
}

static answer answer_truly(s3_server *s, const s3_request *r)
{
    static const struct {
        const char *error;
        int code;
    } codes[] = {{"AuthorizationHeaderMalformed", 400}, {"XAmzContentSHA256Mismatch", 400}, {"InvalidToken", 400}};
    const char *wrong = refusal(s, r);
    if (wrong) {
        int code = 403;
        for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
            code = strcmp(codes[i].error, wrong) == 0 ? codes[i].code : code;
        return fail(s, code, wrong);
    }
    if (!r->bucket)
        return fail(s, 404, "NoSuchBucket");
    if (!*r->key)
        return answer_list(s, r);
    if (strcmp(r->method, "PUT") == 0)
        return answer_put(s, r);
    if (strcmp(r->method, "POST") == 0)
        return answer_post(s, r);
    if (strcmp(r->method, "DELETE") == 0)
        return answer_delete(s, r);
    const shelf_object *o = shelf_find(&s->shelf, r->key);
    return o ? answer_object(s, r, o) : fail(s, 404, "NoSuchKey");
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

/* Takes the script's next word, if it is for this method; into `word`, "ok" if there is none. */
static void take_fault(char word[64], s3_server *s, const char *method)
{
    strcpy(word, "ok");
    char *at = s->script ? s->script + strspn(s->script, " ") : NULL;
    if (!at || !*at)
        return;
    size_t length = strcspn(at, " "), colon = strcspn(at, ": ");
    bool named = at[colon] == ':';
    if (named && (strlen(method) != colon || strncmp(at, method, colon) != 0))
        return;
    size_t skip = named ? colon + 1 : 0;
    snprintf(word, 64, "%.*s", (int)(length - skip), at + skip);
    memmove(s->script, at + length, strlen(at + length) + 1);
}

/* Instead of the true answer; false: there is no such word. */
static bool answer_falsely(answer *out, const s3_server *s, const char *word)
{
    if (is_word(word, "html")) {
        *out = say(503, must_strdup(""), "<html><body><h1>503</h1>No server is available<br></body>", 55);
    } else if (is_word(word, "expired")) {
        *out = fail(s, 400, "ExpiredToken");
    } else if (is_word(word, "late")) {
        *out = fail(s, 200, "InternalError");
    } else if (is_word(word, "echo")) {
        *out = say(403, must_strdup(""),
                   "<Error><Code>Strange</Code><Message>the key " S3_SERVER_ID " and " S3_SERVER_TOKEN
                   "</Message></Error>",
                   (int64_t)strlen("<Error><Code>Strange</Code><Message>the key " S3_SERVER_ID " and " S3_SERVER_TOKEN
                                   "</Message></Error>"));
    } else if (atoi(word) >= 300) {
        int code = atoi(word);
        *out = fail(s, code,
                    code == 403   ? "AccessDenied"
                    : code == 503 ? "SlowDown"
                    : code == 501 ? "NotImplemented"
                    : code == 500 ? "InternalError"
                                  : "Failure");
        if (strchr(word, '/')) {
            char *more = must_format("%sretry-after: %s\r\n", out->headers, strchr(word, '/') + 1);
            free(out->headers);
            out->headers = more;
        }
    } else {
        return false;
    }
    return true;
}

static bool send_all(s3_server *s, int fd, const char *data, int64_t bytes, double rate)
{
    int64_t step = rate > 0 ? (int64_t)fmax(1, rate / 20) : bytes;
    for (int64_t at = 0; at < bytes && !atomic_load(&s->stopping);) {
        int64_t now = bytes - at < step ? bytes - at : step;
        ssize_t sent = send(fd, data + at, (size_t)now, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        at += sent;
        if (rate > 0)
            clock_nap(0.05);
    }
    return true;
}

static void wait_unless_stopping(const s3_server *s, double seconds)
{
    for (double until = clock_seconds() + seconds; clock_seconds() < until && !atomic_load(&s->stopping);)
        clock_nap(0.02);
}

/* The answer, and what the word does to its body; false: the connection ends. */
static bool reply(s3_server *s, int fd, const s3_request *r, answer *a, const char *word)
{
    char date[64];
    pthread_mutex_lock(&s->lock);
    time_t now = (time_t)store_time(s);
    double rate = strncmp(word, "slow=", 5) == 0 ? atof(word + 5) : s->traits.rate;
    int64_t number = s->requests;
    pthread_mutex_unlock(&s->lock);
    struct tm utc;
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", gmtime_r(&now, &utc));
    int64_t bytes = a->bytes, sent = strcmp(r->method, "HEAD") == 0 ? 0 : bytes;
    if (is_word(word, "damage") && bytes > 0)
        a->body[bytes / 2] ^= 4;
    if (strncmp(word, "cut=", 4) == 0)
        sent = atoll(word + 4) < bytes ? atoll(word + 4) : bytes;
    char *head =
        must_format("HTTP/1.1 %d Said\r\ndate: %s\r\nx-amz-request-id: R%lld\r\n%scontent-length: %lld\r\n\r\n",
                    a->code, date, (long long)number, a->headers, (long long)bytes);
    bool well = send_all(s, fd, head, (int64_t)strlen(head), 0) && send_all(s, fd, a->body, sent, rate);
    free(head);
    return well && (sent == bytes || strcmp(r->method, "HEAD") == 0);
}

static bool serve(s3_server *s, int fd)
{
    s3_request r;
    answer a = {0};
    char word[64];
    if (!s3_request_read(&r, fd, S3_SERVER_BUCKET)) {
        s3_request_free(&r);
        return false;
    }
    pthread_mutex_lock(&s->lock);
    s->requests++;
    take_fault(word, s, r.method);
    bool gone = is_word(word, "reset") || is_word(word, "hang") || is_word(word, "garbage");
    s->word = word;
    if (!gone && !answer_falsely(&a, s, word))
        a = answer_truly(s, &r);
    pthread_mutex_unlock(&s->lock);
    if (is_word(word, "hang"))
        wait_unless_stopping(s, 2);
    if (is_word(word, "garbage"))
        (void)send_all(s, fd, "\1\2\3 no HTTP at all\r\n\r\n", 22, 0);
    bool well = !gone && !is_word(word, "lost") && reply(s, fd, &r, &a, word);
    free(a.headers);
    free(a.body);
    s3_request_free(&r);
    return well;
}

/* ---- connections ------------------------------------------------------------------------------------------------- */

static void *serve_connection(void *argument)
{
    connection *c = argument;
    while (!atomic_load(&c->server->stopping) && serve(c->server, c->fd))
        ;
    shutdown(c->fd, SHUT_RDWR);
    atomic_store(&c->over, true);
    return NULL;
}

static void end_connection(connection *c)
{
    pthread_join(c->thread, NULL);
    close(c->fd);
    c->used = false;
}

/* One that is free, or over. */
static connection *find_connection(s3_server *s)
{
    connection *c = s->connection, *end = c + CONNECTIONS;
    while (c < end && c->used && !atomic_load(&c->over))
        c++;
    MUST(c < end, "more than %d connections to the stand-in", CONNECTIONS);
    if (c->used)
        end_connection(c);
    return c;
}

static void *accept_connections(void *argument)
{
    s3_server *s = argument;
    for (int fd; (fd = accept(s->listener, NULL, NULL)) >= 0;) {
        pthread_mutex_lock(&s->accepting);
        if (atomic_load(&s->down)) {
            close(fd);
        } else {
            connection *c = find_connection(s);
            c->server = s;
            c->fd = fd;
            c->used = true;
            atomic_store(&c->over, false);
            MUST(pthread_create(&c->thread, NULL, serve_connection, c) == 0, "no thread");
        }
        pthread_mutex_unlock(&s->accepting);
    }
    return NULL;
}

void s3_server_set_down(s3_server *s, bool down)
{
    pthread_mutex_lock(&s->accepting);
    atomic_store(&s->down, down);
    for (int i = 0; i < CONNECTIONS && down; i++)
        if (s->connection[i].used)
            shutdown(s->connection[i].fd, SHUT_RDWR);
    pthread_mutex_unlock(&s->accepting);
}

s3_server *s3_server_start(void)
{
    s3_server *s = must_calloc(1, sizeof *s);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t length = sizeof at;
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    MUST(bind(s->listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(s->listener, 64) == 0 &&
             getsockname(s->listener, (struct sockaddr *)&at, &length) == 0,
         "the stand-in has no port");
    snprintf(s->endpoint, sizeof s->endpoint, "http://127.0.0.1:%d", ntohs(at.sin_port));
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->accepting, NULL);
    s->secret = must_strdup(S3_SERVER_SECRET);
    static const char *const cleared[] = {"AWS_SESSION_TOKEN",  "AWS_PROFILE",   "AWS_ENDPOINT_URL",   "AWS_REGION",
                                          "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE", "AWS_NO_SIGN_REQUEST"};
    for (size_t i = 0; i < sizeof cleared / sizeof *cleared; i++)
        unsetenv(cleared[i]);
    setenv("AWS_ENDPOINT_URL_S3", s->endpoint, 1);
    setenv("AWS_ACCESS_KEY_ID", S3_SERVER_ID, 1);
    setenv("AWS_SECRET_ACCESS_KEY", S3_SERVER_SECRET, 1);
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent/credentials", 1);
    setenv("AWS_CONFIG_FILE", "/nonexistent/config", 1);
    setenv("no_proxy", "127.0.0.1", 1);
    MUST(pthread_create(&s->thread, NULL, accept_connections, s) == 0, "no thread");
    return s;
}

void s3_server_stop(s3_server *s)
{
    atomic_store(&s->stopping, true);
    shutdown(s->listener, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->listener);
    for (int i = 0; i < CONNECTIONS; i++)
        if (s->connection[i].used)
            shutdown(s->connection[i].fd, SHUT_RDWR);
    for (int i = 0; i < CONNECTIONS; i++)
        if (s->connection[i].used)
            end_connection(&s->connection[i]);
    pthread_mutex_destroy(&s->accepting);
    pthread_mutex_destroy(&s->lock);
    shelf_free(&s->shelf);
    free(s->secret);
    free(s->script);
    free(s->lie);
    free(s);
}

const char *s3_server_endpoint(const s3_server *s)
{
    return s->endpoint;
}

static void replace(s3_server *s, char **text, const char *with)
{
    pthread_mutex_lock(&s->lock);
    free(*text);
    *text = with ? must_strdup(with) : NULL;
    pthread_mutex_unlock(&s->lock);
}

void s3_server_be(s3_server *s, s3_server_traits traits)
{
    pthread_mutex_lock(&s->lock);
    s->traits = traits;
    pthread_mutex_unlock(&s->lock);
}

void s3_server_set_secret(s3_server *s, const char *secret, bool token)
{
    replace(s, &s->secret, secret);
    pthread_mutex_lock(&s->lock);
    s->token = token;
    pthread_mutex_unlock(&s->lock);
}

void s3_server_faults(s3_server *s, const char *script)
{
    replace(s, &s->script, script);
}

bool s3_server_faults_done(s3_server *s)
{
    pthread_mutex_lock(&s->lock);
    bool done_with = !s->script || !s->script[strspn(s->script, " ")];
    pthread_mutex_unlock(&s->lock);
    return done_with;
}

void s3_server_lie(s3_server *s, const char *list)
{
    replace(s, &s->lie, list);
}

int64_t s3_server_requests(s3_server *s)
{
    pthread_mutex_lock(&s->lock);
    int64_t n = s->requests;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void s3_server_put(s3_server *s, const char *key, const void *data, int64_t bytes)
{
    pthread_mutex_lock(&s->lock);
    shelf_put(&s->shelf, key, data, bytes);
    pthread_mutex_unlock(&s->lock);
}

char *s3_server_get(s3_server *s, const char *key, int64_t *bytes)
{
    char *out = NULL;
    pthread_mutex_lock(&s->lock);
    const shelf_object *o = shelf_find(&s->shelf, key);
    if (o) {
        out = must_alloc((unsigned long)o->bytes + 1);
        memcpy(out, o->data, (size_t)o->bytes + 1);
        *bytes = o->bytes;
    }
    pthread_mutex_unlock(&s->lock);
    return out;
}

int s3_server_search(s3_server *s, const char *word)
{
    int found = 0;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->shelf.count; i++) {
        const shelf_object *o = s->shelf.object[i];
        found += strstr(o->key, word) || memmem(o->data, (size_t)o->bytes, word, strlen(word));
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

void s3_server_wipe(s3_server *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->shelf.count > 0)
        shelf_remove(&s->shelf, s->shelf.object[0]->key);
    pthread_mutex_unlock(&s->lock);
}

int s3_server_count(s3_server *s)
{
    pthread_mutex_lock(&s->lock);
    int n = s->shelf.count;
    pthread_mutex_unlock(&s->lock);
    return n;
}

int s3_server_open_uploads(s3_server *s)
{
    pthread_mutex_lock(&s->lock);
    int n = s->shelf.uploads;
    pthread_mutex_unlock(&s->lock);
    return n;
}
