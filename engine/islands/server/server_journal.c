/* A server's journal: a change is on the disk before its island is told that it has been taken.
 *
 * Each rank writes its part of a change, as the island encoded it, to run.folder/journal before `head` is written to
 * etcd. A server that was killed takes its latest checkpoint, merges the same changes again in the same order, and so
 * has the same bits as before. An entry unknown to etcd was never acknowledged, and is dropped: its island still has
 * that change. A save makes earlier entries obsolete. A journal that was written with another outer.compress or
 * outer.density cannot be merged, and is refused, not removed; so is one that cannot be read. A damaged entry and later
 * ones that etcd knows of are set aside (FILE.lost), and the server goes on.
 *
 * File merge-N.rank-K-of-R: a line "CHECKSUM {JSON}", then the encodings of the units that rank K of R keeps, in their
 * order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/system/crc32c.h"
#include "engine/system/direct.h"
#include "engine/system/reading.h"
#include "engine/islands/server/server_internal.h"
#include "memory/log.h"
#include "memory/scope.h"

/* Limit of a journal, in sizes of a checkpoint: a save is due beyond it. */
enum { MOST_CHECKPOINTS = 8 };

static char *path_of(const server *v, int64_t merge, int rank, int ranks)
{
    return must_format("%s/merge-%010lld.rank-%d-of-%d", v->journal, (long long)merge, rank, ranks);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static char *header_text(const server *v, int64_t bytes, uint32_t crc)
{
    json_auto_t *o = json_pack(
        "{s:i, s:I, s:f, s:s, s:f, s:I, s:I, s:o}", "slot", v->wanted.slot, "id", (json_int_t)v->wanted.id, "share",
        v->share, "compress", config_word(v->config, "outer.compress"), "density", v->config->outer.density, "bytes",
        (json_int_t)bytes, "crc", (json_int_t)crc, "head", server_head(v, &v->wanted, v->core.merge + 1));
    AUTO_FREE char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(17));
    return must_format("%08x %s\n", crc32c(0, text, (int64_t)strlen(text)), text);
}

static status write_entry(const server *v, const char *temporary, const char *path)
{
    const outer *o = &v->core;
    direct d;
    int64_t bytes = 0;
    for (int i = 0; i < o->units.mine_count; i++)
        bytes += o->units.mine[i].coded_bytes;
    const uint8_t *data = o->memory.in[v->wanted.slot];
    AUTO_FREE char *header = header_text(v, bytes, crc32c(0, data, bytes));
    TRY(lock_check(v->lock));
    TRY(direct_open(&d, temporary, v->buffer, CHECKPOINT_WRITER_BUFFER));
    status s = direct_write(&d, header, (int64_t)strlen(header), NULL);
    if (s == STATUS_OK)
        s = direct_write(&d, data, bytes, NULL);
    TRY(direct_close(&d, s));
    return atomic_rename(temporary, path);
}

status server_journal_write(server *v)
{
    AUTO_FREE char *path = path_of(v, v->core.merge + 1, comm_rank(v->world), comm_ranks(v->world));
    AUTO_FREE char *temporary = must_format("%s.tmp", path);
    watchdog_enter(v->watchdog, DURING_SAVE, true, v->core.merge, "writing a change to the journal");
    status s = comm_all_status(comm_world(v->world), write_entry(v, temporary, path));
    watchdog_enter(v->watchdog, DURING_STEP, false, v->core.merge, "serving islands");
    return s;
}

/* ---- removing ---------------------------------------------------------------------------------------------------- */

/* Runs on each rank for its own file. */
void server_journal_drop(const server *v, int64_t merge)
{
    AUTO_FREE char *path = path_of(v, merge, comm_rank(v->world), comm_ranks(v->world));
    if (atomic_remove(path) != STATUS_OK)
        log_warn("%s; the server goes on", status_message());
}

/* Parses the merge from an entry's file name; -1: another file. *ranks: number of ranks that wrote the entry. */
static int64_t merge_of(int *ranks, const char *file)
{
    long long merge = -1;
    int rank = -1, end = 0;
    int read = sscanf(file, "merge-%lld.rank-%d-of-%d%n", &merge, &rank, ranks, &end);
    return read == 3 && !file[end] ? merge : -1;
}

/* True for the file of an entry, written or being written, for a merge not from `first` to `last`. */
static bool is_needless(const char *file, int64_t first, int64_t last)
{
    int ranks;
    size_t length = strlen(file), suffix = strlen(".tmp");
    bool written = length > suffix && !strcmp(file + length - suffix, ".tmp");
    AUTO_FREE char *name = must_format("%.*s", (int)(written ? length - suffix : length), file);
    int64_t merge = merge_of(&ranks, name);
    return merge >= 0 && (written || merge < first || merge > last);
}

/* Removes, on rank 0, all entries that are not for a merge from `first` to `last`; none if listing fails. */
static void remove_entries(const server *v, int64_t first, int64_t last)
{
    RELEASED_BY(reading_names_free) reading_names all;
    if (reading_folder(&all, v->journal) != STATUS_OK)
        log_warn("%s; the server goes on, and the entries stay", status_message());
    for (int i = 0; i < all.count; i++) {
        if (!is_needless(all.name[i], first, last))
            continue;
        AUTO_FREE char *path = must_format("%s/%s", v->journal, all.name[i]);
        if (atomic_remove(path) != STATUS_OK)
            log_warn("%s; the server goes on", status_message());
    }
}

/* Keeps, on rank 0, entries that cannot be merged any more although their islands were told that they are taken, for a
 * person to inspect. */
static status set_aside(const server *v, int64_t first, int64_t last)
{
    RELEASED_BY(reading_names_free) reading_names all;
    TRY(reading_folder(&all, v->journal));
    for (int i = 0; i < all.count; i++) {
        int ranks;
        int64_t merge = merge_of(&ranks, all.name[i]);
        if (merge < first || merge > last)
            continue;
        AUTO_FREE char *path = must_format("%s/%s", v->journal, all.name[i]), *lost = must_format("%s.lost", path);
        TRY(atomic_rename(path, lost));
    }
    return STATUS_OK;
}

void server_journal_saved(server *v)
{
    if (outer_first_rank(&v->core)) /* keep later ones: the next may be on its way to etcd */
        remove_entries(v, v->core.merge + 1, INT64_MAX);
    v->journal_entries = 0;
}

bool server_journal_is_long(const server *v)
{
    const outer *o = &v->core;
    int64_t change = 0, saved = 0;
    for (int u = 0; u < o->units.count; u++) {
        change += compress_bytes(&o->method, o->units.list[u].elements);
        saved += (o->memory.momentum ? 8 : 4) * o->units.list[u].elements;
    }
    return v->journal_entries * change > MOST_CHECKPOINTS * saved;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Finds, on rank 0, the number of ranks that wrote a merge's entry; 0: no entry. */
static status ranks_of(int *most, const server *v, int64_t merge)
{
    RELEASED_BY(reading_names_free) reading_names all;
    *most = 0;
    TRY(reading_folder(&all, v->journal));
    for (int i = 0; i < all.count; i++) {
        int ranks = 0;
        if (merge_of(&ranks, all.name[i]) == merge && ranks > *most)
            *most = ranks;
    }
    return STATUS_OK;
}

/* A readable file of an entry. */
typedef struct entry_file {
    const char *path;
    json_t *header;
    int64_t start; /* offset of the encodings */
    bool damaged;
} entry_file;

static void free_header(entry_file *f)
{
    json_decref(f->header);
}

/* Reports the damage once. */
static status find_damaged(entry_file *f)
{
    log_warn("%s is damaged", f->path);
    f->damaged = true;
    return STATUS_OK;
}

/* Reads and checks the header. */
static status read_header(entry_file *f, const server *v)
{
    int64_t got;
    char *line = v->buffer;
    TRY(reading_at(&got, line, f->path, 0, CHECKPOINT_WRITER_BUFFER));
    const char *end = got > 10 ? memchr(line, '\n', (size_t)got) : NULL;
    int64_t length = end ? end - line : 0;
    if (length > 9 && line[8] == ' ' && strtoul(line, NULL, 16) == crc32c(0, line + 9, length - 9))
        f->header = json_loadb(line + 9, (size_t)(length - 9), 0, NULL);
    f->start = length + 1;
    return json_is_object(f->header) ? STATUS_OK : find_damaged(f);
}

/* Refuses bytes of another encoding. */
static status check_method(const server *v, const entry_file *f)
{
    const char *compress = json_string_value(json_object_get(f->header, "compress"));
    double density = json_number_value(json_object_get(f->header, "density"));
    const char *ours = config_word(v->config, "outer.compress");
    if (compress && !strcmp(compress, ours) && density == v->config->outer.density)
        return STATUS_OK;
    return status_fail(STATUS_USAGE,
                       "%s was written with outer.compress=%s and outer.density=%g: start the server with these once "
                       "more and stop it by SIGTERM, so that it saves what the journal has",
                       f->path, compress ? compress : "?", density);
}

static status check_data(entry_file *f, const server *v)
{
    int64_t left = (int64_t)json_integer_value(json_object_get(f->header, "bytes")), at = f->start, got = 1;
    uint32_t crc = 0;
    for (; left > 0 && got > 0; left -= got, at += got) {
        int64_t now = left < CHECKPOINT_WRITER_BUFFER ? left : CHECKPOINT_WRITER_BUFFER;
        TRY(reading_at(&got, v->buffer, f->path, at, now));
        crc = crc32c(crc, v->buffer, got > 0 ? got : 0);
    }
    if (left == 0)
        TRY(reading_at(&got, v->buffer, f->path, at, 1)); /* the file ends here */
    bool sound = left == 0 && got == 0 && crc == (uint32_t)json_integer_value(json_object_get(f->header, "crc"));
    return sound ? STATUS_OK : find_damaged(f);
}

/* Reads this rank's units that rank `rank` has written. */
static status read_units(entry_file *f, server *v, const int *owner, int rank)
{
    outer *o = &v->core;
    int64_t at = f->start;
    for (int u = 0; u < o->units.count; u++) {
        int64_t bytes = compress_bytes(&o->method, o->units.list[u].elements), got = bytes;
        if (owner[u] != rank)
            continue;
        const outer_unit *m = o->units.mine_of[u] < 0 ? NULL : &o->units.mine[o->units.mine_of[u]];
        if (m)
            TRY(reading_at(&got, o->memory.in[0] + m->coded, f->path, at, bytes));
        if (got != bytes)
            return find_damaged(f);
        at += bytes;
    }
    return STATUS_OK;
}

/* Reads this rank's units from one file of an entry; the caller frees its header. */
static status read_file(entry_file *f, server *v, const int *owner, int rank)
{
    TRY(read_header(f, v));
    if (!f->damaged)
        TRY(check_method(v, f));
    if (!f->damaged)
        TRY(check_data(f, v));
    return f->damaged ? STATUS_OK : read_units(f, v, owner, rank);
}

/* The header of an entry. */
typedef struct entry {
    roster head;
    double share;
    int64_t id;
    bool damaged;
} entry;

/* Reads this rank's units of an entry into the first buffer, and its header. */
static status read_entry(entry *e, server *v, int64_t merge, int ranks)
{
    outer *o = &v->core;
    AUTO_FREE int *owner = must_alloc((unsigned long)o->units.count * sizeof *owner);
    units_own(owner, o->units.list, o->units.count, o->config->outer.fragments, ranks);
    for (int rank = 0; rank < ranks && !e->damaged; rank++) {
        AUTO_FREE char *path = path_of(v, merge, rank, ranks);
        RELEASED_BY(free_header) entry_file f = {.path = path};
        TRY(read_file(&f, v, owner, rank));
        e->damaged = f.damaged;
        if (f.damaged)
            continue;
        roster_read_head(&e->head, json_object_get(f.header, "head"), 0);
        e->share = json_number_value(json_object_get(f.header, "share"));
        e->id = (int64_t)json_integer_value(json_object_get(f.header, "id"));
    }
    return STATUS_OK;
}

/* True unless this entry is of etcd's last merge, but another one than etcd knows. */
static bool is_known(const roster *head, int64_t merge, int64_t id)
{
    bool known = merge != head->merge;
    for (int i = 0; i < head->parts; i++)
        known |= head->part[i].merge == merge && head->part[i].id == id;
    return known;
}

/* Result of trying the next entry. */
typedef enum outcome {
    MERGED,
    NO_MORE, /* there is none */
    UNKNOWN, /* its island was never told that it was taken */
    DAMAGED,
} outcome;

static status replay_next(outcome *how, server *v, const roster *head)
{
    comm_group *all = comm_world(v->world);
    int64_t merge = v->core.merge + 1;
    int ranks = 0;
    entry e = {0};
    *how = NO_MORE;
    TRY(comm_all_status(all, outer_first_rank(&v->core) ? ranks_of(&ranks, v, merge) : STATUS_OK));
    comm_broadcast_bytes(all, &ranks, sizeof ranks, 0);
    if (ranks == 0)
        return STATUS_OK;
    TRY(comm_all_status(all, read_entry(&e, v, merge, ranks)));
    if (comm_any(all, e.damaged)) {
        *how = DAMAGED;
        return STATUS_OK;
    }
    *how = UNKNOWN;
    if (!is_known(head, merge, e.id))
        return STATUS_OK;
    server_merge(v, 0, e.share);
    v->core.merge = merge;
    server_take_head(v, &e.head);
    v->journal_entries++;
    *how = MERGED;
    return STATUS_OK;
}

status server_journal_replay(server *v, const roster *head)
{
    comm_group *all = comm_world(v->world);
    int64_t before = v->core.merge, last = head->merge >= before ? head->merge : INT64_MAX;
    status s = STATUS_OK;
    outcome how = MERGED;
    while (s == STATUS_OK && how == MERGED && v->core.merge < last)
        s = replay_next(&how, v, head);
    if (s == STATUS_USAGE)
        return s;
    if (s != STATUS_OK)
        return status_context(s, "the journal has merges that islands were told are taken, and stays as it is: start "
                                 "the server again when it can be read, or remove the file to do without it");
    if (outer_first_rank(&v->core) && v->core.merge < last && how != UNKNOWN) /* the remaining ones follow a gap */
        s = set_aside(v, v->core.merge + 1, last);
    TRY(comm_all_status(all, s));
    if (outer_first_rank(&v->core)) /* keep the entries until the next save: the server may die again before it */
        remove_entries(v, before + 1, v->core.merge);
    if (v->core.merge > before)
        log_info("server: merges %lld to %lld are made again from the journal", (long long)before + 1,
                 (long long)v->core.merge);
    return STATUS_OK;
}
