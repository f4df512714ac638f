#include "engine/checkpoint/share.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/files/atomic.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/files/crc32c.h"
#include "memory/log.h"

#define META      "meta.json"
#define META_TAIL "\n%08x\n"

enum { META_TAIL_BYTES = 10 };

static status add(share *out, const char *folder, const char *name)
{
    struct stat info;
    char *path = must_format("%s/%s", folder, name);
    bool there = stat(path, &info) == 0;
    int error = errno;
    free(path);
    if (!there)
        return status_fail(STATUS_FAILED, "cannot find %s/%s: %s", folder, name, strerror(error));
    if (out->count == SHARE_FILES)
        return status_fail(STATUS_FAILED, "%s: a share of more than %d files", folder, SHARE_FILES);
    share_file *f = &out->file[out->count++];
    snprintf(f->name, sizeof f->name, "%s", name);
    f->bytes = (int64_t)info.st_size;
    return STATUS_OK;
}

/* Every file of a fragment: its path within the two folders is `name`. */
typedef status visitor(void *context, const manifest_file *file);

static status visit(const char *folder, const fragment_owner *owner, visitor *each, void *context)
{
    fragment f;
    char *path = checkpoint_fragment(folder, owner->rank), name[FRAGMENT_NAME];
    manifest_file file = {.name = name};
    bool there = true;
    status s = fragment_open(&f, path, owner);
    if (s == STATUS_OK) {
        for (s = fragment_next_file(&f, &file, &there); s == STATUS_OK && there;) {
            s = strchr(name, '/') ? status_fail(STATUS_FAILED, "%s names a file %s", path, name) : each(context, &file);
            if (s == STATUS_OK)
                s = fragment_next_file(&f, &file, &there);
        }
        fragment_close(&f);
    }
    free(path);
    return s;
}

typedef struct listing {
    share *out;
    const char *folder;
} listing;

static status list_file(void *context, const manifest_file *file)
{
    const listing *l = context;
    return add(l->out, l->folder, file->name);
}

status share_list(share *out, const char *folder, const fragment_owner *owner)
{
    char *path = checkpoint_fragment(folder, owner->rank);
    *out = (share){0};
    status s = visit(folder, owner, list_file, &(listing){out, folder});
    if (s == STATUS_OK && owner->rank == 0)
        s = add(out, folder, META);
    if (s == STATUS_OK)
        s = add(out, folder, strrchr(path, '/') + 1);
    free(path);
    return s;
}

/* ---- copying ---- */

typedef struct copying {
    const char *to, *from;
    char *buffer;
} copying;

/* `file` without has_crc32c: whatever it holds. */
static status copy_file(void *context, const manifest_file *file)
{
    const copying *c = context;
    char *from = must_format("%s/%s", c->from, file->name), *to = must_format("%s/%s", c->to, file->name);
    mapping source;
    direct out;
    int error;
    status s = mapping_open(&source, from);
    if (s == STATUS_OK) {
        s = direct_open(&out, to, c->buffer, CHECKPOINT_WRITER_BUFFER);
        if (s == STATUS_OK) {
            s = direct_write(&out, source.data, source.bytes, NULL);
            s = direct_close(&out, s);
        }
        if (s == STATUS_OK && file->has_crc32c && (out.crc32c != file->crc32c || source.bytes != file->bytes))
            s = status_fail(STATUS_FAILED, "%s is damaged", from);
        if (s == STATUS_OK)
            s = direct_verify(&error, to, source.bytes, out.crc32c, c->buffer, CHECKPOINT_WRITER_BUFFER);
        mapping_close(&source);
    }
    free(to);
    free(from);
    return s;
}

status share_copy(const char *to, const char *from, const fragment_owner *owner, char *buffer)
{
    copying c = {to, from, buffer};
    char *path = checkpoint_fragment(from, owner->rank);
    status s = atomic_make_folders(to);
    if (s == STATUS_OK)
        s = visit(from, owner, copy_file, &c);
    if (s == STATUS_OK && owner->rank == 0)
        s = copy_file(&c, &(manifest_file){.name = (char[]){META}});
    if (s == STATUS_OK)
        s = copy_file(&c, &(manifest_file){.name = strrchr(path, '/') + 1});
    free(path);
    return s == STATUS_OK ? atomic_sync_folder(to) : s;
}

/* ---- the run's position ---- */

status share_put_meta(const char *folder, json_t *meta, char *buffer)
{
    char *text = json_dumps(meta, JSON_COMPACT), *path = must_format("%s/" META, folder), tail[META_TAIL_BYTES + 1];
    MUST(text, "a checkpoint's meta cannot be written");
    snprintf(tail, sizeof tail, META_TAIL, crc32c(0, text, (int64_t)strlen(text)));
    direct out;
    status s = direct_open(&out, path, buffer, CHECKPOINT_WRITER_BUFFER);
    if (s == STATUS_OK) {
        s = direct_write(&out, text, (int64_t)strlen(text), NULL);
        if (s == STATUS_OK)
            s = direct_write(&out, tail, META_TAIL_BYTES, NULL);
        s = direct_close(&out, s);
    }
    free(path);
    free(text);
    return s;
}

status share_take_meta(json_t **out, const char *folder)
{
    char *path = must_format("%s/" META, folder), tail[META_TAIL_BYTES + 1];
    mapping file;
    *out = NULL;
    status s = mapping_open(&file, path);
    if (s == STATUS_OK) {
        int64_t body = file.bytes - META_TAIL_BYTES;
        if (body > 0) {
            snprintf(tail, sizeof tail, META_TAIL, crc32c(0, file.data, body));
            if (memcmp(tail, file.data + body, META_TAIL_BYTES) == 0)
                *out = json_loadb((const char *)file.data, (size_t)body, 0, NULL);
        }
        if (!*out)
            s = status_fail(STATUS_FAILED, "%s is damaged", path);
        mapping_close(&file);
    }
    if (s == STATUS_OK)
        s = atomic_remove(path);
    free(path);
    return s;
}

/* ---- */

bool share_owner(fragment_owner *out, char *run, const char *folder, const char *file)
{
    char *path = must_format("%s/%s", folder, file), word[MANIFEST_RUN + 1], name[FRAGMENT_NAME];
    int rank = -1, ranks = 0, version = 0, named = -1;
    FILE *f = sscanf(file, "fragment-%d", &named) == 1 ? fopen(path, "re") : NULL;
    bool good = f && fscanf(f, "fragment %d %33s %255s %d %d", &version, word, name, &rank, &ranks) == 5;
    if (f)
        fclose(f);
    free(path);
    good = good && strlen(word) < MANIFEST_RUN && rank == named && rank >= 0 && rank < ranks;
    if (good) {
        strcpy(run, word);
        *out = (fragment_owner){.run = run, .rank = rank, .ranks = ranks};
    }
    return good;
}
