/* A server's journal: what it merges is on the disk before an island is told that it has been taken.
 *
 * Each rank writes its part of a change, as the island encoded it, to run.folder/journal before `head` is written to
 * etcd. A server that was killed takes its latest checkpoint, merges the same changes again in the same order, and so
 * has the same bits as before. An entry that etcd knows nothing of was never acknowledged, and is dropped: its island
 * still has that change. A save makes the entries before it needless. A journal that was written with another
 * outer.compress or outer.density cannot be merged, and is refused, not removed.
 *
 * File merge-N.rank-K-of-R: a line "CHECKSUM {JSON}", then the encodings of the units that rank K of R keeps, in their
 * order. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/atomic.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/files/crc32c.h"
#include "engine/files/direct.h"
#include "engine/server/server_parts.h"
#include "memory/log.h"

/* A journal is allowed so many times the bytes of a checkpoint: then a save is due. */
enum { MOST_CHECKPOINTS = 8 };

static bool first_rank(const server *v)
{
    return comm_rank(v->world) == 0;
}

static char *path_of(const server *v, int64_t merge, int rank, int ranks)
{
    return must_format("%s/merge-%010lld.rank-%d-of-%d", v->journal, (long long)merge, rank, ranks);
}

/* ---- writing
 * ---------------------------------------------------------------------------------------------------------- */

static int64_t coded_bytes(const outer *o)
{
    int64_t bytes = 0;
    for (int i = 0; i < o->units.mine_count; i++)
        bytes += o->units.mine[i].coded_bytes;
    return bytes;
}

static char *header_text(const server *v, int64_t bytes, uint32_t crc)
{
    json_t *o = json_pack(
        "{s:i, s:I, s:f, s:s, s:f, s:I, s:I, s:o}", "slot", v->wanted.slot, "id", (json_int_t)v->wanted.id, "share",
        v->share, "compress", config_word(v->config, "outer.compress"), "density", v->config->outer.density, "bytes",
        (json_int_t)bytes, "crc", (json_int_t)crc, "head", server_head(v, &v->wanted, v->outer->merge + 1));
    char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(17));
    json_decref(o);
    MUST(text, "out of host memory");
    char *line = must_format("%08x %s\n", crc32c(0, text, (int64_t)strlen(text)), text);
    free(text);
    return line;
}

static status write_entry(const server *v, const char *temporary, const char *path)
{
    const outer *o = v->outer;
    direct d;
    int64_t bytes = coded_bytes(o);
    const uint8_t *data = o->memory.in[v->wanted.slot];
    char *header = header_text(v, bytes, crc32c(0, data, bytes));
    status s = direct_open(&d, temporary, v->buffer, CHECKPOINT_WRITER_BUFFER);
    if (s == STATUS_OK) {
        s = direct_write(&d, header, (int64_t)strlen(header), NULL);
        if (s == STATUS_OK)
            s = direct_write(&d, data, bytes, NULL);
        s = direct_close(&d, s);
    }
    free(header);
    return s == STATUS_OK ? atomic_rename(temporary, path) : s;
}

status server_journal_write(server *v)
{
    char *path = path_of(v, v->outer->merge + 1, comm_rank(v->world), comm_ranks(v->world));
    char *temporary = must_format("%s.tmp", path);
    watchdog_enter(v->watchdog, DURING_SAVE, true, v->outer->merge, "writing a change to the journal");
    status s = write_entry(v, temporary, path);
    free(temporary);
    free(path);
    s = comm_all_status(comm_world(v->world), s);
    watchdog_enter(v->watchdog, DURING_STEP, false, v->outer->merge, "serving islands");
    return s;
}

/* ---- removing
 * --------------------------------------------------------------------------------------------------------- */

/* Each rank its own. */
void server_journal_drop(const server *v, int64_t merge)
{
    char *path = path_of(v, merge, comm_rank(v->world), comm_ranks(v->world));
    if (atomic_remove(path) != STATUS_OK)
        log_warn("%s; the server goes on", status_message());
    free(path);
}

/* Of an entry's file; -1: it is none. *ranks: that wrote the entry. */
static int64_t merge_of(int *ranks, const char *file)
{
    long long merge = -1;
    int rank = -1, end = 0;
    int read = sscanf(file, "merge-%lld.rank-%d-of-%d%n", &merge, &rank, ranks, &end);
    return read == 3 && !file[end] ? merge : -1;
}

/* On rank 0: removes all that is not for a merge from `first` to `last`. */
static void tidy(const server *v, int64_t first, int64_t last)
{
    DIR *d = opendir(v->journal);
    for (struct dirent *e; d && (e = readdir(d));) {
        int ranks;
        int64_t merge = merge_of(&ranks, e->d_name);
        if (e->d_name[0] == '.' || (merge >= first && merge <= last))
            continue;
        char *path = must_format("%s/%s", v->journal, e->d_name);
        if (atomic_remove(path) != STATUS_OK)
            log_warn("%s; the server goes on", status_message());
        free(path);
    }
    if (d)
        closedir(d);
}

void server_journal_saved(server *v)
{
    if (first_rank(v)) /* the next one may be on its way to etcd */
        tidy(v, v->outer->merge + 1, INT64_MAX);
    v->entries = 0;
}

bool server_journal_is_long(const server *v)
{
    const outer *o = v->outer;
    int64_t change = 0, saved = 0;
    for (int u = 0; u < o->units.count; u++) {
        change += compress_bytes(&o->method, o->units.list[u].elements);
        saved += (o->memory.momentum ? 8 : 4) * o->units.list[u].elements;
    }
    return v->entries * change > MOST_CHECKPOINTS * saved;
}

/* ---- reading
 * ---------------------------------------------------------------------------------------------------------- */

/* On rank 0: the ranks that wrote the entry of a merge; 0: there is none. */
static int ranks_of(const server *v, int64_t merge)
{
    int most = 0;
    DIR *d = opendir(v->journal);
    for (struct dirent *e; d && (e = readdir(d));) {
        int ranks = 0;
        if (merge_of(&ranks, e->d_name) == merge && ranks > most)
            most = ranks;
    }
    if (d)
        closedir(d);
    return most;
}

/* The header of an entry, checked; NULL, with a message: it is damaged. */
static json_t *read_header(FILE *f, const char *path)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t length = getline(&line, &room, f);
    json_t *header = NULL;
    if (length > 10 && line[8] == ' ' && line[length - 1] == '\n' &&
        strtoul(line, NULL, 16) == crc32c(0, line + 9, (int64_t)length - 10))
        header = json_loads(line + 9, 0, NULL);
    free(line);
    if (!json_is_object(header)) {
        (void)status_fail(STATUS_FAILED, "%s is damaged", path);
        json_decref(header);
        return NULL;
    }
    return header;
}

/* Bytes of another encoding say nothing here. */
static status check_method(const server *v, const json_t *header, const char *path)
{
    const char *compress = json_string_value(json_object_get(header, "compress"));
    double density = json_number_value(json_object_get(header, "density"));
    const char *ours = config_word(v->config, "outer.compress");
    if (compress && !strcmp(compress, ours) && density == v->config->outer.density)
        return STATUS_OK;
    return status_fail(STATUS_USAGE,
                       "%s was written with outer.compress=%s and outer.density=%g: start the server with these once "
                       "more and stop it by SIGTERM, so that it saves what the journal has",
                       path, compress ? compress : "?", density);
}

static status check_data(const server *v, FILE *f, const json_t *header, const char *path)
{
    int64_t left = (int64_t)json_integer_value(json_object_get(header, "bytes"));
    uint32_t crc = 0;
    size_t got = 1;
    while (left > 0 && got > 0) {
        got = fread(v->buffer, 1, (size_t)(left < CHECKPOINT_WRITER_BUFFER ? left : CHECKPOINT_WRITER_BUFFER), f);
        crc = crc32c(crc, v->buffer, (int64_t)got);
        left -= (int64_t)got;
    }
    bool sound = left == 0 && crc == (uint32_t)json_integer_value(json_object_get(header, "crc")) && fgetc(f) == EOF;
    return sound ? STATUS_OK : status_fail(STATUS_FAILED, "%s is damaged", path);
}

/* The units of this rank's that rank `rank` of `ranks` has written. */
static status read_units(server *v, FILE *f, int64_t start, const int *owner, int rank, const char *path)
{
    outer *o = v->outer;
    for (int u = 0; u < o->units.count; u++) {
        int64_t bytes = compress_bytes(&o->method, o->units.list[u].elements);
        if (owner[u] != rank)
            continue;
        const outer_unit *m = o->units.mine_of[u] < 0 ? NULL : &o->units.mine[o->units.mine_of[u]];
        if (m && (fseeko(f, (off_t)start, SEEK_SET) != 0 ||
                  fread(o->memory.in[0] + m->coded, 1, (size_t)bytes, f) != (size_t)bytes))
            return status_fail(STATUS_FAILED, "%s cannot be read: %s", path, strerror(errno));
        start += bytes;
    }
    return STATUS_OK;
}

/* One file of an entry; *header: the caller's. */
static status read_file(json_t **header, server *v, int64_t merge, const int *owner, int rank, int ranks)
{
    char *path = path_of(v, merge, rank, ranks);
    FILE *f = fopen(path, "rb");
    status s = f ? STATUS_OK : status_fail(STATUS_FAILED, "cannot read %s: %s", path, strerror(errno));
    if (s == STATUS_OK && !(*header = read_header(f, path)))
        s = STATUS_FAILED;
    off_t start = s == STATUS_OK ? ftello(f) : 0;
    if (s == STATUS_OK)
        s = check_method(v, *header, path);
    if (s == STATUS_OK)
        s = check_data(v, f, *header, path);
    if (s == STATUS_OK)
        s = read_units(v, f, (int64_t)start, owner, rank, path);
    if (f)
        fclose(f);
    free(path);
    return s;
}

/* All of an entry that is this rank's, into the first buffer, and what it says. */
static status read_entry(roster *head, double *share, int64_t *id, server *v, int64_t merge, int ranks)
{
    outer *o = v->outer;
    int *owner = must_alloc((unsigned long)o->units.count * sizeof *owner);
    units_own(owner, o->units.list, o->units.count, o->config->outer.fragments, ranks);
    status s = STATUS_OK;
    for (int rank = 0; rank < ranks && s == STATUS_OK; rank++) {
        json_t *header = NULL;
        s = read_file(&header, v, merge, owner, rank, ranks);
        if (s == STATUS_OK) {
            roster_read_head(head, json_object_get(header, "head"), 0);
            *share = json_number_value(json_object_get(header, "share"));
            *id = (int64_t)json_integer_value(json_object_get(header, "id"));
        }
        json_decref(header);
    }
    free(owner);
    return s;
}

/* Is the entry of etcd's last merge the one that etcd knows? */
static bool is_known(const roster *head, int64_t merge, int64_t id)
{
    bool known = merge != head->merge;
    for (int i = 0; i < head->parts; i++)
        known |= head->part[i].merge == merge && head->part[i].id == id;
    return known;
}

/* The next one; *done: it has been merged. */
static status replay_next(bool *done, server *v, const roster *head)
{
    comm_group *all = comm_world(v->world);
    int64_t merge = v->outer->merge + 1, id = 0;
    int ranks = first_rank(v) ? ranks_of(v, merge) : 0;
    roster then = {0};
    double share = 0;
    comm_broadcast_bytes(all, &ranks, sizeof ranks, 0);
    *done = false;
    if (ranks == 0)
        return STATUS_OK;
    TRY(comm_all_status(all, read_entry(&then, &share, &id, v, merge, ranks)));
    if (!is_known(head, merge, id))
        return STATUS_OK;
    server_merge(v, 0, share);
    v->outer->merge = merge;
    server_take_head(v, &then);
    v->entries++;
    *done = true;
    return STATUS_OK;
}

status server_journal_replay(server *v, const roster *head)
{
    int64_t before = v->outer->merge, last = head->merge >= before ? head->merge : INT64_MAX;
    for (bool more = true; more && v->outer->merge < last;) {
        status s = replay_next(&more, v, head);
        if (s == STATUS_USAGE)
            return s;
        if (s != STATUS_OK) {
            if (first_rank(v))
                log_warn("%s", status_message());
            more = false;
        }
    }
    if (first_rank(v)) /* the entries stay until the next save: the server may die again before it */
        tidy(v, before + 1, v->outer->merge);
    if (v->outer->merge > before)
        log_info("server: merges %lld to %lld are made again from the journal", (long long)before + 1,
                 (long long)v->outer->merge);
    return STATUS_OK;
}

status server_journal_open(server *v)
{
    v->journal = must_format("%s/journal", v->config->run.folder);
    return comm_all_status(comm_world(v->world), first_rank(v) ? atomic_make_folders(v->journal) : STATUS_OK);
}
