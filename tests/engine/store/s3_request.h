#pragma once
/* A request of HTTP as the store of tests reads it from a connection: method, path, query, headers, body. */
#include <stdbool.h>
#include <stdint.h>

#include "engine/store/s3/signature.h"

enum { S3_MOST_HEAD = 32 << 10, S3_MOST_PAIRS = 64 };

typedef struct s3_request {
    char *head, *method, *path, *query;                   /* path and query as they came, encoded */
    char *key;                                            /* decoded, without the bucket */
    bool bucket;                                          /* it is ours */
    http_pair header[S3_MOST_PAIRS], pair[S3_MOST_PAIRS]; /* pair: of the query, decoded; names of headers are small */
    int headers, pairs;
    char *body;
    int64_t bytes;
} s3_request;

/* The value of header `name` (small letters), and of parameter `name` of the query; NULL: there is none. */
const char *s3_request_header(const s3_request *r, const char *name);
const char *s3_request_parameter(const s3_request *r, const char *name);

/* Decodes %XX in place. */
void s3_request_unescape(char *text);

/* Reads the next request of connection `fd` and parses it; `bucket` is the name of ours. Returns false where the
 * connection has ended. s3_request_free frees what was read in either case. */
bool s3_request_read(s3_request *r, int fd, const char *bucket);
void s3_request_free(s3_request *r);
