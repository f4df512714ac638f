#include "engine/checkpoint/manifest.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/system/crc32c.h"
#include "engine/system/mapping.h"
#include "engine/system/reading.h"
#include "memory/log.h"
#include "memory/scope.h"

/* ---- building ---- */

status manifest_draw_run_id(char run[MANIFEST_RUN])
{
    unsigned char bits[(MANIFEST_RUN - 1) / 2];
    if (getrandom(bits, sizeof bits, 0) != sizeof bits)
        return status_fail(STATUS_FAILED, "the system has no random numbers: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bits; i++)
        snprintf(run + 2 * i, 3, "%02x", bits[i]);
    return STATUS_OK;
}

manifest *manifest_make(int ranks)
{
    manifest *m = must_calloc(1, sizeof *m);
    m->ranks = ranks;
    m->index = json_object();
    MUST(m->index, "out of host memory");
    return m;
}

void manifest_free(manifest *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->file_count; i++)
        free(m->files[i].name);
    for (int i = 0; i < m->tensor_count; i++) {
        free(m->tensors[i].section);
        free(m->tensors[i].name);
        free(m->tensors[i].pieces);
    }
    free(m->files);
    free(m->tensors);
    json_decref(m->meta);
    json_decref(m->index);
    free(m);
}

int manifest_add_file(manifest *m, const manifest_file *file)
{
    APPEND(m->files, m->file_count) = *file;
    return m->file_count - 1;
}

static json_t *find_index(const manifest *m, const char *section, const char *name)
{
    AUTO_FREE char *key = must_format("%s/%s", section, name);
    return json_object_get(m->index, key);
}

const manifest_tensor *manifest_find(const manifest *m, const char *section, const char *name)
{
    const json_t *index = find_index(m, section, name);
    return index ? &m->tensors[json_integer_value(index)] : NULL;
}

static manifest_tensor *add_tensor(manifest *m, const manifest_tensor *of)
{
    manifest_tensor *t = &APPEND(m->tensors, m->tensor_count);
    *t = (manifest_tensor){
        .section = must_strdup(of->section), .name = must_strdup(of->name), .type = of->type, .dims = of->dims};
    memcpy(t->global, of->global, sizeof t->global);
    AUTO_FREE char *key = must_format("%s/%s", of->section, of->name);
    int failed = json_object_set_new(m->index, key, json_integer(m->tensor_count - 1));
    MUST(!failed, "tensor name %s is not UTF-8", key);
    return t;
}

status manifest_add_piece(manifest *m, const manifest_tensor *of, const manifest_piece *piece)
{
    const json_t *index = find_index(m, of->section, of->name);
    manifest_tensor *t = index ? &m->tensors[json_integer_value(index)] : add_tensor(m, of);
    if (t->type != of->type || t->dims != of->dims ||
        memcmp(t->global, of->global, (size_t)of->dims * sizeof *of->global) != 0)
        return status_fail(STATUS_FAILED, "tensor %s/%s: two pieces disagree about its shape or dtype", of->section,
                           of->name);
    APPEND(t->pieces, t->count) = *piece;
    return STATUS_OK;
}

/* ---- completeness ---- */

static int compare_start(const void *a, const void *b)
{
    const manifest_piece *x = a, *y = b;
    return (x->part.start[0] > y->part.start[0]) - (x->part.start[0] < y->part.start[0]);
}

/* Pieces cover the tensor once if no two overlap and their volumes add up to the whole. */
status manifest_check_tensor(const manifest_tensor *t, const char *where)
{
    int64_t volume = 0;
    box common;
    if (t->dims > 0 && t->count > 0)
        qsort(t->pieces, (size_t)t->count, sizeof *t->pieces, compare_start);
    for (int i = 0; i < t->count; i++) {
        const box *a = &t->pieces[i].part;
        volume += box_volume(t->dims, a->size);
        for (int k = i + 1; k < t->count; k++) {
            const box *b = &t->pieces[k].part;
            if (t->dims > 0 && b->start[0] >= a->start[0] + a->size[0])
                break;
            if (box_intersect(&common, t->dims, a, b))
                return status_fail(STATUS_FAILED, "%s: tensor %s/%s: two of its pieces overlap", where, t->section,
                                   t->name);
        }
    }
    if (volume != box_volume(t->dims, t->global))
        return status_fail(STATUS_FAILED, "%s: tensor %s/%s has a gap: its pieces hold %lld of %lld elements", where,
                           t->section, t->name, (long long)volume, (long long)box_volume(t->dims, t->global));
    return STATUS_OK;
}

typedef struct extent {
    int file, tensor;
    int64_t offset, end;
} extent;

static int compare_extent(const void *a, const void *b)
{
    const extent *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static status check_extents(const manifest *m, const char *where)
{
    int count = 0;
    for (int i = 0; i < m->tensor_count; i++)
        count += m->tensors[i].count;
    AUTO_FREE extent *all = must_alloc((unsigned long)count * sizeof *all);
    extent *next = all;
    for (int i = 0; i < m->tensor_count; i++)
        for (int k = 0; k < m->tensors[i].count; k++) {
            const manifest_piece *p = &m->tensors[i].pieces[k];
            *next++ = (extent){.file = p->file, .tensor = i, .offset = p->offset, .end = p->offset + p->bytes};
        }
    qsort(all, (size_t)count, sizeof *all, compare_extent);
    for (int i = 1; i < count; i++)
        if (all[i].file == all[i - 1].file && all[i].offset < all[i - 1].end) {
            const manifest_tensor *a = &m->tensors[all[i - 1].tensor], *b = &m->tensors[all[i].tensor];
            return status_fail(STATUS_FAILED, "%s: tensors %s/%s and %s/%s share bytes of %s", where, a->section,
                               a->name, b->section, b->name, m->files[all[i].file].name);
        }
    return STATUS_OK;
}

status manifest_check(const manifest *m, const char *where)
{
    for (int i = 0; i < m->tensor_count; i++)
        TRY(manifest_check_tensor(&m->tensors[i], where));
    return check_extents(m, where);
}

/* ---- reading ---- */

static bool parse_number(int64_t *out, const json_t *value, int64_t least, int64_t most)
{
    if (!json_is_integer(value) || json_integer_value(value) < least || json_integer_value(value) > most)
        return false;
    *out = json_integer_value(value);
    return true;
}

static bool parse_numbers(int64_t *out, const json_t *array, int count, int64_t least)
{
    if (!json_is_array(array) || json_array_size(array) != (size_t)count)
        return false;
    for (int i = 0; i < count; i++)
        if (!parse_number(&out[i], json_array_get(array, (size_t)i), least, INT64_MAX))
            return false;
    return true;
}

static bool parse_checksum(uint32_t *out, const json_t *value)
{
    const char *text = json_string_value(value);
    if (!text || strlen(text) != 8 || strspn(text, "0123456789abcdef") != 8)
        return false;
    *out = (uint32_t)strtoul(text, NULL, 16);
    return true;
}

bool manifest_is_run(const char *run)
{
    size_t length = run ? strlen(run) : 0;
    return length > 0 && length < MANIFEST_RUN && strspn(run, "0123456789abcdef") == length;
}

static status read_files(manifest *m, const json_t *files, const char *path)
{
    for (size_t i = 0; i < json_array_size(files); i++) {
        const json_t *entry = json_array_get(files, i), *name = json_object_get(entry, "name");
        const json_t *crc = json_object_get(entry, "crc32c");
        manifest_file file = {.has_crc32c = crc != NULL};
        if (!reading_is_name(json_string_value(name)) ||
            !parse_number(&file.bytes, json_object_get(entry, "bytes"), 0, INT64_MAX) ||
            (crc && !parse_checksum(&file.crc32c, crc)))
            return status_fail(STATUS_FAILED, "%s: file %d: wrong name, size or checksum", path, (int)i);
        file.name = must_strdup(json_string_value(name));
        manifest_add_file(m, &file);
    }
    return STATUS_OK;
}

/* Parses one piece of `of`, whose shape and type are checked already; false if it is not within tensor and file. */
static bool parse_piece(const manifest *m, manifest_piece *p, const json_t *entry, const manifest_tensor *of)
{
    int64_t file, bytes = dtype_bytes(of->type), *start = p->part.start, *size = p->part.size;
    if (!parse_numbers(start, json_object_get(entry, "start"), of->dims, 0) ||
        !parse_numbers(size, json_object_get(entry, "size"), of->dims, 1) ||
        !parse_number(&file, json_object_get(entry, "file"), 0, m->file_count - 1) ||
        !parse_number(&p->offset, json_object_get(entry, "offset"), 0, m->files[file].bytes) ||
        !parse_number(&p->bytes, json_object_get(entry, "bytes"), 0, m->files[file].bytes - p->offset) ||
        !parse_checksum(&p->crc32c, json_object_get(entry, "crc32c")))
        return false;
    p->file = (int)file;
    for (int d = 0; d < of->dims; d++) {
        if (start[d] >= of->global[d] || size[d] > of->global[d] - start[d])
            return false;
        bytes *= size[d]; /* cannot overflow: the piece lies within the tensor, which has a known size */
    }
    return p->bytes == bytes;
}

static status read_tensor(manifest *m, const json_t *entry, int number, const char *path)
{
    const json_t *section = json_object_get(entry, "section"), *name = json_object_get(entry, "name");
    const json_t *shape = json_object_get(entry, "shape"), *pieces = json_object_get(entry, "pieces");
    const char *type_name = json_string_value(json_object_get(entry, "dtype"));
    const char *s = json_string_value(section), *n = json_string_value(name);
    if (!reading_is_name(s) || !n || !*n || log_has_control(n))
        return status_fail(STATUS_FAILED, "%s: tensor %d: wrong section or name", path, number);
    manifest_tensor t = {.section = (char *)(uintptr_t)s, .name = (char *)(uintptr_t)n};
    t.dims = (int)json_array_size(shape);
    if (!type_name || !dtype_find(&t.type, type_name))
        return status_fail(STATUS_FAILED, "%s: tensor %s/%s: unknown dtype", path, s, n);
    if (t.dims > BOX_DIMS || !parse_numbers(t.global, shape, t.dims, 1))
        return status_fail(STATUS_FAILED, "%s: tensor %s/%s: its shape is not up to %d sizes", path, s, n, BOX_DIMS);
    int64_t bytes = dtype_bytes(t.type);
    for (int d = 0; d < t.dims; d++)
        if (__builtin_mul_overflow(bytes, t.global[d], &bytes))
            return status_fail(STATUS_FAILED, "%s: tensor %s/%s is too large", path, s, n);
    if (find_index(m, s, n))
        return status_fail(STATUS_FAILED, "%s: tensor %s/%s is listed twice", path, s, n);
    if (json_array_size(pieces) == 0)
        return status_fail(STATUS_FAILED, "%s: tensor %s/%s has no pieces", path, s, n);
    for (size_t k = 0; k < json_array_size(pieces); k++) {
        manifest_piece piece = {0};
        if (!parse_piece(m, &piece, json_array_get(pieces, k), &t))
            return status_fail(STATUS_FAILED, "%s: tensor %s/%s: piece %d is wrong or outside of its tensor or file",
                               path, s, n, (int)k);
        TRY(manifest_add_piece(m, &t, &piece));
    }
    return STATUS_OK;
}

static status read_body(manifest *m, const json_t *root, const char *path)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    int64_t version, ranks;
    if (!format || strcmp(format, MANIFEST_FORMAT) != 0)
        return status_fail(STATUS_FAILED, "%s: this is no phalanx checkpoint", path);
    if (!parse_number(&version, json_object_get(root, "version"), MANIFEST_VERSION, MANIFEST_VERSION))
        return status_fail(STATUS_FAILED, "%s: a checkpoint of another version than %d: use the phalanx that wrote it",
                           path, MANIFEST_VERSION);
    if (!parse_number(&ranks, json_object_get(root, "ranks"), 1, INT32_MAX))
        return status_fail(STATUS_FAILED, "%s: ranks is no number of ranks", path);
    m->ranks = (int)ranks;
    const char *run = json_string_value(json_object_get(root, "run"));
    if (run && !manifest_is_run(run))
        return status_fail(STATUS_FAILED, "%s: run is no name of a run", path);
    if (run)
        strcpy(m->run, run);
    m->meta = json_incref(json_object_get(root, "meta"));
    const json_t *files = json_object_get(root, "files"), *tensors = json_object_get(root, "tensors");
    if ((m->meta && !json_is_object(m->meta)) || !json_is_array(files) || !json_is_array(tensors))
        return status_fail(STATUS_FAILED, "%s: meta, files or tensors is not of the right kind", path);
    TRY(read_files(m, files, path));
    for (size_t i = 0; i < json_array_size(tensors); i++)
        TRY(read_tensor(m, json_array_get(tensors, i), (int)i, path));
    return STATUS_OK;
}

status manifest_parse(manifest **out, const char *text, int64_t bytes, const char *path)
{
    char tail[MANIFEST_TAIL_BYTES + 1];
    int64_t body = bytes - MANIFEST_TAIL_BYTES;
    if (body >= 0)
        snprintf(tail, sizeof tail, MANIFEST_TAIL, crc32c(0, text, body));
    if (body < 0 || memcmp(tail, text + body, MANIFEST_TAIL_BYTES) != 0)
        return status_fail(STATUS_FAILED, "%s: damaged or truncated: its checksum does not match", path);
    json_error_t error;
    json_auto_t *root = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return status_fail(STATUS_FAILED, "%s:%d: not valid JSON", path, error.line);
    AUTO(manifest) *m = manifest_make(1);
    TRY(read_body(m, root, path));
    *out = TAKE(m);
    return STATUS_OK;
}

status manifest_read(manifest **out, const char *path)
{
    RELEASED_BY(mapping_close) mapping file = {0};
    TRY(mapping_open(&file, path));
    return manifest_parse(out, (const char *)file.data, file.bytes, path);
}

/* ---- writing: each part goes to `out` at once, so that memory does not grow with the checkpoint ---- */

/* Writes one value and releases it. */
static status write_json(direct *out, json_t *value)
{
    AUTO_FREE char *text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    json_decref(value);
    MUST(text, "a text that is not UTF-8, or out of host memory");
    return direct_write(out, text, (int64_t)strlen(text), NULL);
}

static json_t *json_numbers(const int64_t *values, int count)
{
    json_t *array = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(array, json_integer(values[i]));
    return array;
}

status manifest_text_head(direct *out, int ranks, const char *run, json_t *meta)
{
    TRY(direct_print(out, "{\"format\":\"" MANIFEST_FORMAT "\",\"version\":%d,\"ranks\":%d,", MANIFEST_VERSION, ranks));
    TRY(*run ? direct_print(out, "\"run\":\"%s\",\n", run) : direct_print(out, "\n"));
    if (meta) {
        TRY(direct_print(out, "\"meta\":"));
        TRY(write_json(out, json_incref(meta)));
        TRY(direct_print(out, ",\n"));
    }
    return direct_print(out, "\"files\":[");
}

status manifest_text_file(direct *out, const manifest_file *file, bool first)
{
    json_t *entry = json_pack("{s:s, s:I}", "name", file->name, "bytes", (json_int_t)file->bytes);
    if (file->has_crc32c)
        json_object_set_new(entry, "crc32c", json_sprintf("%08x", file->crc32c));
    TRY(direct_print(out, first ? "\n" : ",\n"));
    return write_json(out, entry);
}

status manifest_text_tensor(direct *out, const manifest_tensor *t, bool first)
{
    TRY(direct_print(out, first ? "\n],\n\"tensors\":[\n" : ",\n"));
    TRY(direct_print(out, "{\"section\":\"%s\",\"name\":", t->section));
    TRY(write_json(out, json_string(t->name)));
    TRY(direct_print(out, ",\"dtype\":\"%s\",\"shape\":", dtype_name(t->type)));
    TRY(write_json(out, json_numbers(t->global, t->dims)));
    TRY(direct_print(out, ",\"pieces\":["));
    for (int k = 0; k < t->count; k++) {
        const manifest_piece *p = &t->pieces[k];
        TRY(direct_print(out, "%s\n  ", k ? "," : ""));
        TRY(write_json(out, json_pack("{s:o, s:o, s:i, s:I, s:I, s:o}", "start", json_numbers(p->part.start, t->dims),
                                      "size", json_numbers(p->part.size, t->dims), "file", p->file, "offset",
                                      (json_int_t)p->offset, "bytes", (json_int_t)p->bytes, "crc32c",
                                      json_sprintf("%08x", p->crc32c))));
    }
    return direct_print(out, "]}");
}

status manifest_text_end(direct *out)
{
    TRY(direct_print(out, "\n],\n"));
    return direct_print(out, MANIFEST_TAIL, out->crc32c);
}

static status write_all(direct *out, const manifest *m)
{
    TRY(manifest_text_head(out, m->ranks, m->run, m->meta));
    for (int i = 0; i < m->file_count; i++)
        TRY(manifest_text_file(out, &m->files[i], i == 0));
    if (m->tensor_count == 0)
        TRY(direct_print(out, "\n],\n\"tensors\":["));
    for (int i = 0; i < m->tensor_count; i++)
        TRY(manifest_text_tensor(out, &m->tensors[i], i == 0));
    return manifest_text_end(out);
}

status manifest_write(const manifest *m, const char *path)
{
    enum { BUFFER_BYTES = 256 << 10 };
    direct out;
    AUTO_FREE char *temporary = must_format("%s.tmp", path), *buffer = aligned_alloc(DIRECT_ALIGNMENT, BUFFER_BYTES);
    MUST(buffer, "out of host memory");
    TRY(direct_open(&out, temporary, buffer, BUFFER_BYTES));
    status s = direct_close(&out, write_all(&out, m));
    if (s == STATUS_OK)
        s = atomic_rename(temporary, path);
    if (s != STATUS_OK)
        (void)unlink(temporary);
    return s;
}
