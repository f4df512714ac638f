/* Growing arrays of bytes and of token ids.
 *
 * Both are plain structs that start as {0}, are filled by appending, keep their room when emptied by `length = 0` or
 * `count = 0`, and own their memory until freed.
 */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct buffer {
    char *bytes; /* [room], the first `length` in use */
    int64_t length, room;
} buffer;

typedef struct buffer_ids {
    int32_t *ids; /* [room], the first `count` in use */
    int64_t count, room;
} buffer_ids;

/* Makes room for `more` bytes (ids) after the used ones. */
void buffer_reserve(buffer *b, int64_t more);
void buffer_append(buffer *b, const void *bytes, int64_t length);
void buffer_free(buffer *b);

void buffer_ids_reserve(buffer_ids *b, int64_t more);
void buffer_ids_append(buffer_ids *b, const int32_t *ids, int64_t count);
void buffer_ids_free(buffer_ids *b);

#ifdef __cplusplus
}
#endif
