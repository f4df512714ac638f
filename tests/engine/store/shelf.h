/* What the stand-in of a store holds: objects, and uploads in parts, in memory. One lock of the caller's guards all. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct shelf_object {
    char *key, *data; /* a 0 is behind the data */
    int64_t bytes;
    char etag[64], crc32c[24]; /* of an object of parts: the checksum of checksums */
    int part;                  /* of an upload */
} shelf_object;

typedef struct shelf_upload {
    char *key, id[32];
    int parts, room;
    shelf_object *part; /* [parts], in the order in which they came */
} shelf_upload;

typedef struct shelf {
    int count, uploads, begun;
    shelf_object **object; /* [count], ascending by key */
    shelf_upload **upload; /* [uploads] */
} shelf;

void shelf_free(shelf *s);
void shelf_checksum(char out[9], const void *data, int64_t bytes);
shelf_object *shelf_find(const shelf *s, const char *key);
shelf_object *shelf_put(shelf *s, const char *key, const void *data, int64_t bytes);
void shelf_remove(shelf *s, const char *key);

shelf_upload *shelf_begin(shelf *s, const char *key);
shelf_upload *shelf_find_upload(const shelf *s, const char *key, const char *id);
shelf_object *shelf_put_part(shelf_upload *u, int number, const void *data, int64_t bytes);
/* `list`: the XML that names the parts. The upload becomes an object and is freed; or the error's name. */
const char *shelf_end(shelf *s, shelf_upload *u, const char *list);
void shelf_forget(shelf *s, shelf_upload *u);

/* A page of ListObjectsV2 of at most `most` entries, those behind the key `token`; with folders where asked for. */
char *shelf_list(const shelf *s, const char *prefix, bool folders, const char *token, int most);
char *shelf_list_uploads(const shelf *s, const char *prefix);
