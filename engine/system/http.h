/* HTTP, one request at a time, by libcurl, which only http.c calls: connections that stay open from one request to the
 * next, TLS that is verified, deadlines, answers that are bounded; redirections are not followed. Its user interprets
 * answers and decides on retries.
 *
 * A client is one thread's at a time, and its caller's until http_close. A request makes no allocation of 64 KiB or
 * more of its own, but for an answer as long as that.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "memory/scope.h"
#include "memory/status.h"

typedef struct http http;

/* A header, or a parameter of a query: neither is coded. */
typedef struct http_pair {
    const char *name, *value;
} http_pair;

typedef enum http_took {
    HTTP_TOOK,   /* the callback has taken the bytes */
    HTTP_PASSED, /* the bytes go into the answer's text */
    HTTP_BROKEN, /* closes the connection */
} http_took;

typedef struct http_request {
    const char *method, *url;
    const http_pair *header; /* [headers]: sending overwrites their lines */
    int headers;
    const void *body; /* NULL: none is sent */
    int64_t body_bytes;
    const char *authorities; /* a file of certificates; NULL: where libcurl looks by itself */
    bool direct;             /* uses no proxy */
    double connect, answer;  /* time limits in seconds of connecting, and of the whole answer; 0: any */
    int64_t rate;            /* above 0: `answer` counts from the last byte sent, and so many bytes add a second */
    double stall;            /* seconds at less than `slow` bytes a second; 0: any */
    int slow;
    int64_t most;            /* bytes of the answer's text */
    const atomic_bool *stop; /* once true, set by any thread, the request fails soon; NULL: never */
    /* NULL: headers are ignored. Name NULL: an answer begins, and earlier headers do not count. */
    void (*on_header)(void *context, const char *name, const char *value);
    http_took (*on_body)(void *context, long code, const char *data, int64_t bytes);
    void *context;
} http_request;

typedef struct http_answer {
    long code;  /* 0: there was none */
    char *text; /* terminated by a 0; NULL: none */
    int64_t bytes;
    int64_t sent;        /* bytes of the body sent, resends included */
    const char *failure; /* why the request failed; NULL: the whole answer has come */
    bool too_long;       /* exceeds `most` */
    bool untrusted;      /* the certificate is not trusted */
    bool hopeless;       /* a retry cannot help */
    char words[256];     /* details of the failure, or "" */
} http_answer;

status http_open(http **out);
void http_close(http *h); /* accepts NULL */
AUTO_CLOSES(http, http_close)

/* Sends a request; the caller frees `out` by http_answer_free. */
void http_ask(http_answer *out, http *h, const http_request *request);
void http_answer_free(http_answer *a); /* accepts one that is all zero */

/* Encodes all but letters, digits, "-._~" and characters of `also` as %XX; the caller frees it. */
char *http_coded(const char *text, const char *also);
/* Returns a header's date in seconds since 1970; -1: it is not a date. */
double http_date(const char *text);
/* True if the host is this machine: localhost, 127.0.0.0/8 or ::1. */
bool http_is_loopback(const char *url);

/* Overwrites a secret text, frees it, and sets it to NULL, which it may be. */
void http_wipe(char **text);
/* Moves variables out of the environment, which children and /proc show. Called at most once, before the first
 * thread. */
void http_hide_variables(const char *const *names, int count);
/* Returns the value of a variable, hidden or not; NULL: it is not set, or empty. */
const char *http_variable(const char *name);
/* Copies a variable that is not empty, or returns NULL; removes a secret one. */
char *http_take_variable(const char *name, bool secret);
