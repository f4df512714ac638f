/* AWS Signature Version 4: an HMAC-SHA-256 over the request, in the header Authorization, authenticates the caller.
 *
 * Pure functions of their arguments, as AWS documents them (API reference of S3, "Authenticating Requests: Using the
 * Authorization Header"). Paths are S3's: each byte is encoded once, and "//" and ".." stay unchanged. The caller
 * frees returned texts. A path and a query are encoded here for the URL too, so the signed form is sent.
 */
#pragma once

#include <stdint.h>

#include "engine/system/http.h"

typedef struct signature_key {
    const char *id, *secret, *region, *service;
} signature_key;

typedef struct signature_request {
    const char *method, *path; /* the path is not encoded: "/bucket/a key" */
    const http_pair *query;    /* [queries], in any order */
    const http_pair *header;   /* [headers], in any order, each name once; all are signed */
    int queries, headers;
    const char *payload; /* signature_hash() of the body, or SIGNATURE_UNSIGNED */
    const char *time;    /* UTC: "20130524T000000Z", also the header x-amz-date */
} signature_request;

#define SIGNATURE_UNSIGNED "UNSIGNED-PAYLOAD" /* for a body that TLS protects */
enum { SIGNATURE_HEX = 65 };                  /* 64 digits and a 0 */

/* Writes the SHA-256 in hexadecimal digits. */
void signature_hash(char hex[SIGNATURE_HEX], const void *data, int64_t bytes);
/* Encodes all but letters, digits, "-._~" and "/" as %XX. */
char *signature_path(const char *path);
/* Returns "a=1&b=2", encoded (a slash too) and sorted. */
char *signature_query(const http_pair *query, int queries);
/* Returns the header's value: "AWS4-HMAC-SHA256 Credential=..., SignedHeaders=..., Signature=...". */
char *signature_authorization(const signature_key *key, const signature_request *request);
