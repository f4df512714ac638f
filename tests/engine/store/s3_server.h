/* A store that speaks S3 on 127.0.0.1, for tests: objects in memory, signatures verified, and faults by a script.
 *
 * It answers what engine/store/object.h asks: HEAD, GET of ranges, PUT with conditions and checksums, lists, uploads in
 * parts, DELETE; each connection has a thread. s3_server_start sets AWS's variables so that this process and those it
 * starts use the server; its bucket is S3_SERVER_BUCKET, any other one is missing.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define S3_SERVER_BUCKET "bucket"
#define S3_SERVER_ID     "AKIDSTANDIN"
#define S3_SERVER_SECRET "S3CR3Tstandin/key+of=mine"
#define S3_SERVER_TOKEN  "T0K3Nstandin//////of+mine=="

typedef struct s3_server s3_server;

typedef struct s3_server_traits {
    bool old;            /* passes over If-None-Match and checksums, and says no checksum, as older stores do */
    double clock_offset; /* its clock is ahead by so many seconds: requests of another time than a quarter of an hour
                            around it are refused */
    const char *region;  /* it refuses requests signed for another one, and says its own; NULL: any */
    int page;            /* objects of a page of a list, at most; 0: 1,000 */
    double rate;         /* bytes a second of an answer, at most; 0: any */
} s3_server_traits;

s3_server *s3_server_start(void);
void s3_server_stop(s3_server *s);
const char *s3_server_endpoint(const s3_server *s); /* "http://127.0.0.1:PORT" */
void s3_server_be(s3_server *s, s3_server_traits traits);
/* As if it had been killed: connections are cut, and new ones closed, until it is up again. Its objects stay. */
void s3_server_set_down(s3_server *s, bool down);
/* Another secret, which it accepts from now on (S3_SERVER_SECRET at first), and whether a token is asked for. */
void s3_server_set_secret(s3_server *s, const char *secret, bool token);

/* What happens to the requests that come, one word each, in order, with spaces between; then all is well again. A word
 * may begin with a method and a colon: it waits for such a request, while others pass it.
 *   ok          it is answered
 *   500 503 429 ...   that code, with the store's error; 503/2: with Retry-After: 2; 403: AccessDenied
 *   html        503 with a page of a proxy
 *   reset       the connection is closed without an answer
 *   lost        what was asked is done, and the connection closed without an answer
 *   hang        nothing for two seconds, then the connection is closed
 *   cut=N       the body ends after N bytes, and the connection
 *   slow=N      N bytes a second of the body
 *   damage      a bit of the body is another one; what is said of its checksum is not
 *   long        the body is longer than was asked for
 *   elsewhere   another range than was asked for
 *   whole       the range is passed over
 *   expired     400 ExpiredToken
 *   late        200 with an InternalError in the body, as an upload's end may have
 *   garbage     bytes that are no HTTP
 *   echo        403 with an unknown code, and the access key and the token in its message */
void s3_server_faults(s3_server *s, const char *script);
bool s3_server_faults_done(s3_server *s); /* have all words been used? */
/* The next list is answered with this text; NULL: with the truth. */
void s3_server_lie(s3_server *s, const char *list);

/* How many requests came so far. */
int64_t s3_server_requests(s3_server *s);

/* The objects themselves, past all faults. */
void s3_server_put(s3_server *s, const char *key, const void *data, int64_t bytes);
/* A copy, the caller's, with a 0 behind it; NULL: there is none. */
char *s3_server_get(s3_server *s, const char *key, int64_t *bytes);
void s3_server_wipe(s3_server *s);                    /* removes all objects of a bucket */
int s3_server_count(s3_server *s);                    /* of objects */
int s3_server_search(s3_server *s, const char *word); /* objects that hold it, in their bytes or their key */
int s3_server_open_uploads(s3_server *s);             /* of uploads that have begun, and not ended */
