/* HTTP, one request at a time, by libcurl, which nobody else calls: connections that stay open from one request to the
 * next, TLS that is verified, deadlines, answers that are bounded; redirections are not followed. What an answer means
 * and whether to ask again is its user's.
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
    HTTP_TOOK,   /* the bytes are the taker's */
    HTTP_PASSED, /* they belong to the answer's text */
    HTTP_BROKEN, /* the connection is closed */
} http_took;

typedef struct http_request {
    const char *method, *url;
    const http_pair *header; /* [headers]: their lines are overwritten when they are sent */
    int headers;
    const void *body; /* NULL: none is sent */
    int64_t body_bytes;
    const char *authorities; /* a file of certificates; NULL: where libcurl looks by itself */
    bool direct;             /* by no proxy */
    double connect, answer;  /* seconds until there is a connection, and until all of the answer is there; 0: any */
    double stall;            /* seconds at less than `slow` bytes a second; 0: any */
    int slow;
    int64_t most;            /* bytes of the answer's text */
    const atomic_bool *stop; /* when it becomes true, by any thread, the request fails soon; NULL: it never does */
    /* NULL: nobody hears of them. Name NULL: an answer begins; what came before it was none. */
    void (*on_header)(void *context, const char *name, const char *value);
    http_took (*on_body)(void *context, long code, const char *data, int64_t bytes);
    void *context;
} http_request;

typedef struct http_answer {
    long code;  /* 0: there was none */
    char *text; /* with a 0 behind it; NULL: none */
    int64_t bytes;
    int64_t sent;        /* bytes of the body, again and again */
    const char *failure; /* what went wrong on the way; NULL: all of an answer has come */
    bool too_long;       /* by `most` */
    bool untrusted;      /* by its certificate */
    bool hopeless;       /* it will not do another time, either */
    char words[256];     /* more about the failure; "": no more is known */
} http_answer;

status http_open(http **out);
void http_close(http *h); /* NULL is accepted */
AUTO_CLOSES(http, http_close)

/* `out` is the caller's to free by http_answer_free. */
void http_ask(http_answer *out, http *h, const http_request *request);
void http_answer_free(http_answer *a); /* one that is all zero is accepted */

/* All but letters, digits, "-._~" and those of `also` as %XX; the caller's. */
char *http_coded(const char *text, const char *also);
/* Seconds since 1970 of a header's date; -1: it is none. */
double http_date(const char *text);
/* The name localhost and 127.0.0.0/8 and ::1 are this machine. */
bool http_is_loopback(const char *url);
