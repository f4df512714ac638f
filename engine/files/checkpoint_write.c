/* The writing side of checkpoint.h: each rank writes its share, rank 0 publishes. */
#include "engine/files/checkpoint.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/atomic.h"
#include "engine/files/crc32c.h"
#include "engine/files/safetensors.h"
#include "memory/log.h"

#define BUFFER_BYTES (4 << 20)

/* ---- one rank's share ---- */

/* The name of a piece in its safetensors file: the tensor's own if it is whole, else with its rectangle behind. */
static char *stored_name(const checkpoint_piece *p)
{
    char text[BOX_DIMS * 48 + 4] = "";
    size_t used = 0;
    if (memcmp(p->size, p->global, (size_t)p->dims * sizeof *p->size) != 0)
        for (int d = 0; d < p->dims; d++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%lld:%lld%s", d ? ", " : "[",
                                     (long long)p->start[d], (long long)(p->start[d] + p->size[d]),
                                     d + 1 == p->dims ? "]" : "");
    return must_format("%s%s", p->name, text);
}

int64_t checkpoint_extent(const checkpoint_piece *p)
{
    int64_t last = 0;
    if (box_volume(p->dims, p->size) == 0)
        return 0;
    for (int d = 0; d < p->dims; d++)
        last += (p->size[d] - 1) * p->stride[d];
    return (last + 1) * dtype_bytes(p->type);
}

/* Stream one piece into the file and take its checksum on the way. */
static status stream_data(safetensors_writer *w, uint32_t *crc, const checkpoint_piece *p)
{
    int64_t element = dtype_bytes(p->type), volume = box_volume(p->dims, p->size), step = BUFFER_BYTES / element;
    int64_t row = p->dims ? p->size[p->dims - 1] : 1;
    step -= row < step ? step % row : 0; /* whole rows, if one fits */
    bool contiguous = box_is_row_major(p->dims, p->size, p->stride);
    char *buffer = contiguous ? NULL : must_alloc(BUFFER_BYTES);
    status s = STATUS_OK;
    *crc = 0;
    for (int64_t done = 0, now; done < volume && s == STATUS_OK; done += now) {
        now = volume - done < step ? volume - done : step;
        const char *data = contiguous ? (const char *)p->data + done * element : buffer;
        if (!contiguous)
            box_gather(buffer, p->data, p->stride, p->dims, p->size, (int)element, done, now);
        *crc = crc32c(*crc, data, now * element);
        s = safetensors_writer_data(w, data, now * element);
    }
    free(buffer);
    return s;
}

static status write_data(safetensors_writer *w, uint32_t *crc, const checkpoint_piece *p)
{
    const checkpoint_source *from = &p->source;
    int64_t bytes = checkpoint_extent(p);
    if (!from->borrow || bytes == 0)
        return stream_data(w, crc, p);
    void *borrowed = from->borrow(from->context, p->data, bytes);
    checkpoint_piece here = *p;
    here.data = borrowed;
    status s = stream_data(w, crc, &here);
    from->give_back(from->context, borrowed, p->data, bytes);
    return s;
}

static status write_pieces(safetensors_writer *w, manifest *fragment, int file, const checkpoint_piece *const *pieces,
                           int count)
{
    for (int k = 0; k < count; k++) {
        int i = safetensors_writer_order(w)[k];
        const checkpoint_piece *p = pieces[i];
        manifest_piece entry = {.file = file,
                                .offset = safetensors_writer_offset(w, i),
                                .bytes = box_volume(p->dims, p->size) * dtype_bytes(p->type)};
        memcpy(entry.start, p->start, sizeof entry.start);
        memcpy(entry.size, p->size, sizeof entry.size);
        TRY(write_data(w, &entry.crc32c, p));
        TRY(manifest_add_piece(fragment, p->section, p->name, p->type, p->dims, p->global, &entry));
    }
    return STATUS_OK;
}

/* The file of one section: SECTION-RANK.safetensors. */
static status write_section(manifest *fragment, const char *folder, const checkpoint_piece *const *pieces, int count,
                            int rank)
{
    MUST(strspn(pieces[0]->section, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") ==
             strlen(pieces[0]->section),
         "section \"%s\"", pieces[0]->section);
    char *name = must_format("%s-%05d.safetensors", pieces[0]->section, rank);
    char *path = must_format("%s/%s", folder, name);
    safetensors_tensor *tensors = must_calloc((unsigned long)count, sizeof *tensors);
    for (int i = 0; i < count; i++) {
        tensors[i] =
            (safetensors_tensor){.name = stored_name(pieces[i]), .type = pieces[i]->type, .dims = pieces[i]->dims};
        memcpy(tensors[i].shape, pieces[i]->size, (size_t)pieces[i]->dims * sizeof *pieces[i]->size);
    }
    json_t *metadata = json_pack("{s:s}", "format", "pt"); /* Hugging Face's loaders ask for it */
    safetensors_writer *w;
    status s = safetensors_writer_open(&w, path, tensors, count, metadata);
    if (s == STATUS_OK) {
        s = write_pieces(w, fragment, fragment->file_count, pieces, count);
        int64_t bytes = safetensors_writer_bytes(w);
        if (s == STATUS_OK)
            s = safetensors_writer_close(w);
        else
            safetensors_writer_abandon(w);
        manifest_add_file(fragment, name, bytes);
    }
    json_decref(metadata);
    for (int i = 0; i < count; i++)
        free((void *)(uintptr_t)tensors[i].name);
    free(tensors);
    free(path);
    free(name);
    return s;
}

static bool is_empty(const checkpoint_piece *p)
{
    MUST(p->dims >= 0 && p->dims <= BOX_DIMS, "%s: %d dimensions", p->name, p->dims);
    return box_volume(p->dims, p->size) == 0;
}

static char *fragment_path(const char *folder, int rank)
{
    return must_format("%s/fragment-%05d.json", folder, rank);
}

static status write_share(const char *folder, const checkpoint_piece *pieces, int count, int rank, int ranks)
{
    manifest *fragment = manifest_make(ranks);
    const checkpoint_piece **section = must_alloc((unsigned long)count * sizeof *section);
    char *done = must_calloc((unsigned long)count, 1);
    status s = STATUS_OK;
    for (int first = 0; first < count && s == STATUS_OK; first++) {
        int members = 0;
        for (int i = first; i < count && !done[first]; i++)
            if (!done[i] && !is_empty(&pieces[i]) && !strcmp(pieces[i].section, pieces[first].section)) {
                section[members++] = &pieces[i];
                done[i] = i != first;
            }
        if (members > 0)
            s = write_section(fragment, folder, section, members, rank);
    }
    char *path = fragment_path(folder, rank);
    if (s == STATUS_OK)
        s = manifest_write(fragment, path);
    free(path);
    free(done);
    free(section);
    manifest_free(fragment);
    return s;
}

/* ---- rank 0 ---- */

/* Remove what starts with `prefix` in a folder: the temporary and replaced checkpoints that an interrupted save left. */
static status remove_leftovers(const char *folder, const char *prefix)
{
    DIR *entries = opendir(folder);
    if (!entries)
        return status_fail(STATUS_FAILED, "cannot list %s", folder);
    status s = STATUS_OK;
    for (struct dirent *entry; s == STATUS_OK && (entry = readdir(entries));)
        if (!strncmp(entry->d_name, prefix, strlen(prefix))) {
            char *path = must_format("%s/%s", folder, entry->d_name);
            s = atomic_remove(path);
            free(path);
        }
    closedir(entries);
    return s;
}

static status prepare(const char *folder, const char *temporary)
{
    TRY(atomic_make_folders(folder));
    TRY(remove_leftovers(folder, ".tmp-"));
    return atomic_make_folders(temporary);
}

static status merge_fragments(const char *temporary, json_t *meta, int ranks)
{
    manifest *all = manifest_make(ranks);
    all->meta = json_incref(meta);
    status s = STATUS_OK;
    for (int rank = 0; rank < ranks && s == STATUS_OK; rank++) {
        char *path = fragment_path(temporary, rank);
        manifest *fragment = NULL;
        s = manifest_read(&fragment, path);
        if (s == STATUS_OK)
            s = manifest_merge(all, fragment);
        if (s == STATUS_OK)
            s = atomic_remove(path);
        manifest_free(fragment);
        free(path);
    }
    char *path = must_format("%s/manifest.json", temporary);
    if (s == STATUS_OK)
        s = manifest_check(all, path);
    if (s == STATUS_OK)
        s = manifest_write(all, path); /* fsyncs the folder too */
    free(path);
    manifest_free(all);
    return s;
}

/* temporary -> folder/name. An older checkpoint of that name first becomes .old-name, where checkpoint_open finds it if
 * this stops between the two renames. */
static status rename_into_place(const char *folder, const char *name, const char *temporary)
{
    char *final = must_format("%s/%s", folder, name), *old = must_format("%s/.old-%s", folder, name);
    bool replaces = atomic_exists(final);
    status s = STATUS_OK;
    if (replaces)
        s = atomic_remove(old);
    if (replaces && s == STATUS_OK)
        s = atomic_rename(final, old);
    if (s == STATUS_OK)
        s = atomic_rename(temporary, final);
    free(old);
    free(final);
    return s;
}

static status publish(const char *folder, const char *name, const char *temporary, json_t *meta, int ranks)
{
    TRY(merge_fragments(temporary, meta, ranks));
    TRY(rename_into_place(folder, name, temporary));
    char *latest = must_format("%s/latest", folder), *text = must_format("%s\n", name);
    status s = atomic_replace(latest, text, (int64_t)strlen(text));
    free(text);
    free(latest);
    if (s == STATUS_OK && remove_leftovers(folder, ".old-") != STATUS_OK)
        log_warn("%s", status_message()); /* the new checkpoint stands all the same */
    return s;
}

/* After a failure: give the disk back, keep the message. */
static void clean(const char *folder, const char *name, const char *temporary)
{
    char *message = must_strdup(status_message());
    char *final = must_format("%s/%s", folder, name), *old = must_format("%s/.old-%s", folder, name);
    if (atomic_exists(old) && !atomic_exists(final))
        (void)atomic_rename(old, final);
    (void)atomic_remove(temporary);
    (void)status_fail(STATUS_FAILED, "%s", message);
    free(old);
    free(final);
    free(message);
}

static status meet(checkpoint_barrier *barrier, void *context, status mine)
{
    return barrier ? barrier(context, mine) : mine;
}

status checkpoint_write(const char *folder, const char *name, const checkpoint_piece *pieces, int count, json_t *meta,
                        int rank, int ranks, checkpoint_barrier *barrier, void *context)
{
    MUST(barrier || ranks == 1, "%d ranks save without a barrier", ranks);
    MUST(*name && *name != '.' && !strchr(name, '/'), "a checkpoint named \"%s\"", name);
    char *temporary = must_format("%s/.tmp-%s", folder, name);
    status s = meet(barrier, context, rank == 0 ? prepare(folder, temporary) : STATUS_OK);
    if (s == STATUS_OK)
        s = meet(barrier, context, write_share(temporary, pieces, count, rank, ranks));
    if (s == STATUS_OK)
        s = meet(barrier, context, rank == 0 ? publish(folder, name, temporary, meta, ranks) : STATUS_OK);
    if (s != STATUS_OK && rank == 0)
        clean(folder, name, temporary);
    free(temporary);
    return s == STATUS_OK ? s : status_context(s, "checkpoint %s not saved", name);
}
