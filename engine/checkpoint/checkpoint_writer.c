#include "engine/checkpoint/checkpoint_writer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/system/direct.h"
#include "engine/system/lock.h"
#include "engine/checkpoint/fragment.h"
#include "engine/system/retry.h"
#include "engine/files/safetensors.h"
#include "memory/log.h"
#include "memory/scope.h"

/* The file of one section: SECTION-RANK.safetensors. */
typedef struct section_file {
    manifest_file file;
    safetensors_layout layout;
    int first; /* index of its first piece; pieces lie in the file's order */
} section_file;

struct checkpoint_writer {
    int rank, ranks;
    char run[MANIFEST_RUN];
    bool any_values, refused;
    lock *owner;
    const char *name; /* name of the checkpoint that is being written */
    char *buffer;
    int piece_count, file_count, extra_count;
    checkpoint_piece *pieces; /* [piece_count] by file, then by offset in it */
    manifest_piece *entries;  /* [piece_count] manifest entries of the last share */
    int *listed;              /* [piece_count] in the order of a fragment */
    section_file *files;      /* [file_count] */
    checkpoint_extra *extras;
    manifest_file *extra_files; /* [extra_count] */
};

char *checkpoint_temporary(const char *folder, const char *name)
{
    return must_format("%s/.tmp-%s", folder, name);
}

char *checkpoint_fragment(const char *temporary, int rank)
{
    return must_format("%s/fragment-%05d", temporary, rank);
}

int64_t checkpoint_extent(const checkpoint_piece *p)
{
    int64_t last = 0;
    if (box_volume(p->of.dims, p->of.part.size) == 0)
        return 0;
    for (int d = 0; d < p->of.dims; d++)
        last += (p->of.part.size[d] - 1) * p->at.stride[d];
    return (last + 1) * dtype_bytes(p->at.type);
}

/* ---- laying out ---- */

/* Names a piece in its safetensors file: the tensor's own if it is whole, else followed by its rectangle. */
static char *stored_name(const rectangle *p)
{
    char text[BOX_DIMS * 48 + 4] = "";
    size_t used = 0;
    if (memcmp(p->part.size, p->global, (size_t)p->dims * sizeof *p->global) != 0)
        for (int d = 0; d < p->dims; d++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%lld:%lld%s", d ? ", " : "[",
                                     (long long)p->part.start[d], (long long)(p->part.start[d] + p->part.size[d]),
                                     d + 1 == p->dims ? "]" : "");
    return must_format("%s%s", p->name, text);
}

static bool is_empty(const checkpoint_piece *p)
{
    MUST(p->of.dims >= 0 && p->of.dims <= BOX_DIMS, "%s: %d dimensions", p->of.name, p->of.dims);
    return box_volume(p->of.dims, p->of.part.size) == 0;
}

/* Lays out the pieces of one section, in any order, as the writer's next file. */
static void add_file(checkpoint_writer *w, const checkpoint_piece *const *pieces, int count)
{
    const char *section = pieces[0]->section;
    MUST(strspn(section, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == strlen(section),
         "section \"%s\"", section);
    section_file *f = &w->files[w->file_count];
    AUTO_FREE safetensors_tensor *tensors = must_calloc((unsigned long)count, sizeof *tensors);
    for (int i = 0; i < count; i++) {
        const rectangle *r = &pieces[i]->of;
        tensors[i] = (safetensors_tensor){.name = stored_name(r), .type = pieces[i]->at.type, .dims = r->dims};
        memcpy(tensors[i].shape, r->part.size, (size_t)r->dims * sizeof *r->part.size);
    }
    json_t *metadata = json_pack("{s:s}", "format", "pt"); /* Hugging Face's loaders ask for it */
    if (*w->run)
        json_object_set_new(metadata, "run", json_string(w->run));
    safetensors_layout_make(&f->layout, tensors, count, metadata);
    json_decref(metadata);
    f->first = w->piece_count;
    f->file = (manifest_file){
        .name = must_format("%s-%05d.safetensors", section, w->rank), .bytes = f->layout.end, .has_crc32c = true};
    for (int k = 0; k < count; k++) {
        int i = f->layout.order[k];
        const checkpoint_piece *p = pieces[i];
        manifest_piece *e = &w->entries[w->piece_count];
        *e = (manifest_piece){.part = p->of.part,
                              .file = w->file_count,
                              .offset = f->layout.offsets[i],
                              .bytes = box_volume(p->of.dims, p->of.part.size) * dtype_bytes(p->at.type)};
        w->pieces[w->piece_count++] = *p;
    }
    for (int i = 0; i < count; i++)
        free((void *)(uintptr_t)tensors[i].name);
    w->file_count++;
}

static void add_files(checkpoint_writer *w, const checkpoint_piece *pieces, int count)
{
    const checkpoint_piece **section = must_alloc((unsigned long)count * sizeof *section);
    AUTO_FREE bool *done = must_calloc((unsigned long)count, sizeof *done);
    for (int first = 0; first < count; first++) {
        int members = 0;
        for (int i = first; i < count && !done[first]; i++)
            if (!done[i] && !is_empty(&pieces[i]) && !strcmp(pieces[i].section, pieces[first].section)) {
                section[members++] = &pieces[i];
                done[i] = i != first;
            }
        if (members > 0)
            add_file(w, section, members);
    }
    free(section);
}

static int compare_listed(const void *a, const void *b, void *context)
{
    const checkpoint_piece *pieces = context, *x = &pieces[*(const int *)a], *y = &pieces[*(const int *)b];
    const int64_t *x_start = x->of.part.start, *y_start = y->of.part.start;
    int order = fragment_order(x->section, x->of.name, y->section, y->of.name);
    for (int d = 0; d < x->of.dims && d < y->of.dims && !order; d++)
        order = (x_start[d] > y_start[d]) - (x_start[d] < y_start[d]);
    return order;
}

checkpoint_writer *checkpoint_writer_open(const checkpoint_writer_options *o)
{
    checkpoint_writer *w = must_calloc(1, sizeof *w);
    unsigned long count = (unsigned long)o->share.count;
    MUST(strlen(o->share.run) < sizeof w->run, "a run named \"%s\"", o->share.run);
    strcpy(w->run, o->share.run);
    w->rank = o->share.rank;
    w->ranks = o->share.ranks;
    w->any_values = o->share.any_values;
    w->owner = o->owner;
    w->buffer = o->buffer;
    w->pieces = must_calloc(count, sizeof *w->pieces);
    w->entries = must_calloc(count, sizeof *w->entries);
    w->listed = must_calloc(count, sizeof *w->listed);
    w->files = must_calloc(count, sizeof *w->files);
    w->extra_count = o->extra_count;
    w->extras = must_calloc((unsigned long)o->extra_count, sizeof *w->extras);
    w->extra_files = must_calloc((unsigned long)o->extra_count, sizeof *w->extra_files);
    add_files(w, o->share.pieces, o->share.count);
    for (int i = 0; i < w->piece_count; i++)
        w->listed[i] = i;
    qsort_r(w->listed, (size_t)w->piece_count, sizeof *w->listed, compare_listed, w->pieces);
    for (int i = 0; i < o->extra_count; i++) {
        w->extras[i] = o->extras[i];
        w->extra_files[i] =
            (manifest_file){.name = must_strdup(o->extras[i].name), .bytes = o->extras[i].bytes, .has_crc32c = true};
    }
    return w;
}

void checkpoint_writer_close(checkpoint_writer *w)
{
    if (!w)
        return;
    for (int i = 0; i < w->file_count; i++) {
        free(w->files[i].file.name);
        safetensors_layout_free(&w->files[i].layout);
    }
    for (int i = 0; i < w->extra_count; i++)
        free(w->extra_files[i].name);
    free(w->extra_files);
    free(w->extras);
    free(w->files);
    free(w->listed);
    free(w->entries);
    free(w->pieces);
    free(w);
}

/* ---- writing ---- */

/* Streams one piece into the file, and takes its checksum. */
static status put_data(direct *out, direct_values *values, const rectangle *of, const box_memory *at)
{
    const int64_t *size = of->part.size;
    int64_t element = dtype_bytes(at->type), volume = box_volume(of->dims, size);
    *values = (direct_values){.type = at->type, .finite = true};
    if (box_is_row_major(of->dims, size, at->stride))
        return direct_write(out, at->data, volume * element, values);
    for (int64_t done = 0, now; done < volume; done += now) {
        int64_t room;
        char *to = direct_room(out, &room);
        MUST(room >= element, "%s: its elements are not aligned in the file", of->name);
        now = volume - done < room / element ? volume - done : room / element;
        box_gather(to, at, of->dims, size, done, now);
        TRY(direct_added(out, now * element, values));
    }
    return STATUS_OK;
}

/* Context of checkpoint_content for one of the share's files. */
typedef struct part {
    checkpoint_writer *w;
    int index;
} part;

static status put_section(direct *out, void *context)
{
    const part *of = context;
    checkpoint_writer *w = of->w;
    const section_file *f = &w->files[of->index];
    TRY(direct_write(out, f->layout.header, f->layout.header_bytes, NULL));
    for (int k = f->first; k < f->first + f->layout.count; k++) {
        MUST(direct_position(out) == w->entries[k].offset, "%s: %s is at %lld", f->file.name, w->pieces[k].of.name,
             (long long)direct_position(out));
        const checkpoint_piece *p = &w->pieces[k];
        const checkpoint_source *from = &p->source;
        int64_t bytes = checkpoint_extent(p);
        box_memory here = p->at;
        direct_values values;
        if (from->borrow)
            here.data = from->borrow(from->context, p->at.data, bytes);
        status s = put_data(out, &values, &p->of, &here);
        if (from->borrow)
            from->give_back(from->context, here.data, p->at.data, bytes);
        TRY(s);
        w->entries[k].crc32c = values.crc32c;
        w->refused = !values.finite && !w->any_values;
        if (w->refused) /* no run can resume from such a state */
            return status_fail(STATUS_FAILED,
                               "tensor %s/%s has values that are not finite (NaN or infinity): this state is not saved",
                               p->section, p->of.name);
    }
    return STATUS_OK;
}

status checkpoint_bytes(direct *out, void *context)
{
    const mapping *from = context;
    return direct_write(out, from->data, from->bytes, NULL);
}

status checkpoint_put(manifest_file *out, const char *path, char *buffer, checkpoint_content *put, void *context)
{
    retry r = {0};
    int error;
    status s;
    do {
        direct file;
        s = direct_open(&file, path, buffer, CHECKPOINT_WRITER_BUFFER);
        if (s == STATUS_OK)
            s = direct_close(&file, put(&file, context));
        error = file.error;
        if (s != STATUS_OK)
            continue;
        out->bytes = direct_position(&file);
        out->crc32c = file.crc32c;
        out->has_crc32c = true;
        s = direct_verify(&error, path, out->bytes, out->crc32c, buffer, CHECKPOINT_WRITER_BUFFER);
    } while (s != STATUS_OK && retry_again(&r, error, path));
    return s;
}

static status write_file(manifest_file *file, const checkpoint_writer *w, const char *temporary,
                         checkpoint_content *put, void *context)
{
    AUTO_FREE char *path = must_format("%s/%s", temporary, file->name);
    TRY(lock_check(w->owner));
    return checkpoint_put(file, path, w->buffer, put, context);
}

static status put_fragment(direct *out, void *context)
{
    const checkpoint_writer *w = context;
    AUTO_FREE char *head = fragment_head("fragment", &(fragment_owner){w->run, w->name, w->rank, w->ranks});
    TRY(direct_write(out, head, (int64_t)strlen(head), NULL));
    for (int i = 0; i < w->file_count; i++)
        TRY(fragment_put_file(out, &w->files[i].file));
    for (int i = 0; i < w->extra_count; i++)
        TRY(fragment_put_file(out, &w->extra_files[i]));
    for (int i = 0; i < w->piece_count; i++) {
        const checkpoint_piece *p = &w->pieces[w->listed[i]], *last = i ? &w->pieces[w->listed[i - 1]] : NULL;
        if (!last || fragment_order(p->section, p->of.name, last->section, last->of.name) != 0 ||
            p->at.type != last->at.type || p->of.dims != last->of.dims ||
            memcmp(p->of.global, last->of.global, (size_t)p->of.dims * sizeof *p->of.global) != 0)
            TRY(fragment_put_tensor(out, p->section, p->at.type, &p->of));
        TRY(fragment_put_piece(out, p->of.dims, &w->entries[w->listed[i]]));
    }
    return direct_print(out, FRAGMENT_TAIL, out->crc32c);
}

static status write_files(checkpoint_writer *w, const char *temporary)
{
    for (int i = 0; i < w->file_count; i++)
        TRY(write_file(&w->files[i].file, w, temporary, put_section, &(part){w, i}));
    for (int i = 0; i < w->extra_count; i++)
        TRY(write_file(&w->extra_files[i], w, temporary, checkpoint_bytes,
                       &(mapping){w->extras[i].data, w->extras[i].bytes}));
    AUTO_FREE char *path = checkpoint_fragment(temporary, w->rank);
    manifest_file file = {.name = strrchr(path, '/') + 1};
    status s = write_file(&file, w, temporary, put_fragment, w);
    return s == STATUS_OK ? atomic_sync_folder(temporary) : s;
}

status checkpoint_writer_share(checkpoint_writer *w, const char *folder, const char *name)
{
    AUTO_FREE char *temporary = checkpoint_temporary(folder, name);
    w->name = name;
    w->refused = false;
    status s = lock_check(w->owner);
    if (s == STATUS_OK)
        s = atomic_make_own_folder(temporary);
    if (s == STATUS_OK)
        s = write_files(w, temporary);
    w->name = NULL;
    return s;
}

bool checkpoint_writer_refused(const checkpoint_writer *w)
{
    return w->refused;
}

/* ---- rank 0's part ---------------------------------------------------------------------------------------------- */

struct checkpoint_publisher {
    int ranks;
    char run[MANIFEST_RUN];
    char *buffer;
    lock *owner;
    fragment *fragments; /* [ranks] */
    char **paths;        /* [ranks] paths of the open fragments */
    fragment_pieces pieces;
};

checkpoint_publisher *checkpoint_publisher_open(int ranks, const char *run, char *buffer, lock *owner)
{
    checkpoint_publisher *p = must_calloc(1, sizeof *p);
    MUST(strlen(run) < sizeof p->run, "a run named \"%s\"", run);
    strcpy(p->run, run);
    p->ranks = ranks;
    p->buffer = buffer;
    p->owner = owner;
    p->fragments = must_calloc((unsigned long)ranks, sizeof *p->fragments);
    p->paths = must_calloc((unsigned long)ranks, sizeof *p->paths);
    p->pieces.capacity = 4 * ranks; /* pieces of one tensor: a rank usually has one block of rows, in few parts */
    p->pieces.item = must_alloc((unsigned long)p->pieces.capacity * sizeof *p->pieces.item);
    return p;
}

void checkpoint_publisher_close(checkpoint_publisher *p)
{
    if (!p)
        return;
    free(p->pieces.item);
    free(p->paths);
    free(p->fragments);
    free(p);
}

/* ---- leftovers of an interrupted save: temporary and replaced checkpoints ---- */

status checkpoint_tidy(const char *folder)
{
    bool there;
    TRY(atomic_look(&there, folder));
    return there ? atomic_remove_all(folder, ".tmp-") : STATUS_OK;
}

void checkpoint_clean(const char *folder, const char *name)
{
    AUTO_FREE char *message = must_strdup(status_message()), *temporary = checkpoint_temporary(folder, name);
    AUTO_FREE char *final = must_format("%s/%s", folder, name), *old = must_format("%s/.old-%s", folder, name);
    bool has_old = false, has_final = true;
    if (atomic_look(&has_old, old) == STATUS_OK && atomic_look(&has_final, final) == STATUS_OK && has_old && !has_final)
        (void)atomic_rename(old, final);
    (void)atomic_remove(temporary);
    (void)status_fail(STATUS_FAILED, "%s", message);
}

/* ---- publishing ---- */

/* A manifest that has been written. */
typedef struct publication {
    checkpoint_publisher *p;
    json_t *meta;
    const char *temporary, *name, *path;
} publication;

static status put_manifest(direct *out, void *context)
{
    const publication *c = context;
    checkpoint_publisher *p = c->p;
    status s = STATUS_OK;
    for (int i = 0; i < p->ranks && s == STATUS_OK; i++) {
        p->paths[i] = checkpoint_fragment(c->temporary, i);
        s = fragment_open(&p->fragments[i], p->paths[i], &(fragment_owner){p->run, c->name, i, p->ranks});
    }
    if (s == STATUS_OK)
        s = manifest_text_head(out, p->ranks, p->run, c->meta);
    if (s == STATUS_OK)
        s = fragment_merge(out, p->fragments, p->ranks, &p->pieces, c->path);
    for (int i = 0; i < p->ranks; i++) {
        fragment_close(&p->fragments[i]);
        free(p->paths[i]);
        p->paths[i] = NULL;
    }
    return s == STATUS_OK ? manifest_text_end(out) : s;
}

static status write_latest(checkpoint_publisher *p, const char *folder, const char *name)
{
    manifest_file written;
    AUTO_FREE char *path = must_format("%s/latest", folder), *temporary = must_format("%s.tmp", path);
    AUTO_FREE char *line = must_format("%s\n", name);
    mapping text = {(const uint8_t *)line, (int64_t)strlen(line)};
    status s = checkpoint_put(&written, temporary, p->buffer, checkpoint_bytes, &text);
    if (s == STATUS_OK)
        s = atomic_rename(temporary, path);
    if (s != STATUS_OK)
        (void)unlink(temporary);
    return s;
}

/* Renames temporary to folder/name. An older checkpoint of that name first becomes .old-name, where checkpoint_open
 * finds it if this stops between the two renames. */
static status rename_into_place(const char *folder, const char *name, const char *temporary)
{
    AUTO_FREE char *final = must_format("%s/%s", folder, name), *old = must_format("%s/.old-%s", folder, name);
    bool replaces = false;
    TRY(atomic_look(&replaces, final));
    if (replaces) {
        TRY(atomic_remove(old));
        TRY(atomic_rename(final, old));
    }
    return atomic_rename(temporary, final);
}

status checkpoint_publisher_publish(checkpoint_publisher *p, const char *folder, const char *name, json_t *meta)
{
    AUTO_FREE char *temporary = checkpoint_temporary(folder, name), *path = must_format("%s/manifest.json", temporary);
    manifest_file written;
    TRY(lock_check(p->owner));
    TRY(checkpoint_put(&written, path, p->buffer, put_manifest, &(publication){p, meta, temporary, name, path}));
    for (int i = 0; i < p->ranks; i++) {
        AUTO_FREE char *merged = checkpoint_fragment(temporary, i);
        TRY(atomic_remove(merged));
    }
    TRY(atomic_sync_folder(temporary));
    TRY(lock_check(p->owner));
    TRY(rename_into_place(folder, name, temporary));
    TRY(lock_check(p->owner));
    TRY(write_latest(p, folder, name));
    if (atomic_remove_all(folder, ".old-") != STATUS_OK)
        log_warn("%s", status_message()); /* only warns: the new checkpoint is whole */
    return STATUS_OK;
}

/* ---- saving at once, by all ranks together ---- */

static status wait_for_all(checkpoint_barrier *barrier, void *context, status mine)
{
    return barrier ? barrier(context, mine) : mine;
}

static status prepare_folder(const char *folder)
{
    TRY(atomic_make_folders(folder));
    return checkpoint_tidy(folder);
}

static status publish_once(const char *folder, const char *name, json_t *meta, int ranks, const char *run, char *buffer)
{
    checkpoint_publisher *p = checkpoint_publisher_open(ranks, run, buffer, NULL);
    status s = checkpoint_publisher_publish(p, folder, name, meta);
    checkpoint_publisher_close(p);
    return s;
}

status checkpoint_write(const char *folder, const char *name, const checkpoint_share *mine, json_t *meta,
                        checkpoint_barrier *barrier, void *context)
{
    bool first = mine->rank == 0;
    MUST(barrier || mine->ranks == 1, "%d ranks save without a barrier", mine->ranks);
    MUST(*name && *name != '.' && !strchr(name, '/'), "a checkpoint named \"%s\"", name);
    AUTO_FREE char *buffer = aligned_alloc(DIRECT_ALIGNMENT, CHECKPOINT_WRITER_BUFFER);
    MUST(buffer, "out of host memory");
    checkpoint_writer *w = checkpoint_writer_open(&(checkpoint_writer_options){.share = *mine, .buffer = buffer});
    status s = wait_for_all(barrier, context, first ? prepare_folder(folder) : STATUS_OK);
    if (s == STATUS_OK)
        s = wait_for_all(barrier, context, checkpoint_writer_share(w, folder, name));
    if (s == STATUS_OK)
        s = wait_for_all(barrier, context,
                         first ? publish_once(folder, name, meta, mine->ranks, mine->run, buffer) : STATUS_OK);
    if (s != STATUS_OK && first)
        checkpoint_clean(folder, name);
    checkpoint_writer_close(w);
    return s == STATUS_OK ? s : status_context(s, "checkpoint %s not saved", name);
}
