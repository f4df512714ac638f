#include "engine/system/http.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <curl/curl.h>

#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

static const long BUFFER = 32 << 10;

struct http {
    CURL *curl;
    const http_request *request;
    http_answer *answer;
    int64_t at;   /* next byte of the body to send */
    double since; /* time of the last byte sent, or of the beginning */
    bool late;    /* the answer has taken too long */
};

static void begin_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT); /* several threads may not initialise older versions */
}

status http_open(http **out)
{
    static pthread_once_t begun = PTHREAD_ONCE_INIT;
    pthread_once(&begun, begin_curl);
    CURL *curl = curl_easy_init();
    if (!curl)
        return status_fail(STATUS_FAILED, "libcurl cannot be used");
    *out = must_calloc(1, sizeof **out);
    (*out)->curl = curl;
    return STATUS_OK;
}

void http_close(http *h)
{
    if (!h)
        return;
    curl_easy_cleanup(h->curl);
    free(h);
}

void http_answer_free(http_answer *a)
{
    free(a->text);
    a->text = NULL;
    a->bytes = 0;
}

/* ---- sending and receiving --------------------------------------------------------------------------------------- */

static size_t on_header(char *data, size_t size, size_t count, void *context)
{
    enum { MOST_LINE = 8192 };
    http *h = context;
    const http_request *r = h->request;
    size_t bytes = size * count;
    char line[MOST_LINE];
    if (bytes >= 5 && memcmp(data, "HTTP/", 5) == 0) { /* an answer 100 may precede it */
        http_answer_free(h->answer);
        if (r->on_header)
            r->on_header(r->context, NULL, NULL);
    }
    if (bytes >= sizeof line || memchr(data, 0, bytes) || !r->on_header)
        return bytes;
    memcpy(line, data, bytes);
    while (bytes > 0 && isspace((unsigned char)line[bytes - 1]))
        bytes--;
    line[bytes] = 0;
    char *colon = strchr(line, ':');
    if (colon) {
        *colon++ = 0;
        r->on_header(r->context, line, colon + strspn(colon, " \t"));
    }
    return size * count;
}

static size_t on_body(char *data, size_t size, size_t count, void *context)
{
    http *h = context;
    http_answer *a = h->answer;
    int64_t bytes = (int64_t)(size * count), room = a->bytes ? a->bytes : 1024; /* a power of two, grown from there */
    curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &a->code);
    http_took took = h->request->on_body ? h->request->on_body(h->request->context, a->code, data, bytes) : HTTP_PASSED;
    a->too_long = took == HTTP_PASSED && a->bytes + bytes > h->request->most;
    if (took != HTTP_PASSED || a->too_long)
        return took == HTTP_TOOK ? (size_t)bytes : 0;
    while (room <= a->bytes + bytes)
        room *= 2;
    a->text = must_realloc(a->text, (unsigned long)room);
    memcpy(a->text + a->bytes, data, (size_t)bytes);
    a->bytes += bytes;
    a->text[a->bytes] = 0;
    return (size_t)bytes;
}

static size_t on_upload(char *to, size_t size, size_t count, void *context)
{
    http *h = context;
    int64_t left = h->request->body_bytes - h->at, room = (int64_t)(size * count), now = left < room ? left : room;
    memcpy(to, (const char *)h->request->body + h->at, (size_t)now);
    h->at += now;
    h->answer->sent += now;
    h->since = clock_seconds();
    return (size_t)now;
}

/* The connection was closed before anything was answered: curl sends it again. */
static int on_seek(void *context, curl_off_t offset, int origin)
{
    http *h = context;
    if (origin != SEEK_SET || offset < 0 || offset > h->request->body_bytes)
        return CURL_SEEKFUNC_FAIL;
    h->at = offset;
    return CURL_SEEKFUNC_OK;
}

static int on_progress(void *context, curl_off_t a, curl_off_t received, curl_off_t c, curl_off_t d)
{
    http *h = context;
    const http_request *r = h->request;
    (void)a, (void)c, (void)d;
    if (r->rate > 0) /* a byte now and then is no sign of an end */
        h->late = clock_seconds() > h->since + r->answer + (double)(received + r->body_bytes) / (double)r->rate;
    return h->late || (r->stop && atomic_load(r->stop));
}

/* ---- a request --------------------------------------------------------------------------------------------------- */

static struct curl_slist *list_headers(const http_request *r)
{
    struct curl_slist *list = NULL;
    for (int i = 0; i < r->headers; i++) {
        AUTO_FREE char *line = must_format("%s: %s", r->header[i].name, r->header[i].value);
        list = curl_slist_append(list, line);
        explicit_bzero(line, strlen(line));
    }
    return curl_slist_append(list, "expect:");
}

static void set_options(http *h, struct curl_slist *list)
{
    const http_request *r = h->request;
    CURL *curl = h->curl;
    bool head = strcmp(r->method, "HEAD") == 0;
    curl_easy_reset(curl); /* connections stay */
    curl_easy_setopt(curl, CURLOPT_URL, r->url);
    curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, list);
    curl_easy_setopt(curl, CURLOPT_NOBODY, (long)head);
    curl_easy_setopt(curl, CURLOPT_UPLOAD, (long)(r->body != NULL));
    if (r->body) {
        curl_easy_setopt(curl, CURLOPT_READFUNCTION, on_upload);
        curl_easy_setopt(curl, CURLOPT_READDATA, h);
        curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, on_seek);
        curl_easy_setopt(curl, CURLOPT_SEEKDATA, h);
        curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)r->body_bytes);
    }
    if (!head)
        curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, r->method);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, h);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, h);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, h);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, h->answer->words);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, (long)(1000 * r->connect));
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, r->rate > 0 ? 0 : (long)(1000 * r->answer));
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, (long)r->slow);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)r->stall);
    curl_easy_setopt(curl, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, BUFFER);
    curl_easy_setopt(curl, CURLOPT_UPLOAD_BUFFERSIZE, BUFFER);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "phalanx");
    if (r->direct)
        curl_easy_setopt(curl, CURLOPT_PROXY, "");
    if (r->authorities)
        curl_easy_setopt(curl, CURLOPT_CAINFO, r->authorities);
}

void http_ask(http_answer *out, http *h, const http_request *request)
{
    _Static_assert(sizeof out->words >= CURL_ERROR_SIZE, "libcurl writes as much");
    *out = (http_answer){0};
    h->request = request;
    h->answer = out;
    h->at = 0;
    h->since = clock_seconds();
    h->late = false;
    struct curl_slist *list = list_headers(request);
    set_options(h, list);
    CURLcode result = curl_easy_perform(h->curl);
    curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &out->code);
    out->failure = result == CURLE_OK ? NULL : curl_easy_strerror(result);
    if (h->late)
        snprintf(out->words, sizeof out->words, "the whole answer took longer than %.0f s", clock_seconds() - h->since);
    out->untrusted = result == CURLE_PEER_FAILED_VERIFICATION || result == CURLE_SSL_CACERT_BADFILE;
    out->hopeless = out->untrusted || result == CURLE_URL_MALFORMAT || result == CURLE_OUT_OF_MEMORY;
    for (struct curl_slist *at = list; at; at = at->next)
        explicit_bzero(at->data, strlen(at->data));
    curl_slist_free_all(list);
}

/* ---- secrets ----------------------------------------------------------------------------------------------------- */

void http_wipe(char **text)
{
    if (*text)
        explicit_bzero(*text, strlen(*text));
    free(*text);
    *text = NULL;
}

enum { MOST_HIDDEN = 8 };
static struct {
    const char *name;
    char *value; /* NULL: it was not set, or has been taken */
} hidden[MOST_HIDDEN];

/* Returns a copy, or NULL, and removes the variable. */
static char *remove_variable(const char *name)
{
    char *given = getenv(name), *copy = given && *given ? must_strdup(given) : NULL;
    if (given) {
        explicit_bzero(given, strlen(given)); /* /proc/PID/environ shows this memory */
        unsetenv(name);
    }
    return copy;
}

void http_hide_variables(const char *const *names, int count)
{
    MUST(count <= MOST_HIDDEN && !hidden[0].name, "variables are hidden twice, or too many");
    for (int i = 0; i < count; i++) {
        hidden[i].name = names[i];
        hidden[i].value = remove_variable(names[i]);
    }
}

const char *http_variable(const char *name)
{
    const char *value = getenv(name);
    for (int i = 0; i < MOST_HIDDEN && hidden[i].name; i++)
        if (strcmp(hidden[i].name, name) == 0)
            value = hidden[i].value;
    return value && *value ? value : NULL;
}

char *http_take_variable(const char *name, bool secret)
{
    for (int i = 0; secret && i < MOST_HIDDEN && hidden[i].name; i++)
        if (strcmp(hidden[i].name, name) == 0)
            return TAKE(hidden[i].value);
    const char *value = http_variable(name);
    return secret ? remove_variable(name) : value ? must_strdup(value) : NULL;
}

/* ---- texts ------------------------------------------------------------------------------------------------------- */

char *http_coded(const char *text, const char *also)
{
    static const char digits[] = "0123456789ABCDEF";
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    char *out = must_alloc(3 * strlen(text) + 1), *at = out;
    for (; *text; text++) {
        unsigned char byte = (unsigned char)*text;
        if (strchr(plain, *text) || strchr(also, *text)) {
            *at++ = *text;
            continue;
        }
        *at++ = '%';
        *at++ = digits[byte >> 4];
        *at++ = digits[byte & 15];
    }
    *at = 0;
    return out;
}

double http_date(const char *text)
{
    return (double)curl_getdate(text, NULL);
}

bool http_is_loopback(const char *url)
{
    const char *host = strstr(url, "://");
    if (!host)
        return false;
    host += 3;
    size_t length = *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":/");
    return (length == 9 && !strncmp(host, "localhost", 9)) || (length == 5 && !strncmp(host, "[::1]", 5)) ||
           (!strncmp(host, "127.", 4) && strspn(host, "0123456789.") == length);
}
