#include "engine/state/node_copies.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/files/atomic.h"
#include "engine/checkpoint/checkpoint_find.h"
#include "engine/checkpoint/checkpoint_publisher.h"
#include "engine/checkpoint/share.h"
#include "engine/state/node_shares.h"
#include "memory/arena.h"
#include "memory/log.h"
#include "memory/units.h"

#define MEMORY_FOLDER "/dev/shm"

enum { NODE_NAME = 96, BLOCK = CHECKPOINT_WRITER_BUFFER };

struct node_copies {
    comm_group *world;
    int me, ranks;
    int *node;     /* [ranks] */
    int first;     /* of this rank's node */
    int to, round; /* the rank that gets a copy of this one's share, and in which round; -1: there is one node */
    int *from;     /* [rounds] the rank whose share comes in that round; -1: none */
    int rounds;
    char *folder;  /* of the run, in this node's memory */
    char *id_file; /* RUN/memory */
    char id[MANIFEST_RUN];
    int64_t bytes;
    arena *buffers; /* two blocks: what is sent, what is received */
};

/* ---- nodes ---- */

/* Where /dev/shm is another one, as between containers, it is another node. */
static void name_node(char out[NODE_NAME])
{
    struct stat info = {0};
    char boot[64] = "";
    const char *given = getenv("PHALANX_NODE");
    memset(out, 0, NODE_NAME);
    if (given) {
        snprintf(out, NODE_NAME, "%s", given);
        return;
    }
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!f || !fgets(boot, sizeof boot, f))
        gethostname(boot, sizeof boot - 1);
    if (f)
        fclose(f);
    stat(MEMORY_FOLDER, &info);
    snprintf(out, NODE_NAME, "%.36s %lld", boot, (long long)info.st_dev);
}

/* A node is known by its first rank. */
static void group_by_node(int *node, const char (*names)[NODE_NAME], int ranks)
{
    for (int i = 0; i < ranks; i++) {
        node[i] = i;
        for (int j = 0; j < i && node[i] == i; j++)
            if (strcmp(names[i], names[j]) == 0)
                node[i] = j;
    }
}

/* The index-th rank of a node, and how many it has. */
static int member(int *members, const node_copies *k, int node, int index)
{
    int found = -1, count = 0;
    for (int i = 0; i < k->ranks; i++)
        if (k->node[i] == node && count++ == index)
            found = i;
    *members = count > 0 ? count : 1; /* a node has the rank that it is known by */
    return found;
}

static int next_node(const node_copies *k, int node)
{
    for (int i = 1; i < k->ranks; i++)
        if (k->node[(node + i) % k->ranks] == (node + i) % k->ranks)
            return (node + i) % k->ranks;
    return node;
}

/* The i-th rank of a node sends to the i-th of the next node; where that has fewer ranks, it begins again with the
 * first, in another round, so that in each round a rank sends to one at most and receives from one at most. */
static int destination(int *round, const node_copies *k, int rank)
{
    int index = 0, members, node = k->node[rank], next = next_node(k, node);
    for (int i = 0; i < rank; i++)
        index += k->node[i] == node;
    (void)member(&members, k, next, 0);
    *round = index / members;
    return next == node ? -1 : member(&members, k, next, index % members);
}

static void find_neighbours(node_copies *k)
{
    k->from = must_alloc((unsigned long)k->ranks * sizeof *k->from);
    k->first = k->node[k->me];
    k->to = destination(&k->round, k, k->me);
    k->rounds = 0;
    for (int i = 0; i < k->ranks; i++)
        k->from[i] = -1;
    for (int i = 0; i < k->ranks; i++) {
        int round, to = destination(&round, k, i);
        if (to == k->me)
            k->from[round] = i;
        if (to >= 0 && round >= k->rounds)
            k->rounds = round + 1;
    }
}

/* The run's folder by its real path, the same for every start, and short: a hash (FNV-1a). */
static char *memory_folder(const char *real)
{
    const char *node = getenv("PHALANX_NODE");
    uint64_t hash = 14695981039346656037u;
    for (const char *c = real; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    return must_format(MEMORY_FOLDER "/phalanx-%u-%016llx%s%s", (unsigned)getuid(), (unsigned long long)hash,
                       node ? "." : "", node ? node : "");
}

status node_copies_open(node_copies **out, comm *world, const char *run_folder)
{
    node_copies *k = must_calloc(1, sizeof *k);
    char mine[NODE_NAME], real[PATH_MAX] = "";
    *out = k;
    k->world = comm_world(world);
    k->me = comm_rank(world);
    k->ranks = comm_ranks(world);
    k->node = must_alloc((unsigned long)k->ranks * sizeof *k->node);
    k->id_file = must_format("%s/memory", run_folder);
    char(*names)[NODE_NAME] = must_alloc((unsigned long)k->ranks * sizeof *names);
    name_node(mine);
    comm_all_gather_bytes(k->world, names, mine, sizeof mine);
    group_by_node(k->node, (const char(*)[NODE_NAME])names, k->ranks);
    find_neighbours(k);
    free(names);
    status s = k->me > 0 || realpath(run_folder, real)
                   ? STATUS_OK
                   : status_fail(STATUS_FAILED, "cannot find %s: %s", run_folder, strerror(errno));
    TRY(comm_all_status(k->world, s));
    comm_broadcast_bytes(k->world, real, sizeof real, 0);
    k->folder = memory_folder(real);
    return STATUS_OK;
}

void node_copies_close(node_copies *k)
{
    if (!k)
        return;
    arena_close(k->buffers);
    free(k->node);
    free(k->from);
    free(k->folder);
    free(k->id_file);
    free(k);
}

const char *node_copies_folder(const node_copies *k)
{
    return k->folder;
}

/* By the first rank of each node; rank 0 forgets whose they were first, so that what is left by chance counts no
 * more. */
static status clear(node_copies *k)
{
    status s = k->me == 0 ? atomic_remove(k->id_file) : STATUS_OK;
    s = comm_all_status(k->world, s);
    if (s == STATUS_OK && k->me == k->first)
        s = atomic_remove(k->folder);
    return s;
}

void node_copies_forget(node_copies *k)
{
    if (clear(k) != STATUS_OK)
        log_warn("copies in memory: %s", status_message());
}

/* ---- keeping ---- */

static status check_room(const node_copies *k)
{
    struct statvfs info;
    char needed[UNITS_TEXT], there[UNITS_TEXT];
    int local = 1;
    for (int i = 0; i < k->ranks; i++)
        local += i != k->me && k->node[i] == k->first;
    if (statvfs(MEMORY_FOLDER, &info) != 0)
        return status_fail(STATUS_FAILED, "checkpoint.memory_every: there is no %s: %s", MEMORY_FOLDER,
                           strerror(errno));
    int64_t room = (int64_t)info.f_bavail * (int64_t)info.f_frsize, available = arena_available();
    room = room < available ? room : available;
    if (2 * k->bytes <= room / local)
        return STATUS_OK;
    units_bytes(needed, 2.0 * (double)k->bytes * local);
    units_bytes(there, (double)room);
    return status_fail(
        STATUS_FAILED,
        "checkpoint.memory_every needs %s of %s on this node (two generations of its ranks' shares and of "
        "a neighbour's), and %s are left: set it to 0, or use more nodes",
        needed, MEMORY_FOLDER, there);
}

status node_copies_begin(node_copies *k, const char *id, int64_t bytes)
{
    int64_t *all = must_alloc((unsigned long)k->ranks * sizeof *all);
    comm_all_gather_bytes(k->world, all, &bytes, sizeof bytes);
    k->bytes = all[k->me];
    for (int i = 0; i < k->rounds; i++)
        k->bytes += k->from[i] >= 0 ? all[k->from[i]] : 0;
    free(all);
    snprintf(k->id, sizeof k->id, "%s", id);
    TRY(comm_all_status(k->world, check_room(k)));
    status s = arena_open(&k->buffers, 2 * (int64_t)BLOCK);
    if (s == STATUS_OK && k->me == k->first && mkdir(k->folder, 0700) != 0 && errno != EEXIST)
        s = status_fail(STATUS_FAILED, "cannot make %s: %s", k->folder, strerror(errno));
    TRY(comm_all_status(k->world, s));
    return comm_all_status(k->world, k->me == 0 ? atomic_replace(k->id_file, id, (int64_t)strlen(id)) : STATUS_OK);
}

int64_t node_copies_bytes(const node_copies *k)
{
    return 2 * k->bytes + 2 * (int64_t)BLOCK;
}

/* What goes out and what comes in, in one round. */
typedef struct transfer {
    int to, from; /* -1: nobody */
    const char *folder;
    int out, in; /* files; -1: none, or it cannot be read or written */
    int64_t out_bytes, in_bytes;
    status result;
} transfer;

static int open_in(const char *folder, const char *name, int flags)
{
    char *path = must_format("%s/%s", folder, name);
    int file = open(path, flags | O_CLOEXEC, 0600);
    free(path);
    return file;
}

/* Whatever fails here, the neighbours' bytes go on: who waits for them is not to blame. */
static void fail(transfer *t, const char *what)
{
    if (t->result == STATUS_OK)
        t->result = status_fail(STATUS_FAILED, "cannot %s a copy in %s: %s", what, t->folder, strerror(errno));
}

static void pass(const node_copies *k, const transfer *t, const void *out, int64_t send, void *in, int64_t receive)
{
    if (send == 0 && receive == 0)
        return;
    comm_kind kind = send == 0 ? COMM_RECEIVE : receive == 0 ? COMM_SEND : COMM_EXCHANGE;
    comm_run(&(comm_call){.kind = kind,
                          .group = k->world,
                          .type = DTYPE_UINT8,
                          .send = out,
                          .receive = in,
                          .count = kind == COMM_RECEIVE ? receive : send,
                          .receive_count = receive,
                          .peer = t->to,
                          .source = t->from});
}

static int64_t block_at(int64_t at, int64_t bytes)
{
    int64_t left = bytes - at;
    return left < 0 ? 0 : left < BLOCK ? left : BLOCK;
}

static void pass_blocks(const node_copies *k, transfer *t)
{
    char *out = arena_base(k->buffers), *in = out + BLOCK;
    int64_t most = t->out_bytes > t->in_bytes ? t->out_bytes : t->in_bytes;
    for (int64_t at = 0; at < most; at += BLOCK) {
        int64_t send = block_at(at, t->out_bytes), receive = block_at(at, t->in_bytes);
        if (send > 0 && pread(t->out, out, (size_t)send, at) != send)
            fail(t, "read");
        pass(k, t, out, send, in, receive);
        if (receive > 0 && t->in >= 0 && pwrite(t->in, in, (size_t)receive, at) != receive)
            fail(t, "write");
    }
}

/* File number `i` of both shares. */
static void pass_file(const node_copies *k, transfer *t, const share *mine, const share *theirs, int i)
{
    t->out = t->in = -1;
    t->out_bytes = t->in_bytes = 0;
    if (i < mine->count) {
        t->out = open_in(t->folder, mine->file[i].name, O_RDONLY);
        t->out_bytes = mine->file[i].bytes;
        if (t->out < 0)
            fail(t, "read");
    }
    if (i < theirs->count) {
        t->in = open_in(t->folder, theirs->file[i].name, O_WRONLY | O_CREAT | O_TRUNC);
        t->in_bytes = theirs->file[i].bytes;
        if (t->in < 0)
            fail(t, "write");
    }
    pass_blocks(k, t);
    if (t->out >= 0)
        close(t->out);
    if (t->in >= 0)
        close(t->in);
}

static status pass_shares(const node_copies *k, const char *folder, const share *mine)
{
    static const share nothing;
    status s = STATUS_OK;
    for (int round = 0; round < k->rounds; round++) {
        transfer t = {.to = k->round == round ? k->to : -1, .from = k->from[round], .folder = folder};
        const share *out = t.to >= 0 ? mine : &nothing;
        share in = {0};
        pass(k, &t, out, t.to >= 0 ? (int64_t)sizeof *out : 0, &in, t.from >= 0 ? (int64_t)sizeof in : 0);
        for (int i = 0; i < out->count || i < in.count; i++)
            pass_file(k, &t, out, &in, i);
        s = s == STATUS_OK ? t.result : s;
    }
    return s;
}

static status hide(const char *folder, const share *mine)
{
    for (int i = 0; i < mine->count; i++) {
        char *path = must_format("%s/%s", folder, mine->file[i].name);
        bool good = chmod(path, 0600) == 0;
        free(path);
        if (!good)
            return status_fail(STATUS_FAILED, "cannot change who may read %s: %s", folder, strerror(errno));
    }
    return STATUS_OK;
}

/* All but this one. */
static void remove_older(const node_copies *k, const char *keep)
{
    DIR *folder = opendir(k->folder);
    for (struct dirent *e = folder ? readdir(folder) : NULL; e; e = readdir(folder))
        if (e->d_name[0] == '.' && e->d_name[1] == 't' && strcmp(e->d_name, keep) != 0) {
            char *path = must_format("%s/%s", k->folder, e->d_name);
            if (atomic_remove(path) != STATUS_OK)
                log_warn("%s", status_message());
            free(path);
        }
    if (folder)
        closedir(folder);
}

status node_copies_spread(node_copies *k, const char *name)
{
    share mine;
    char *folder = checkpoint_temporary(k->folder, name);
    status s = share_list(&mine, folder, &(fragment_owner){k->id, name, k->me, k->ranks});
    if (s == STATUS_OK)
        s = hide(folder, &mine);
    s = comm_all_status(k->world, s);
    if (s == STATUS_OK && k->rounds > 0)
        s = comm_all_status(k->world, pass_shares(k, folder, &mine));
    if (s == STATUS_OK && k->me == k->first)
        remove_older(k, strrchr(folder, '/') + 1);
    free(folder);
    return s;
}

/* ---- going on from them ---- */

/* Which start's copies count: "" if none. */
static void read_id(node_copies *k)
{
    char id[MANIFEST_RUN] = "";
    FILE *f = k->me == 0 ? fopen(k->id_file, "re") : NULL;
    if (f && fscanf(f, "%32[0-9a-f]", id) != 1)
        id[0] = 0;
    if (f)
        fclose(f);
    comm_broadcast_bytes(k->world, id, sizeof id, 0);
    memcpy(k->id, id, sizeof id);
}

/* The step that the run would go on from; -1: none. INT64_MAX: nobody can tell, and nothing may be added. */
static int64_t step_on_disk(const node_copies *k, const char *checkpoints)
{
    int64_t step = -1;
    checkpoint_offers offers;
    if (k->me == 0 && checkpoint_offers_find(&offers, checkpoints) == STATUS_OK) {
        long long first = -1;
        if (offers.count > 0 && sscanf(strrchr(offers.folder[0], '/') + 1, "step-%lld", &first) != 1)
            first = INT64_MAX;
        step = first;
        checkpoint_offers_free(&offers);
    } else if (k->me == 0) {
        step = INT64_MAX;
    }
    comm_broadcast_bytes(k->world, &step, sizeof step, 0);
    return step;
}

/* The member of a node that does the work for share `rank`. */
static int worker_of(const node_copies *k, int node, int rank)
{
    int members;
    (void)member(&members, k, node, 0);
    return member(&members, k, node, rank % members);
}

/* Copies this process's part of a set to the disk: of each share that has not arrived yet the one of its `attempt`-th
 * holder. */
static void copy_shares(const node_copies *k, const node_set *set, const char *to, int attempt, const char *arrived,
                        char *mine, char *buffer)
{
    char *from = checkpoint_temporary(k->folder, set->name);
    for (int w = 0; w < set->ranks; w++) {
        int node = node_set_holder(set, w, attempt);
        mine[w] = 0;
        if (arrived[w] || node < 0 || worker_of(k, node, w) != k->me)
            continue;
        mine[w] = share_copy(to, from, &(fragment_owner){k->id, set->name, w, set->ranks}, buffer) == STATUS_OK;
        if (!mine[w])
            log_warn("copies in memory: %s", status_message());
    }
    free(from);
}

/* All shares on the disk, from their first holders or from their second. */
static status bring_together(const node_copies *k, const node_set *set, const char *to, char *buffer)
{
    unsigned long count = (unsigned long)set->ranks;
    char *arrived = must_calloc(count, 1), *mine = must_calloc(count, 1),
         *all = must_alloc(count * (unsigned long)k->ranks);
    int missing = set->ranks;
    for (int attempt = 0; attempt < set->nodes && missing > 0; attempt++) {
        copy_shares(k, set, to, attempt, arrived, mine, buffer);
        comm_all_gather_bytes(k->world, all, mine, (int64_t)count);
        for (unsigned long i = 0; i < count * (unsigned long)k->ranks; i++)
            if (all[i] && !arrived[i % count]) {
                arrived[i % count] = 1;
                missing--;
            }
    }
    free(all);
    free(mine);
    free(arrived);
    return missing == 0 ? STATUS_OK
                        : status_fail(STATUS_FAILED, "%d shares of the copies in memory cannot be used", missing);
}

static status publish(const node_copies *k, const node_set *set, const char *checkpoints, const char *temporary,
                      char *buffer)
{
    json_t *meta = NULL;
    TRY(share_take_meta(&meta, temporary));
    checkpoint_publisher *p = checkpoint_publisher_open(set->ranks, k->id, buffer);
    status s = checkpoint_publisher_publish(p, checkpoints, set->name, meta);
    checkpoint_publisher_close(p);
    json_decref(meta);
    return s;
}

static status adopt(node_copies *k, const node_set *set, const char *checkpoints)
{
    arena *buffer = NULL;
    char *temporary = checkpoint_temporary(checkpoints, set->name);
    status s = comm_all_status(k->world, arena_open(&buffer, BLOCK));
    if (s == STATUS_OK)
        s = comm_all_status(k->world, k->me == 0 ? checkpoint_tidy(checkpoints) : STATUS_OK);
    if (s == STATUS_OK)
        s = bring_together(k, set, temporary, arena_base(buffer));
    if (s == STATUS_OK && k->me == 0)
        s = publish(k, set, checkpoints, temporary, arena_base(buffer));
    s = comm_all_status(k->world, s);
    if (s != STATUS_OK && k->me == 0)
        checkpoint_clean(checkpoints, set->name);
    arena_close(buffer);
    free(temporary);
    return s;
}

void node_copies_adopt(node_copies *k, const char *checkpoints, int64_t *step, char **trouble)
{
    *step = -1;
    *trouble = NULL;
    read_id(k);
    if (!*k->id)
        return;
    int64_t disk = step_on_disk(k, checkpoints);
    const char *folder = k->me == k->first ? k->folder : NULL;
    node_set set;
    /* The newest may be whole without its second copies yet; the one before it then has both. */
    for (int64_t before = INT64_MAX; *step < 0; before = set.step) {
        bool found = node_shares_newest(&set, k->world, k->node, folder, k->id, disk, before);
        status s = found ? adopt(k, &set, checkpoints) : STATUS_OK;
        if (found && s == STATUS_OK)
            *step = set.step;
        else if (found && k->me == 0 && !*trouble)
            *trouble = must_strdup(status_message());
        free(set.holder);
        if (!found)
            break;
    }
    if (*step >= 0) {
        free(*trouble);
        *trouble = NULL;
    }
    node_copies_forget(k);
}
