#include "engine/checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/checkpoint/checkpoint_find.h"
#include "engine/system/crc32c.h"
#include "engine/system/direct.h"
#include "engine/system/reading.h"
#include "engine/system/retry.h"
#include "engine/files/safetensors.h"
#include "memory/bits.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { SLAB_BYTES = 4 << 20, MOST_OPEN = 128 };

/* Files are read, not mapped: a mapped file that fails or has become shorter kills the process. */
struct checkpoint {
    char *folder;
    manifest *manifest;
    int *descriptors;            /* [files] -1: not open */
    int open, oldest;            /* number of open files, and the file to close next */
    bool **verified;             /* [tensors][pieces] */
    bool any_values;             /* also reads values that are not finite */
    json_t *no_meta;             /* {} */
    char *slab;                  /* the bytes read last */
    int64_t slab_bytes;          /* capacity of `slab` */
    const manifest_piece *whole; /* the piece that `slab` holds whole; NULL: none */
};

/* ---- opening ---- */

static status open_folder(checkpoint **out, const char *folder)
{
    AUTO(checkpoint) *c = must_calloc(1, sizeof *c);
    c->folder = must_strdup(folder);
    AUTO_FREE char *name = must_format("%s/manifest.json", c->folder);
    TRY(manifest_read(&c->manifest, name));
    TRY(manifest_check(c->manifest, name));
    const manifest *m = c->manifest;
    c->descriptors = must_alloc((unsigned long)m->file_count * sizeof *c->descriptors);
    for (int i = 0; i < m->file_count; i++)
        c->descriptors[i] = -1;
    c->verified = must_calloc((unsigned long)m->tensor_count, sizeof *c->verified);
    for (int i = 0; i < m->tensor_count; i++)
        c->verified[i] = must_calloc((unsigned long)m->tensors[i].count, sizeof **c->verified);
    c->no_meta = json_object();
    *out = TAKE(c);
    return STATUS_OK;
}

void checkpoint_close(checkpoint *c)
{
    if (!c)
        return;
    for (int i = 0; c->descriptors && i < c->manifest->file_count; i++)
        if (c->descriptors[i] >= 0)
            close(c->descriptors[i]);
    for (int i = 0; c->verified && i < c->manifest->tensor_count; i++)
        free(c->verified[i]);
    free(c->descriptors);
    free(c->slab);
    free(c->verified);
    free(c->folder);
    json_decref(c->no_meta);
    manifest_free(c->manifest);
    free(c);
}

void checkpoint_accept_any(checkpoint *c)
{
    c->any_values = true;
}

const char *checkpoint_folder(const checkpoint *c)
{
    return c->folder;
}

const manifest *checkpoint_manifest(const checkpoint *c)
{
    return c->manifest;
}

char *checkpoint_identity(const checkpoint *c)
{
    const manifest *m = c->manifest;
    bits sum = {0};
    for (int i = 0; i < m->tensor_count; i++)
        for (int k = 0; k < m->tensors[i].count; k++)
            bits_add(&sum, &m->tensors[i].pieces[k].crc32c, sizeof(uint32_t));
    const json_t *step = json_object_get(checkpoint_meta(c), "step");
    return must_format("the state after step %lld of run %s (sum %016llx)", (long long)json_integer_value(step),
                       *m->run ? m->run : "unknown", (unsigned long long)bits_end(&sum));
}

json_t *checkpoint_meta(const checkpoint *c)
{
    return c->manifest->meta ? c->manifest->meta : c->no_meta;
}

int checkpoint_tensors(const checkpoint *c)
{
    return c->manifest->tensor_count;
}

const manifest_tensor *checkpoint_at(const checkpoint *c, int i)
{
    MUST(i >= 0 && i < c->manifest->tensor_count, "tensor %d of %d", i, c->manifest->tensor_count);
    return &c->manifest->tensors[i];
}

const manifest_tensor *checkpoint_find(const checkpoint *c, const char *section, const char *name)
{
    return manifest_find(c->manifest, section, name);
}

status checkpoint_expect(const checkpoint *c, const char *section, const char *const *names, int count)
{
    json_auto_t *wanted = json_object();
    for (int i = 0; i < count; i++) {
        json_object_set_new(wanted, names[i], json_true());
        if (!checkpoint_find(c, section, names[i]))
            return status_fail(STATUS_FAILED, "%s: tensor %s/%s is missing: was it saved by another model?", c->folder,
                               section, names[i]);
    }
    for (int i = 0; i < c->manifest->tensor_count; i++) {
        const manifest_tensor *t = &c->manifest->tensors[i];
        if (!strcmp(t->section, section) && !json_object_get(wanted, t->name))
            return status_fail(STATUS_FAILED, "%s: tensor %s/%s is none of this model's: was it saved by another?",
                               c->folder, section, t->name);
    }
    return STATUS_OK;
}

/* ---- reading ---- */

static status open_file(int *out, const char *path, int64_t bytes)
{
    struct stat info;
    retry r = {0};
    int descriptor;
    while ((descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC)) < 0 || fstat(descriptor, &info) != 0) {
        int error = errno;
        if (descriptor >= 0)
            close(descriptor);
        if (!retry_again(&r, error, path))
            return status_fail(STATUS_FAILED, "cannot open %s: %s", path, strerror(error));
    }
    if (!S_ISREG(info.st_mode) || info.st_size != bytes) {
        close(descriptor);
        return status_fail(STATUS_FAILED,
                           "%s has %lld bytes, its manifest says %lld: truncated, or of another checkpoint", path,
                           (long long)info.st_size, (long long)bytes);
    }
    *out = descriptor;
    return STATUS_OK;
}

static status descriptor_of(int *out, checkpoint *c, int index)
{
    const manifest_file *file = &c->manifest->files[index];
    if (c->descriptors[index] < 0) {
        for (; c->open >= MOST_OPEN; c->oldest = (c->oldest + 1) % c->manifest->file_count)
            if (c->descriptors[c->oldest] >= 0) {
                close(c->descriptors[c->oldest]);
                c->descriptors[c->oldest] = -1;
                c->open--;
            }
        AUTO_FREE char *path = must_format("%s/%s", c->folder, file->name);
        TRY(open_file(&c->descriptors[index], path, file->bytes));
        c->open++;
    }
    *out = c->descriptors[index];
    return STATUS_OK;
}

/* Opens all files of a checkpoint that has few, so that they stay readable if a run removes it meanwhile. */
static status hold_files(checkpoint *c)
{
    int descriptor;
    for (int i = 0; i < c->manifest->file_count && c->manifest->file_count <= MOST_OPEN; i++)
        TRY(descriptor_of(&descriptor, c, i));
    return STATUS_OK;
}

/* True if `path` now means another checkpoint. */
static bool has_moved_on(const char *path, const char *from)
{
    AUTO_FREE char *now = NULL;
    return checkpoint_resolve(&now, path) == STATUS_OK && strcmp(now, from) != 0;
}

status checkpoint_open(checkpoint **out, const char *path)
{
    enum { TRIES = 20 };
    checkpoint *c = NULL;
    char *folder = NULL;
    status s = STATUS_OK;
    for (int i = 0; i < TRIES; i++) {
        free(folder);
        folder = NULL;
        s = checkpoint_resolve(&folder, path);
        if (s == STATUS_OK)
            s = open_folder(&c, folder);
        bool held = s == STATUS_OK && (strcmp(folder, path) == 0 || hold_files(c) == STATUS_OK);
        if (held || !folder)
            break;
        AUTO_FREE char *message = must_strdup(status_message());
        bool again = has_moved_on(path, folder); /* its run goes on, and has removed the previous checkpoint */
        if (s != STATUS_OK)
            (void)status_fail(s, "%s", message);
        if (!again) /* keeps the message of the file reader */
            break;
        if (s == STATUS_OK)
            checkpoint_close(c);
        c = NULL;
        s = status_fail(STATUS_FAILED, "%s: checkpoints are removed faster than they can be opened", path);
    }
    free(folder);
    if (s == STATUS_OK)
        *out = c;
    return s;
}

/* Reads bytes of a file into the slab. */
static status read_slab(checkpoint *c, int index, int64_t offset, int64_t bytes)
{
    const char *name = c->manifest->files[index].name;
    retry r = {0};
    int descriptor;
    TRY(descriptor_of(&descriptor, c, index));
    c->whole = NULL;
    if (bytes > c->slab_bytes) {
        c->slab_bytes = bytes > SLAB_BYTES ? bytes : SLAB_BYTES;
        c->slab = must_realloc(c->slab, (unsigned long)c->slab_bytes);
    }
    for (int64_t done = 0; done < bytes;) {
        ssize_t got = pread(descriptor, c->slab + done, (size_t)(bytes - done), offset + done);
        if (got > 0)
            done += got;
        else if (got == 0)
            return status_fail(STATUS_FAILED, "%s/%s ends before byte %lld: truncated", c->folder, name,
                               (long long)(offset + bytes));
        else if (!retry_again(&r, errno, name))
            return status_fail(STATUS_FAILED, "cannot read %s/%s: %s", c->folder, name, strerror(errno));
    }
    return STATUS_OK;
}

/* Computes the checksum of bytes of a file, and whether they are finite; a short piece stays in the slab. */
static status checksum_bytes(direct_values *out, checkpoint *c, int index, int64_t offset, int64_t bytes)
{
    out->crc32c = 0;
    out->finite = true;
    for (int64_t done = 0, now; done < bytes; done += now) {
        now = bytes - done < SLAB_BYTES ? bytes - done : SLAB_BYTES;
        TRY(read_slab(c, index, offset + done, now));
        out->crc32c = crc32c(out->crc32c, c->slab, now);
        out->finite = out->finite && dtype_all_finite(out->type, c->slab, now / dtype_bytes(out->type));
    }
    return STATUS_OK;
}

static status verify_piece(checkpoint *c, const manifest_tensor *t, int k)
{
    const manifest_piece *p = &t->pieces[k];
    bool *verified = &c->verified[t - c->manifest->tensors][k];
    direct_values found = {.type = t->type};
    if (*verified)
        return STATUS_OK;
    status s = checksum_bytes(&found, c, p->file, p->offset, p->bytes);
    if (s != STATUS_OK)
        return status_context(s, "tensor %s/%s", t->section, t->name);
    if (found.crc32c != p->crc32c)
        return status_fail(STATUS_FAILED,
                           "%s/%s: tensor %s/%s (%lld bytes at %lld) is damaged: checksum %08x, its manifest says %08x",
                           c->folder, c->manifest->files[p->file].name, t->section, t->name, (long long)p->bytes,
                           (long long)p->offset, found.crc32c, p->crc32c);
    if (!found.finite && !c->any_values)
        return status_fail(STATUS_FAILED, "%s: tensor %s/%s has values that are not finite (NaN or infinity)",
                           c->folder, t->section, t->name);
    c->whole = p->bytes <= SLAB_BYTES ? p : NULL;
    *verified = true;
    return STATUS_OK;
}

/* Copies the rectangle `common` of a piece to its place in the wanted rectangle, in slabs of the first dimension. */
static status copy_part(checkpoint *c, const manifest_tensor *t, const manifest_piece *p, const box *common,
                        const int64_t *origin, const box_memory *to)
{
    box_memory stored = {.type = t->type}, here = *to;
    int64_t part[BOX_DIMS], from = 0, at = 0, element = dtype_bytes(t->type);
    box_row_major(stored.stride, t->dims, p->part.size);
    memcpy(part, common->size, sizeof part);
    for (int d = 0; d < t->dims; d++) {
        from += (common->start[d] - p->part.start[d]) * stored.stride[d];
        at += (common->start[d] - origin[d]) * to->stride[d];
    }
    int64_t rows = t->dims ? part[0] : 1, row_elements = t->dims ? stored.stride[0] : 1;
    int64_t to_row = t->dims ? to->stride[0] : 0, step = SLAB_BYTES / (row_elements * element) + 1;
    for (int64_t row = 0; row < rows; row += step) {
        part[0] = rows - row < step ? rows - row : step;
        int64_t offset = (from + row * row_elements) * element, end = offset + part[0] * row_elements * element;
        if (c->whole != p)
            TRY(read_slab(c, p->file, p->offset + offset, (end < p->bytes ? end : p->bytes) - offset));
        stored.data = c->whole == p ? c->slab + offset : c->slab;
        here.data = (char *)to->data + (at + row * to_row) * dtype_bytes(to->type);
        box_convert(&here, &stored, t->dims, part);
    }
    return STATUS_OK;
}

static status check_shape(const checkpoint *c, const manifest_tensor *t, const rectangle *of)
{
    char stored[128] = "", wanted[128] = "";
    if (t->dims == of->dims && memcmp(t->global, of->global, (size_t)of->dims * sizeof *of->global) == 0)
        return STATUS_OK;
    for (int d = 0, used = 0; d < t->dims; d++)
        used += snprintf(stored + used, sizeof stored - (size_t)used, "%s%lld", d ? ", " : "", (long long)t->global[d]);
    for (int d = 0, used = 0; d < of->dims; d++)
        used +=
            snprintf(wanted + used, sizeof wanted - (size_t)used, "%s%lld", d ? ", " : "", (long long)of->global[d]);
    return status_fail(STATUS_FAILED, "%s: tensor %s/%s has shape [%s], the model's is [%s]", c->folder, t->section,
                       t->name, stored, wanted);
}

status checkpoint_read(checkpoint *c, const char *section, const rectangle *of, const box_memory *to)
{
    const manifest_tensor *t = checkpoint_find(c, section, of->name);
    if (!t)
        return status_fail(STATUS_FAILED, "%s: tensor %s/%s is missing: was it saved by another model?", c->folder,
                           section, of->name);
    TRY(check_shape(c, t, of));
    const box *all = &of->part;
    for (int d = 0; d < of->dims; d++)
        MUST(all->start[d] >= 0 && all->size[d] >= 0 && all->start[d] <= of->global[d] - all->size[d],
             "%s/%s: dimension %d: %lld + %lld of %lld", section, of->name, d, (long long)all->start[d],
             (long long)all->size[d], (long long)of->global[d]);
    box common = {0};
    int64_t wanted = box_volume(of->dims, all->size), found = 0;
    for (int k = 0; k < t->count && found < wanted; k++) {
        const manifest_piece *p = &t->pieces[k];
        if (!box_intersect(&common, of->dims, &p->part, all))
            continue;
        TRY(verify_piece(c, t, k));
        TRY(copy_part(c, t, p, &common, all->start, to));
        found += box_volume(of->dims, common.size);
    }
    MUST(found == wanted, "%s/%s: %lld of %lld elements in a manifest that covers it", section, of->name,
         (long long)found, (long long)wanted);
    if (to->type != t->type && !c->any_values && !box_all_finite(to, of->dims, all->size))
        return status_fail(STATUS_FAILED, "%s: tensor %s/%s has values beyond the range of %s", c->folder, section,
                           of->name, dtype_name(to->type));
    return STATUS_OK;
}

/* ---- verifying ---- */

/* Checks that a safetensors file has the manifest's run id; a file of another run may have the right length. */
static status verify_header(const checkpoint *c, const char *path)
{
    AUTO(safetensors) *file = NULL;
    TRY(safetensors_open(&file, path));
    const json_t *said = json_object_get(safetensors_metadata(file), "run");
    const char *run = json_is_string(said) ? json_string_value(said) : "";
    if (strcmp(run, c->manifest->run) == 0)
        return STATUS_OK;
    return status_fail(STATUS_FAILED, "%s was written by run %s, the manifest beside it by run %s", path,
                       *run ? run : "(none)", *c->manifest->run ? c->manifest->run : "(none)");
}

static status verify_file(checkpoint *c, int index)
{
    const manifest_file *file = &c->manifest->files[index];
    direct_values found = {.type = DTYPE_UINT8, .crc32c = file->crc32c};
    if (file->has_crc32c)
        TRY(checksum_bytes(&found, c, index, 0, file->bytes));
    if (found.crc32c != file->crc32c)
        return status_fail(STATUS_FAILED, "%s/%s is damaged: checksum %08x, its manifest says %08x", c->folder,
                           file->name, found.crc32c, file->crc32c);
    if (!reading_ends_in(file->name, ".safetensors"))
        return STATUS_OK;
    AUTO_FREE char *path = must_format("%s/%s", c->folder, file->name);
    return verify_header(c, path);
}

status checkpoint_verify(checkpoint *c)
{
    for (int i = 0; i < c->manifest->tensor_count; i++) /* pieces first, since their messages name the tensor */
        for (int k = 0; k < c->manifest->tensors[i].count; k++)
            TRY(verify_piece(c, &c->manifest->tensors[i], k));
    for (int i = 0; i < c->manifest->file_count; i++)
        TRY(verify_file(c, i));
    return STATUS_OK;
}
