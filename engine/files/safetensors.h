/* safetensors files: a table of tensors (a JSON header), then their bytes.
 *
 *     0  u64 length of the header    8  header, JSON, padded with spaces to 8    8 + length  data, no gaps
 *     {"__metadata__": {key: text}, name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
 *
 * A `safetensors` maps the file, with its header checked against its length; tensors, names and data belong to it and
 * live until safetensors_close. A writer is the caller's until safetensors_writer_close or safetensors_writer_abandon.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "memory/dtype.h"
#include "memory/scope.h"
#include "memory/status.h"

#define SAFETENSORS_DIMS 8

typedef struct safetensors_tensor {
    const char *name;
    dtype type;
    int dims;
    int64_t shape[SAFETENSORS_DIMS];
    int64_t offset, bytes; /* range in the file; filled by reader and writer */
} safetensors_tensor;

typedef struct safetensors safetensors;

status safetensors_open(safetensors **out, const char *path);
/* Opens a file in memory that outlives the result; `path` is for messages. */
status safetensors_parse(safetensors **out, const void *data, int64_t bytes, const char *path);
void safetensors_close(safetensors *s);
AUTO_CLOSES(safetensors, safetensors_close)
int safetensors_count(const safetensors *s);
/* Returns tensors in the order of their data. */
const safetensors_tensor *safetensors_at(const safetensors *s, int i);
/* Returns the data, possibly unaligned if another program wrote the file. */
const void *safetensors_data(const safetensors *s, const safetensors_tensor *tensor);
/* Returns the object of the key __metadata__, or NULL. */
const json_t *safetensors_metadata(const safetensors *s);

/* A file's layout, made from a declaration of its tensors (name, type, dims, shape; names differ). order[k] is the
 * index, in the declaration, of the k-th tensor of the file: larger elements first, then by name, as the format's
 * reference writer does, so that every tensor is aligned. */
typedef struct safetensors_layout {
    int count;
    int *order;
    int64_t *offsets; /* [count] offsets in the file, by index of the declaration */
    int64_t end;      /* length of the file */
    char *header;     /* its first bytes */
    int64_t header_bytes;
} safetensors_layout;

/* `metadata`: an object of strings, or NULL. */
void safetensors_layout_make(safetensors_layout *out, const safetensors_tensor *tensors, int count,
                             const json_t *metadata);
void safetensors_layout_free(safetensors_layout *w);

typedef struct safetensors_writer safetensors_writer;

/* Writes the header; the data then follows in the order of the layout. */
status safetensors_writer_open(safetensors_writer **out, const char *path, const safetensors_tensor *tensors, int count,
                               const json_t *metadata);
const int *safetensors_writer_order(const safetensors_writer *w);
int64_t safetensors_writer_offset(const safetensors_writer *w, int index);
/* Returns the file's size, and the checksum of the bytes written so far, header included. */
void safetensors_writer_sum(const safetensors_writer *w, int64_t *bytes, uint32_t *crc32c);
/* Writes the next bytes, row-major; a piece may end anywhere. */
status safetensors_writer_data(safetensors_writer *w, const void *data, int64_t bytes);
/* Ends the file; all declared bytes must have been written. Frees `w`, also on failure. */
status safetensors_writer_close(safetensors_writer *w);
void safetensors_writer_abandon(safetensors_writer *w);
AUTO_CLOSES(safetensors_writer, safetensors_writer_abandon)
