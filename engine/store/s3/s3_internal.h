/* Shared by the files of the scheme s3://: one call, which is retried until it is answered, and its answer
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
    double clock_offset; /* seconds the store's clock is ahead of this machine's */
    bool reached;        /* the store has answered at least once */
    bool has_bucket;     /* the bucket is known to exist */
    bool refused;        /* the last failure was an answer that a retry cannot change */
    object_counts counts;
};

enum { S3_CALL_PAIRS = 6 };

/* A request; `key` "" addresses the bucket. */
typedef struct s3_call {
    const char *method, *doing; /* doing: for messages, "cannot DOING s3://..." */
    const char *key;
    http_pair query[S3_CALL_PAIRS], header[S3_CALL_PAIRS];
    int queries, headers;
    const void *body;
    int64_t body_bytes;
    /* A range: its bytes go to `to`, unless NULL; `got` of them have arrived. */
    char *to;
    int64_t offset, wanted, got;
    bool whole; /* the range is the whole object, requested without a Range header: the store then sends its checksum */
    char etag[OBJECT_ETAG]; /* version that the range must have; "": the first answer's */
    bool has_crc32c;        /* the first answer states the whole object's checksum */
    uint32_t crc32c;
    bool may_miss;      /* 404 is not a failure */
    bool may_refuse;    /* 412 is not a failure */
    bool may_fail_late; /* the store joins parts before it answers */
    bool once;          /* not retried */
} s3_call;

/* Limit of a text that becomes part of a message, a path or a header. */
enum { S3_WORD = 128 };

typedef struct s3_reply {
    long code;
    int64_t length; /* object's length, by Content-Length or Content-Range; -1: not said */
    int64_t begins; /* start of the range; -1: not said */
    char etag[OBJECT_ETAG], crc32c[S3_WORD], checksum_type[S3_WORD], region[S3_WORD], error[S3_WORD],
        message[8 * S3_WORD], request[S3_WORD];
    double retry_after;
    double date;    /* store's clock, seconds since 1970; 0: not said */
    char *text;     /* the body, unless it went to call->to; NULL: none */
    int64_t bytes;  /* length of `text` */
    char why[1024]; /* the last failure */
} s3_reply;

/* Asks until there is an answer that the call allows for; fails with a complete message. The caller frees the reply by
 * s3_reply_free in either case. */
status s3_perform(s3_reply *out, object_store *s, s3_call *c);
/* Performs a call and discards the reply. */
status s3_do(object_store *s, s3_call *c);
/* Fails a call for the caller's reason: "cannot DOING s3://... at HOST: why". */
status s3_refuse(const object_store *s, const s3_call *c, const char *why);

/* Returns the seconds of a whole answer, beside those for its bytes. */
double s3_answer_seconds(const object_store *s);
void s3_reply_free(s3_reply *r);
/* Writes the checksum in base64, most significant byte first, as headers have it: 8 digits and a 0. */
void s3_checksum_text(char out[9], uint32_t crc32c);
/* Reads the whole object's checksum; false: the answer does not state it. */
bool s3_object_checksum(uint32_t *crc32c, const s3_reply *r);
/* Copies the text of an element, if it is short and printable; else out is "". */
void s3_take_word(char *out, size_t room, const char *text);
/* The largest object that is believed in, 64 TiB: tables of its blocks are made by its length. S3 takes up to 50 TB. */
#define S3_OBJECT_MOST ((int64_t)1 << 46)

/* Parses a size; -1: not a number, or larger than any object. */
int64_t s3_number(const char *text);

/* ---- xml.c ---- */

/* Reads the XML subset of a store's answers: elements with text; attributes are irrelevant, a DTD is refused.
 *
 * The server is not trusted: depth, names and texts are bounded; a DOCTYPE and bad nesting are refused.
 */

/* Called at an element's end: `path` is the names from the root to it ("ListBucketResult/Contents/Key"), `text` its own
 * text, decoded, valid during the call. */
typedef status xml_taker(void *context, const char *path, const char *text);

/* Fails with the status of `take`, or reports the byte at which the text is not XML. */
status xml_read(const char *text, int64_t bytes, xml_taker *take, void *context);
