#include "engine/files/safetensors.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/system/crc32c.h"
#include "engine/system/mapping.h"
#include "memory/log.h"
#include "memory/scope.h"

#define HEADER_LIMIT 100000000 /* the reference reader's limit */

/* The format's names, and the rank of each type in the reference writer's order of tensors. */
static const struct {
    const char *name;
    int rank;
} types[DTYPE_COUNT] = {
    [DTYPE_BOOL] = {"BOOL", 1},        [DTYPE_UINT8] = {"U8", 2},         [DTYPE_INT8] = {"I8", 3},
    [DTYPE_FP8_E5M2] = {"F8_E5M2", 4}, [DTYPE_FP8_E4M3] = {"F8_E4M3", 5}, [DTYPE_INT16] = {"I16", 6},
    [DTYPE_UINT16] = {"U16", 7},       [DTYPE_FP16] = {"F16", 8},         [DTYPE_BF16] = {"BF16", 9},
    [DTYPE_INT32] = {"I32", 10},       [DTYPE_UINT32] = {"U32", 11},      [DTYPE_FP32] = {"F32", 12},
    [DTYPE_FP64] = {"F64", 13},        [DTYPE_INT64] = {"I64", 14},       [DTYPE_UINT64] = {"U64", 15},
};

static bool find_type(dtype *type, const char *name)
{
    for (int i = 0; i < DTYPE_COUNT; i++)
        if (types[i].name && !strcmp(types[i].name, name)) {
            *type = (dtype)i;
            return true;
        }
    return false;
}

/* ---- reading ---- */

struct safetensors {
    char *path;
    mapping file; /* all zero if the caller owns the bytes */
    const uint8_t *data;
    int64_t bytes, data_start;
    json_t *header; /* owns the names */
    int count;
    safetensors_tensor *tensors; /* [count] by offset */
};

/* Reads one entry of the header; `end` of the data section bounds its offsets. */
static status read_entry(const safetensors *s, safetensors_tensor *t, const char *name, const json_t *entry)
{
    int64_t room = s->bytes - s->data_start;
    if (log_has_control(name))
        return status_fail(STATUS_FAILED, "%s: a tensor's name has control characters", s->path);
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
    if (!type || !json_is_array(shape) || !json_is_array(offsets) || json_array_size(offsets) != 2)
        return status_fail(STATUS_FAILED, "%s: tensor %s: the header must say dtype, shape and two data_offsets",
                           s->path, name);
    *t = (safetensors_tensor){.name = name, .dims = (int)json_array_size(shape)};
    if (log_has_control(type) || !find_type(&t->type, type))
        return status_fail(STATUS_FAILED, "%s: tensor %s: unknown dtype %.20s", s->path, name,
                           log_has_control(type) ? "" : type);
    if (json_array_size(shape) > SAFETENSORS_DIMS)
        return status_fail(STATUS_FAILED, "%s: tensor %s has %d dimensions, more than %d", s->path, name, t->dims,
                           SAFETENSORS_DIMS);
    bool empty = false, overflow = false;
    int64_t bytes = dtype_bytes(t->type);
    for (int i = 0; i < t->dims; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        t->shape[i] = json_is_integer(size) ? json_integer_value(size) : -1;
        if (t->shape[i] < 0)
            return status_fail(STATUS_FAILED, "%s: tensor %s: dimension %d is no size", s->path, name, i);
        empty = empty || t->shape[i] == 0;
        overflow = __builtin_mul_overflow(bytes, t->shape[i] ? t->shape[i] : 1, &bytes) || overflow;
    }
    if (empty)
        bytes = 0;
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    int64_t begin = json_is_integer(first) ? json_integer_value(first) : -1;
    int64_t end = json_is_integer(last) ? json_integer_value(last) : -1;
    if (begin < 0 || end < begin || end > room)
        return status_fail(STATUS_FAILED,
                           "%s: tensor %s: its bytes %lld to %lld are not within the %lld of the file: is it "
                           "truncated?",
                           s->path, name, (long long)begin, (long long)end, (long long)room);
    if ((overflow && !empty) || end - begin != bytes)
        return status_fail(STATUS_FAILED, "%s: tensor %s: its shape and dtype do not make the %lld bytes it has",
                           s->path, name, (long long)(end - begin));
    t->offset = s->data_start + begin;
    t->bytes = bytes;
    return STATUS_OK;
}

static int compare_offset(const void *a, const void *b)
{
    const safetensors_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1; /* sorts empty ones before the one that begins at the same place */
    return strcmp(x->name, y->name);
}

/* Checks that tensors lie end to end from the first byte to the last, without overlaps or hidden gaps. */
static status check_layout(const safetensors *s)
{
    int64_t next = s->data_start;
    for (int i = 0; i < s->count; i++) {
        const safetensors_tensor *t = &s->tensors[i];
        if (t->offset != next)
            return status_fail(STATUS_FAILED, "%s: tensor %s %s", s->path, t->name,
                               t->offset < next ? "overlaps the one before it"
                                                : "does not follow the one before it: a hole");
        next += t->bytes;
    }
    if (next != s->bytes)
        return status_fail(STATUS_FAILED, "%s: %lld bytes after the last tensor belong to none", s->path,
                           (long long)(s->bytes - next));
    return STATUS_OK;
}

static status read_header(safetensors *s)
{
    uint64_t length;
    json_error_t error;
    if (s->bytes < 8)
        return status_fail(STATUS_FAILED, "%s: %lld bytes are no safetensors file", s->path, (long long)s->bytes);
    memcpy(&length, s->data, sizeof length);
    if (length > (uint64_t)(s->bytes - 8) || length > HEADER_LIMIT)
        return status_fail(STATUS_FAILED,
                           "%s: a header of %llu bytes is impossible in a file of %lld: truncated, or no "
                           "safetensors file",
                           s->path, (unsigned long long)length, (long long)s->bytes);
    s->data_start = 8 + (int64_t)length;
    s->header = json_loadb((const char *)s->data + 8, (size_t)length, JSON_REJECT_DUPLICATES, &error);
    if (!s->header)
        return status_fail(STATUS_FAILED, "%s: header, byte %d: %s", s->path, error.position + 8,
                           log_has_control(error.text) ? "no JSON" : error.text);
    if (!json_is_object(s->header))
        return status_fail(STATUS_FAILED, "%s: the header is no JSON object", s->path);
    s->tensors = must_calloc(json_object_size(s->header), sizeof *s->tensors);
    for (void *i = json_object_iter(s->header); i; i = json_object_iter_next(s->header, i)) {
        const char *name = json_object_iter_key(i);
        if (!strcmp(name, "__metadata__"))
            continue;
        TRY(read_entry(s, &s->tensors[s->count], name, json_object_iter_value(i)));
        s->count++;
    }
    qsort(s->tensors, (size_t)s->count, sizeof *s->tensors, compare_offset);
    const json_t *metadata = json_object_get(s->header, "__metadata__");
    if (metadata && !json_is_object(metadata))
        return status_fail(STATUS_FAILED, "%s: __metadata__ is no JSON object", s->path);
    return check_layout(s);
}

status safetensors_parse(safetensors **out, const void *data, int64_t bytes, const char *path)
{
    AUTO(safetensors) *s = must_calloc(1, sizeof *s);
    s->path = must_strdup(path);
    s->data = data;
    s->bytes = bytes;
    TRY(read_header(s));
    *out = TAKE(s);
    return STATUS_OK;
}

status safetensors_open(safetensors **out, const char *path)
{
    RELEASED_BY(mapping_close) mapping file = {0};
    TRY(mapping_open(&file, path));
    TRY(safetensors_parse(out, file.data, file.bytes, path));
    (*out)->file = file;
    file = (mapping){0};
    return STATUS_OK;
}

void safetensors_close(safetensors *s)
{
    if (!s)
        return;
    mapping_close(&s->file);
    json_decref(s->header);
    free(s->path);
    free(s->tensors);
    free(s);
}

int safetensors_count(const safetensors *s)
{
    return s->count;
}

const safetensors_tensor *safetensors_at(const safetensors *s, int i)
{
    MUST(i >= 0 && i < s->count, "tensor %d of %d", i, s->count);
    return &s->tensors[i];
}

const void *safetensors_data(const safetensors *s, const safetensors_tensor *tensor)
{
    return s->data + tensor->offset;
}

const json_t *safetensors_metadata(const safetensors *s)
{
    return json_object_get(s->header, "__metadata__");
}

/* ---- writing ---- */

struct safetensors_writer {
    atomic_file *file;
    safetensors_layout layout;
    uint32_t crc32c;
};

static int compare_reference(const void *a, const void *b, void *context)
{
    const safetensors_tensor *tensors = context;
    const safetensors_tensor *x = &tensors[*(const int *)a], *y = &tensors[*(const int *)b];
    int difference = types[y->type].rank - types[x->type].rank;
    return difference ? difference : strcmp(x->name, y->name);
}

static int64_t tensor_bytes(const safetensors_tensor *t)
{
    int64_t bytes = dtype_bytes(t->type);
    for (int i = 0; i < t->dims; i++)
        MUST(t->shape[i] >= 0 && !__builtin_mul_overflow(bytes, t->shape[i], &bytes), "%s: dimension %d is %lld",
             t->name, i, (long long)t->shape[i]);
    return bytes;
}

/* Makes the header as text, and counts the offsets from its end. */
static char *make_header(safetensors_layout *w, const safetensors_tensor *tensors, const json_t *metadata)
{
    json_auto_t *header = json_object();
    if (metadata)
        json_object_set_new(header, "__metadata__", json_deep_copy(metadata));
    int64_t next = 0;
    for (int k = 0; k < w->count; k++) {
        const safetensors_tensor *t = &tensors[w->order[k]];
        MUST(t->dims >= 0 && t->dims <= SAFETENSORS_DIMS, "%s: %d dimensions", t->name, t->dims);
        MUST(!json_object_get(header, t->name), "tensor %s is declared twice", t->name);
        int64_t bytes = tensor_bytes(t);
        json_t *shape = json_array();
        for (int i = 0; i < t->dims; i++)
            json_array_append_new(shape, json_integer(t->shape[i]));
        json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", types[t->type].name, "shape", shape, "data_offsets",
                                  (json_int_t)next, (json_int_t)(next + bytes));
        MUST(entry && json_object_set_new(header, t->name, entry) == 0, "tensor name %s is not UTF-8", t->name);
        w->offsets[w->order[k]] = next;
        next += bytes;
    }
    w->end = next;
    return json_dumps(header, JSON_COMPACT);
}

void safetensors_layout_make(safetensors_layout *out, const safetensors_tensor *tensors, int count,
                             const json_t *metadata)
{
    safetensors_layout *w = out;
    *w = (safetensors_layout){.count = count,
                              .order = must_alloc((unsigned long)count * sizeof *w->order),
                              .offsets = must_alloc((unsigned long)count * sizeof *w->offsets)};
    for (int i = 0; i < count; i++)
        w->order[i] = i;
    qsort_r(w->order, (size_t)count, sizeof *w->order, compare_reference, (void *)(uintptr_t)tensors);
    AUTO_FREE char *text = make_header(w, tensors, metadata);
    size_t length = strlen(text);
    uint64_t padded = (length + 7) / 8 * 8;
    w->header_bytes = 8 + (int64_t)padded;
    w->header = must_alloc(8 + padded);
    memcpy(w->header, &padded, sizeof padded);
    memset(w->header + 8, ' ', padded);
    memcpy(w->header + 8, text, length);
    for (int i = 0; i < count; i++)
        w->offsets[i] += w->header_bytes;
    w->end += w->header_bytes;
}

void safetensors_layout_free(safetensors_layout *w)
{
    free(w->order);
    free(w->offsets);
    free(w->header);
    *w = (safetensors_layout){0};
}

status safetensors_writer_open(safetensors_writer **out, const char *path, const safetensors_tensor *tensors, int count,
                               const json_t *metadata)
{
    atomic_file *file;
    TRY(atomic_open(&file, path));
    AUTO(safetensors_writer) *w = must_calloc(1, sizeof *w);
    w->file = file;
    safetensors_layout_make(&w->layout, tensors, count, metadata);
    w->crc32c = crc32c(0, w->layout.header, w->layout.header_bytes);
    TRY(atomic_write(file, w->layout.header, w->layout.header_bytes));
    *out = TAKE(w);
    return STATUS_OK;
}

const int *safetensors_writer_order(const safetensors_writer *w)
{
    return w->layout.order;
}

int64_t safetensors_writer_offset(const safetensors_writer *w, int index)
{
    return w->layout.offsets[index];
}

void safetensors_writer_sum(const safetensors_writer *w, int64_t *bytes, uint32_t *crc32c)
{
    *bytes = w->layout.end;
    *crc32c = w->crc32c;
}

status safetensors_writer_data(safetensors_writer *w, const void *data, int64_t bytes)
{
    MUST(atomic_position(w->file) + bytes <= w->layout.end, "more data than the tensors that were declared");
    w->crc32c = crc32c(w->crc32c, data, bytes);
    return atomic_write(w->file, data, bytes);
}

status safetensors_writer_close(safetensors_writer *w)
{
    MUST(atomic_position(w->file) == w->layout.end, "%lld bytes of the declared tensors were not written",
         (long long)(w->layout.end - atomic_position(w->file)));
    status s = atomic_commit(w->file);
    w->file = NULL;
    safetensors_writer_abandon(w);
    return s;
}

void safetensors_writer_abandon(safetensors_writer *w)
{
    if (!w)
        return;
    atomic_abandon(w->file);
    safetensors_layout_free(&w->layout);
    free(w);
}
