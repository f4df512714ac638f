#include "tests/engine/store/s3_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "memory/log.h"

const char *s3_request_header(const s3_request *r, const char *name)
{
    for (int i = 0; i < r->headers; i++)
        if (strcmp(r->header[i].name, name) == 0)
            return r->header[i].value;
    return NULL;
}

const char *s3_request_parameter(const s3_request *r, const char *name)
{
    for (int i = 0; i < r->pairs; i++)
        if (strcmp(r->pair[i].name, name) == 0)
            return r->pair[i].value;
    return NULL;
}

void s3_request_unescape(char *text)
{
    char *to = text;
    for (const char *at = text; *at; at++, to++) {
        unsigned value;
        *to = *at;
        if (*at == '%' && sscanf(at + 1, "%2x", &value) == 1) {
            *to = (char)value;
            at += 2;
        }
    }
    *to = 0;
}

static void parse_query(s3_request *r)
{
    for (char *at = r->query, *next; at && *at && r->pairs < S3_MOST_PAIRS; at = next) {
        next = strchr(at, '&');
        if (next)
            *next++ = 0;
        char *equals = strchr(at, '=');
        if (equals)
            *equals++ = 0;
        s3_request_unescape(at);
        if (equals)
            s3_request_unescape(equals);
        r->pair[r->pairs++] = (http_pair){at, equals ? equals : ""};
    }
}

static void parse_head(s3_request *r, const char *bucket)
{
    char *save = NULL, *line = strtok_r(r->head, "\r\n", &save);
    r->method = line ? line : r->head;
    while ((line = strtok_r(NULL, "\r\n", &save)) && r->headers < S3_MOST_PAIRS) {
        char *colon = strchr(line, ':');
        if (!colon)
            continue;
        *colon++ = 0;
        for (char *c = line; *c; c++)
            *c = (char)(*c >= 'A' && *c <= 'Z' ? *c + 'a' - 'A' : *c);
        r->header[r->headers++] = (http_pair){line, colon + strspn(colon, " ")};
    }
    char *space = strchr(r->method, ' ');
    if (!space)
        return;
    *space = 0;
    r->path = space + 1;
    r->path[strcspn(r->path, " ")] = 0;
    r->query = strchr(r->path, '?');
    if (r->query)
        *r->query++ = 0;
    parse_query(r);
    s3_request_unescape(r->path);
    size_t ours = 1 + strlen(bucket);
    r->bucket = strncmp(r->path + 1, bucket, ours - 1) == 0 && (!r->path[ours] || r->path[ours] == '/');
    char *slash = strchr(r->path + 1, '/');
    r->key = slash ? slash + 1 : r->path + strlen(r->path);
}

bool s3_request_read(s3_request *r, int fd, const char *bucket)
{
    *r = (s3_request){.head = must_calloc(1, S3_MOST_HEAD + 1)};
    size_t got = 0;
    char *end = NULL;
    while (!end && got < S3_MOST_HEAD) {
        ssize_t now = recv(fd, r->head + got, S3_MOST_HEAD - got, 0);
        if (now <= 0)
            return false;
        got += (size_t)now;
        end = memmem(r->head, got, "\r\n\r\n", 4);
    }
    if (!end)
        return false;
    const char *length = strcasestr(r->head, "\r\ncontent-length:");
    r->bytes = length && length < end ? atoll(length + strlen("\r\ncontent-length:")) : 0;
    r->body = must_alloc((unsigned long)r->bytes + 1);
    int64_t had = (int64_t)(r->head + got - (end + 4));
    memcpy(r->body, end + 4, (size_t)had);
    *end = 0;
    while (had < r->bytes) {
        ssize_t now = recv(fd, r->body + had, (size_t)(r->bytes - had), 0);
        if (now <= 0)
            return false;
        had += now;
    }
    r->body[r->bytes] = 0;
    parse_head(r, bucket);
    return r->path != NULL;
}

void s3_request_free(s3_request *r)
{
    free(r->head);
    free(r->body);
}
