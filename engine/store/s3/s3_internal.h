/* What the files of the scheme s3:// share: one call, which is tried until it is answered, and its answer
 * (s3_request.c). */
#pragma once

#include "engine/store/s3/account.h"
#include "engine/store/object.h"
#include "engine/store/s3/signature.h"
#include "engine/system/http.h"

struct object_store {
    http *http;
    char *bucket;
    account who;
    object_limits limits;
    double clock_offset; /* seconds that the store's clock is ahead of this machine's */
    bool reached;        /* it has answered anything at all */
    object_counts counts;
};

enum { S3_CALL_PAIRS = 6 };

/* A request. `key` "" asks the bucket. */
typedef struct s3_call {
    const char *method, *doing; /* doing: for messages, "cannot DOING s3://..." */
    const char *key;
    http_pair query[S3_CALL_PAIRS], header[S3_CALL_PAIRS];
    int queries, headers;
    const void *body;
    int64_t body_bytes;
    /* A range: its bytes go to `to`, if that is not NULL, and `got` of them are there. */
    char *to;
    int64_t offset, wanted, got;
    bool whole; /* the range is all of the object, and is asked for without saying so: the store has its checksum */
    char etag[OBJECT_ETAG]; /* of the version that a range must be of; "": the first answer's */
    bool has_crc32c;        /* of the whole object, as the first answer says it */
    uint32_t crc32c;
    bool may_miss;      /* 404 is an answer */
    bool may_refuse;    /* 412 is an answer */
    bool may_fail_late; /* an answer 200 may hold an error */
    bool once;          /* it is not tried again */
} s3_call;

/* What a text that becomes part of a message, a path or a header may be, at most. */
enum { S3_WORD = 128 };

typedef struct s3_reply {
    long code;
    int64_t length; /* of the object, by Content-Length or Content-Range; -1: not said */
    int64_t begins; /* of a range; -1: not said */
    char etag[OBJECT_ETAG], crc32c[S3_WORD], checksum_type[S3_WORD], region[S3_WORD], error[S3_WORD],
        message[2 * S3_WORD], request[S3_WORD];
    double retry_after;
    double date;    /* of the store, seconds since 1970; 0: not said */
    char *text;     /* the body, unless it went to call->to; NULL: none */
    int64_t bytes;  /* of the text */
    char why[1024]; /* the last failure */
} s3_reply;

/* Asks until there is an answer that the call allows for; fails with the whole sentence. The reply is the caller's to
 * free by s3_reply_free in either case. */
status s3_perform(s3_reply *out, object_store *s, s3_call *c);
/* The same, of which only that matters. */
status s3_do(object_store *s, s3_call *c);
/* The failure of a call for a reason of its caller's: "cannot DOING s3://... at HOST: why". */
status s3_refuse(const object_store *s, const s3_call *c, const char *why);

void s3_reply_free(s3_reply *r);
/* Base64 of the checksum, most significant byte first, as headers have it: 8 digits and a 0. */
void s3_checksum_text(char out[9], uint32_t crc32c);
/* Of the whole object; false: the answer does not say it. */
bool s3_object_checksum(uint32_t *crc32c, const s3_reply *r);
/* The text of an element, if it is short and printable; else out is "". */
void s3_take_word(char *out, size_t room, const char *text);
/* A size; -1: it is none. */
int64_t s3_number(const char *text);

/* ---- xml.c ---- */

/* The XML of a store's answers, as far as they have it: elements with text, no attributes that matter, no DTD.
 *
 * What a server says is not trusted: depth, names and texts are bounded, a DOCTYPE and what does not nest are refused.
 */

/* An element has ended: `path` is the names from the root to it ("ListBucketResult/Contents/Key"), `text` its own text,
 * decoded, valid during the call. */
typedef status xml_taker(void *context, const char *path, const char *text);

/* Fails with what `take` fails with, or says at which byte the text is no XML. */
status xml_read(const char *text, int64_t bytes, xml_taker *take, void *context);
