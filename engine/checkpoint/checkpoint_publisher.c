#include "engine/checkpoint/checkpoint_writer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/system/direct.h"
#include "engine/checkpoint/fragment.h"
#include "memory/log.h"
#include "memory/scope.h"

struct checkpoint_publisher {
    int ranks;
    char run[MANIFEST_RUN];
    char *buffer;
    fragment *fragments; /* [ranks] */
    char **paths;        /* [ranks] of the fragments that are open */
    fragment_pieces pieces;
};

checkpoint_publisher *checkpoint_publisher_open(int ranks, const char *run, char *buffer)
{
    checkpoint_publisher *p = must_calloc(1, sizeof *p);
    MUST(strlen(run) < sizeof p->run, "a run named \"%s\"", run);
    strcpy(p->run, run);
    p->ranks = ranks;
    p->buffer = buffer;
    p->fragments = must_calloc((unsigned long)ranks, sizeof *p->fragments);
    p->paths = must_calloc((unsigned long)ranks, sizeof *p->paths);
    p->pieces.capacity = 4 * ranks; /* of one tensor: a rank has seldom more than its rows, in few parts */
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

/* A manifest that is written. */
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

static status write_manifest(checkpoint_publisher *p, const char *temporary, const char *name, json_t *meta)
{
    manifest_file written;
    AUTO_FREE char *path = must_format("%s/manifest.json", temporary);
    return checkpoint_put(&written, path, p->buffer, put_manifest, &(publication){p, meta, temporary, name, path});
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

static status remove_fragments(const checkpoint_publisher *p, const char *temporary)
{
    for (int i = 0; i < p->ranks; i++) {
        AUTO_FREE char *path = checkpoint_fragment(temporary, i);
        TRY(atomic_remove(path));
    }
    return atomic_sync_folder(temporary);
}

/* temporary -> folder/name. An older checkpoint of that name first becomes .old-name, where checkpoint_open finds it if
 * this stops between the two renames. */
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
    AUTO_FREE char *temporary = checkpoint_temporary(folder, name);
    TRY(write_manifest(p, temporary, name, meta));
    TRY(remove_fragments(p, temporary));
    TRY(rename_into_place(folder, name, temporary));
    TRY(write_latest(p, folder, name));
    if (atomic_remove_all(folder, ".old-") != STATUS_OK)
        log_warn("%s", status_message()); /* the new checkpoint is whole all the same */
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
    checkpoint_publisher *p = checkpoint_publisher_open(ranks, run, buffer);
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
