#include "engine/files/checkpoint.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/atomic.h"
#include "engine/files/crc32c.h"
#include "engine/files/mapping.h"
#include "memory/log.h"

#define SLAB_BYTES (16 << 20) /* what is read before its pages are let go */

struct checkpoint {
    char *folder;
    manifest *manifest;
    mapping *files;  /* [files] mapped when first touched */
    bool **verified; /* [tensors][pieces] */
    json_t *no_meta; /* {} */
};

/* ---- finding and opening ---- */

static bool has_manifest(const char *folder)
{
    char *path = must_format("%s/manifest.json", folder);
    bool yes = atomic_exists(path);
    free(path);
    return yes;
}

/* The name in FOLDER/latest; the caller's. */
static status read_latest(char **out, const char *folder)
{
    mapping file;
    char *path = must_format("%s/latest", folder);
    status s = mapping_open(&file, path);
    if (s == STATUS_OK) {
        int64_t length = file.bytes;
        while (length > 0 && (file.data[length - 1] == '\n' || file.data[length - 1] == ' '))
            length--;
        bool good = length > 0 && length < 256 && file.data[0] != '.';
        for (int64_t i = 0; i < length && good; i++)
            good = file.data[i] > 0x20 && file.data[i] < 0x7f && file.data[i] != '/';
        if (good)
            *out = must_format("%.*s", (int)length, (const char *)file.data);
        else
            s = status_fail(STATUS_FAILED, "%s does not hold the name of a checkpoint: write one of its folder into it",
                            path);
        mapping_close(&file);
    }
    free(path);
    return s;
}

/* The checkpoint that FOLDER/latest names. */
static status resolve_latest(char **out, const char *folder)
{
    char *name;
    TRY(read_latest(&name, folder));
    char *path = must_format("%s/%s", folder, name), *old = must_format("%s/.old-%s", folder, name);
    status s = STATUS_OK;
    if (!atomic_exists(path) && has_manifest(old)) { /* stopped while replacing it: the older one is whole */
        free(path);
        path = must_strdup(old);
    }
    if (has_manifest(path))
        *out = must_strdup(path);
    else
        s = status_fail(STATUS_FAILED,
                        "%s/latest names %s, but %s/manifest.json does not exist: name another checkpoint", folder,
                        name, path);
    free(old);
    free(path);
    free(name);
    return s;
}

static status resolve(char **out, const char *path)
{
    char *latest = must_format("%s/latest", path), *checkpoints = must_format("%s/checkpoints", path);
    char *below = must_format("%s/latest", checkpoints);
    status s = STATUS_OK;
    if (has_manifest(path))
        *out = must_strdup(path);
    else if (atomic_exists(latest))
        s = resolve_latest(out, path);
    else if (atomic_exists(below))
        s = resolve_latest(out, checkpoints);
    else
        s = status_fail(STATUS_FAILED,
                        "%s holds no checkpoint: neither manifest.json, latest nor checkpoints/latest is there", path);
    free(below);
    free(checkpoints);
    free(latest);
    return s;
}

status checkpoint_open(checkpoint **out, const char *path)
{
    checkpoint *c = must_calloc(1, sizeof *c);
    status s = resolve(&c->folder, path);
    if (s == STATUS_OK) {
        char *name = must_format("%s/manifest.json", c->folder);
        s = manifest_read(&c->manifest, name);
        if (s == STATUS_OK)
            s = manifest_check(c->manifest, name);
        free(name);
    }
    if (s != STATUS_OK) {
        checkpoint_close(c);
        return s;
    }
    const manifest *m = c->manifest;
    c->files = must_calloc((unsigned long)m->file_count, sizeof *c->files);
    c->verified = must_calloc((unsigned long)m->tensor_count, sizeof *c->verified);
    for (int i = 0; i < m->tensor_count; i++)
        c->verified[i] = must_calloc((unsigned long)m->tensors[i].count, sizeof **c->verified);
    c->no_meta = json_object();
    *out = c;
    return STATUS_OK;
}

void checkpoint_close(checkpoint *c)
{
    if (!c)
        return;
    for (int i = 0; c->files && i < c->manifest->file_count; i++)
        mapping_close(&c->files[i]);
    for (int i = 0; c->verified && i < c->manifest->tensor_count; i++)
        free(c->verified[i]);
    free(c->files);
    free(c->verified);
    free(c->folder);
    json_decref(c->no_meta);
    manifest_free(c->manifest);
    free(c);
}

const char *checkpoint_folder(const checkpoint *c)
{
    return c->folder;
}

int checkpoint_ranks(const checkpoint *c)
{
    return c->manifest->ranks;
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
    json_t *wanted = json_object();
    status s = STATUS_OK;
    for (int i = 0; i < count && s == STATUS_OK; i++) {
        json_object_set_new(wanted, names[i], json_true());
        if (!checkpoint_find(c, section, names[i]))
            s = status_fail(STATUS_FAILED, "%s: tensor %s/%s is missing: was it saved by another model?", c->folder,
                            section, names[i]);
    }
    for (int i = 0; i < c->manifest->tensor_count && s == STATUS_OK; i++) {
        const manifest_tensor *t = &c->manifest->tensors[i];
        if (!strcmp(t->section, section) && !json_object_get(wanted, t->name))
            s = status_fail(STATUS_FAILED, "%s: tensor %s/%s is none of this model's: was it saved by another?",
                            c->folder, section, t->name);
    }
    json_decref(wanted);
    return s;
}

/* ---- reading ---- */

static status map_file(checkpoint *c, int index)
{
    const manifest_file *file = &c->manifest->files[index];
    if (c->files[index].data)
        return STATUS_OK;
    char *path = must_format("%s/%s", c->folder, file->name);
    status s = mapping_open(&c->files[index], path);
    if (s == STATUS_OK && c->files[index].bytes != file->bytes) {
        s = status_fail(STATUS_FAILED, "%s has %lld bytes, its manifest says %lld: truncated, or of another checkpoint",
                        path, (long long)c->files[index].bytes, (long long)file->bytes);
        mapping_close(&c->files[index]);
    }
    free(path);
    return s;
}

static status verify_piece(checkpoint *c, const manifest_tensor *t, int k)
{
    const manifest_piece *p = &t->pieces[k];
    bool *verified = &c->verified[t - c->manifest->tensors][k];
    status s = *verified ? STATUS_OK : map_file(c, p->file);
    if (s != STATUS_OK)
        return status_context(s, "tensor %s/%s", t->section, t->name);
    if (*verified)
        return STATUS_OK;
    const mapping *file = &c->files[p->file];
    uint32_t crc = 0;
    for (int64_t done = 0, now; done < p->bytes; done += now) {
        now = p->bytes - done < SLAB_BYTES ? p->bytes - done : SLAB_BYTES;
        mapping_expect(file, p->offset + done, 2 * SLAB_BYTES); /* this slab and the next */
        crc = crc32c(crc, file->data + p->offset + done, now);
        mapping_forget(file, p->offset + done, now);
    }
    if (crc != p->crc32c)
        return status_fail(STATUS_FAILED,
                           "%s/%s: tensor %s/%s (%lld bytes at %lld) is damaged: checksum %08x, its manifest says %08x",
                           c->folder, c->manifest->files[p->file].name, t->section, t->name, (long long)p->bytes,
                           (long long)p->offset, crc, p->crc32c);
    *verified = true;
    return STATUS_OK;
}

/* Copy the rectangle `start`, `size` of a piece to its place in the wanted rectangle, in slabs of the first dimension. */
static void copy_part(const checkpoint *c, const manifest_tensor *t, const manifest_piece *p, dtype type, char *data,
                      const int64_t *stride, const int64_t *origin, const int64_t *start, const int64_t *size)
{
    const mapping *file = &c->files[p->file];
    int64_t from_stride[BOX_DIMS], part[BOX_DIMS], from = 0, to = 0, element = dtype_bytes(t->type);
    box_row_major(from_stride, t->dims, p->size);
    for (int d = 0; d < t->dims; d++) {
        from += (start[d] - p->start[d]) * from_stride[d];
        to += (start[d] - origin[d]) * stride[d];
        part[d] = size[d];
    }
    int64_t rows = t->dims ? size[0] : 1, row_elements = t->dims ? from_stride[0] : 1, to_row = t->dims ? stride[0] : 0;
    int64_t step = SLAB_BYTES / (row_elements * element) + 1;
    for (int64_t row = 0; row < rows; row += step) {
        part[0] = rows - row < step ? rows - row : step;
        int64_t offset = p->offset + (from + row * row_elements) * element;
        box_convert(data + (to + row * to_row) * dtype_bytes(type), type, stride, file->data + offset, t->type,
                    from_stride, t->dims, part);
        int64_t end = offset + part[0] * row_elements * element;
        mapping_forget(file, offset, (end < file->bytes ? end : file->bytes) - offset);
    }
}

static status check_shape(const checkpoint *c, const manifest_tensor *t, int dims, const int64_t *global)
{
    char stored[128] = "", wanted[128] = "";
    if (t->dims == dims && memcmp(t->global, global, (size_t)dims * sizeof *global) == 0)
        return STATUS_OK;
    for (int d = 0, used = 0; d < t->dims; d++)
        used += snprintf(stored + used, sizeof stored - (size_t)used, "%s%lld", d ? ", " : "", (long long)t->global[d]);
    for (int d = 0, used = 0; d < dims; d++)
        used += snprintf(wanted + used, sizeof wanted - (size_t)used, "%s%lld", d ? ", " : "", (long long)global[d]);
    return status_fail(STATUS_FAILED, "%s: tensor %s/%s has shape [%s], the model's is [%s]", c->folder, t->section,
                       t->name, stored, wanted);
}

status checkpoint_read(checkpoint *c, const char *section, const char *name, dtype type, void *data,
                       const int64_t *stride, int dims, const int64_t *global, const int64_t *start,
                       const int64_t *size)
{
    const manifest_tensor *t = checkpoint_find(c, section, name);
    if (!t)
        return status_fail(STATUS_FAILED, "%s: tensor %s/%s is missing: was it saved by another model?", c->folder,
                           section, name);
    TRY(check_shape(c, t, dims, global));
    for (int d = 0; d < dims; d++)
        MUST(start[d] >= 0 && size[d] >= 0 && start[d] <= global[d] - size[d],
             "%s/%s: dimension %d: %lld + %lld of %lld", section, name, d, (long long)start[d], (long long)size[d],
             (long long)global[d]);
    int64_t common_start[BOX_DIMS], common_size[BOX_DIMS], wanted = box_volume(dims, size), found = 0;
    for (int k = 0; k < t->count && found < wanted; k++) {
        const manifest_piece *p = &t->pieces[k];
        if (!box_intersect(common_start, common_size, dims, p->start, p->size, start, size))
            continue;
        TRY(verify_piece(c, t, k));
        copy_part(c, t, p, type, data, stride, start, common_start, common_size);
        found += box_volume(dims, common_size);
    }
    MUST(found == wanted, "%s/%s: %lld of %lld elements in a manifest that covers it", section, name, (long long)found,
         (long long)wanted);
    return STATUS_OK;
}

status checkpoint_verify(checkpoint *c)
{
    for (int i = 0; i < c->manifest->tensor_count; i++)
        for (int k = 0; k < c->manifest->tensors[i].count; k++)
            TRY(verify_piece(c, &c->manifest->tensors[i], k));
    return STATUS_OK;
}

/* ---- pruning ---- */

/* step-00000100 and no other name; steps beyond eight digits have longer names, so length goes first. */
static int is_step(const struct dirent *entry)
{
    const char *digits = entry->d_name + 5;
    return !strncmp(entry->d_name, "step-", 5) && *digits && strspn(digits, "0123456789") == strlen(digits);
}

static int newest_first(const struct dirent **a, const struct dirent **b)
{
    size_t x = strlen((*a)->d_name), y = strlen((*b)->d_name);
    return x != y ? (x < y ? 1 : -1) : strcmp((*b)->d_name, (*a)->d_name);
}

/* Under a temporary name first, so that what is half removed is no checkpoint. */
static status remove_checkpoint(const char *folder, const char *name)
{
    char *path = must_format("%s/%s", folder, name), *temporary = must_format("%s/.tmp-%s", folder, name);
    status s = atomic_remove(temporary);
    if (s == STATUS_OK)
        s = atomic_rename(path, temporary);
    if (s == STATUS_OK)
        s = atomic_remove(temporary);
    free(temporary);
    free(path);
    return s;
}

status checkpoint_prune(const char *folder, int keep)
{
    if (keep < 1)
        return STATUS_OK;
    char *latest;
    struct dirent **entries;
    TRY(read_latest(&latest, folder));
    int count = scandir(folder, &entries, is_step, newest_first), kept = 0;
    status s = count < 0 ? status_fail(STATUS_FAILED, "cannot list %s", folder) : STATUS_OK;
    for (int i = 0; i < count; i++) {
        char *path = must_format("%s/%s", folder, entries[i]->d_name);
        bool whole = has_manifest(path), is_latest = !strcmp(entries[i]->d_name, latest);
        if (whole && kept >= keep && !is_latest && s == STATUS_OK)
            s = remove_checkpoint(folder, entries[i]->d_name);
        kept += whole;
        free(path);
        free(entries[i]);
    }
    if (count >= 0)
        free(entries);
    free(latest);
    return s;
}
