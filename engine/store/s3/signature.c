#include "engine/store/s3/signature.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "memory/log.h"
#include "memory/scope.h"

enum { HASH = 32 };

static void write_hex(char hex[SIGNATURE_HEX], const unsigned char *hash)
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < HASH; i++) {
        hex[2 * i] = digits[hash[i] >> 4];
        hex[2 * i + 1] = digits[hash[i] & 15];
    }
    hex[2 * HASH] = 0;
}

void signature_hash(char hex[SIGNATURE_HEX], const void *data, int64_t bytes)
{
    unsigned char hash[EVP_MAX_MD_SIZE];
    MUST(EVP_Digest(data, (size_t)bytes, hash, NULL, EVP_sha256(), NULL) == 1, "libcrypto computes no SHA-256");
    write_hex(hex, hash);
}

static void hmac_text(unsigned char out[HASH], const void *key, int key_bytes, const char *text)
{
    unsigned char hash[EVP_MAX_MD_SIZE];
    MUST(HMAC(EVP_sha256(), key, key_bytes, (const unsigned char *)text, strlen(text), hash, NULL),
         "libcrypto computes no HMAC");
    memcpy(out, hash, HASH);
}

/* ---- canonical forms --------------------------------------------------------------------------------------------- */

char *signature_path(const char *path)
{
    return http_coded(path, "/");
}

static int compare_texts(const void *a, const void *b)
{
    const char *const *x = a, *const *y = b;
    return strcmp(*x, *y);
}

/* Joins the texts, separated by `between`, and frees them. */
static char *join_texts(char **text, int count, const char *between)
{
    size_t bytes = 1;
    for (int i = 0; i < count; i++)
        bytes += strlen(text[i]) + strlen(between);
    char *out = must_calloc(1, bytes), *at = out;
    for (int i = 0; i < count; i++) {
        at = stpcpy(at, text[i]);
        if (i + 1 < count)
            at = stpcpy(at, between);
        free(text[i]);
    }
    return out;
}

/* Sorts by name, then by value. '=' sorts after every encoded byte's '%' but before letters, so names are compared with
 * a 1 in its place. */
char *signature_query(const http_pair *query, int queries)
{
    AUTO_FREE char **text = must_calloc((unsigned long)queries + 1, sizeof *text);
    for (int i = 0; i < queries; i++) {
        AUTO_FREE char *name = http_coded(query[i].name, ""), *value = http_coded(query[i].value, "");
        text[i] = must_format("%s\1%s", name, value);
    }
    qsort(text, (size_t)queries, sizeof *text, compare_texts);
    for (int i = 0; i < queries; i++)
        *strchr(text[i], '\1') = '=';
    return join_texts(text, queries, "&");
}

/* Writes sorted lines "name:value" (into *lines, each with its end), and the names separated by ";". */
static void canonical_headers(char **lines, char **names, const signature_request *r)
{
    AUTO_FREE char **line = must_calloc((unsigned long)r->headers + 1, sizeof *line);
    AUTO_FREE char **name = must_calloc((unsigned long)r->headers + 1, sizeof *name);
    for (int i = 0; i < r->headers; i++) {
        line[i] = must_format("%s\1%s\n", r->header[i].name, r->header[i].value);
        name[i] = must_strdup(r->header[i].name);
    }
    qsort(line, (size_t)r->headers, sizeof *line, compare_texts);
    qsort(name, (size_t)r->headers, sizeof *name, compare_texts);
    for (int i = 0; i < r->headers; i++)
        *strchr(line[i], '\1') = ':';
    *lines = join_texts(line, r->headers, "");
    *names = join_texts(name, r->headers, ";");
}

/* ---- signing ----------------------------------------------------------------------------------------------------- */

static void sign_text(char hex[SIGNATURE_HEX], const signature_key *key, const char *day, const char *text)
{
    unsigned char hash[HASH];
    AUTO_FREE char *first = must_format("AWS4%s", key->secret);
    hmac_text(hash, first, (int)strlen(first), day);
    hmac_text(hash, hash, HASH, key->region);
    hmac_text(hash, hash, HASH, key->service);
    hmac_text(hash, hash, HASH, "aws4_request");
    hmac_text(hash, hash, HASH, text);
    write_hex(hex, hash);
    explicit_bzero(first, strlen(first));
}

char *signature_authorization(const signature_key *key, const signature_request *r)
{
    char hash[SIGNATURE_HEX], signature[SIGNATURE_HEX];
    AUTO_FREE char *lines = NULL, *names = NULL;
    AUTO_FREE char *path = signature_path(r->path), *query = signature_query(r->query, r->queries);
    canonical_headers(&lines, &names, r);
    AUTO_FREE char *canonical = must_format("%s\n%s\n%s\n%s\n%s\n%s", r->method, path, query, lines, names, r->payload);
    AUTO_FREE char *day = must_format("%.8s", r->time);
    AUTO_FREE char *scope = must_format("%s/%s/%s/aws4_request", day, key->region, key->service);
    signature_hash(hash, canonical, (int64_t)strlen(canonical));
    AUTO_FREE char *text = must_format("AWS4-HMAC-SHA256\n%s\n%s\n%s", r->time, scope, hash);
    sign_text(signature, key, day, text);
    return must_format("AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s", key->id, scope, names,
                       signature);
}
