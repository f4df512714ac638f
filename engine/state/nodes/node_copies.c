#include "engine/state/nodes/node_copies.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/system/lock.h"
#include "engine/system/reading.h"
#include "engine/system/retry.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/checkpoint/share.h"
#include "memory/machine.h"
#include "memory/arena.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/units.h"

#define NODE_MEMORY "/dev/shm"

enum { NODE_NAME = 96, BLOCK = CHECKPOINT_WRITER_BUFFER };

struct node_copies {
    comm_group *world;
    int me, ranks;
    lock *owner;   /* lock of the run's folder */
    int *node;     /* [ranks] */
    int first;     /* first rank of this rank's node */
    int to, round; /* rank that gets a copy of this one's share, and its round; -1: only one node */
    int *from;     /* [rounds] the rank that sends its share in that round; -1: none */
    int rounds;
    share_source place;    /* the run's place in this node's memory; folder NULL: no secret yet */
    int held;              /* this node's folder, open and locked by its first rank; -1: not held */
    char *id_file;         /* RUN/memory */
    char id[MANIFEST_RUN]; /* id of the start that owns valid copies; "": none */
    int64_t bytes;
    arena *buffers; /* two blocks: one to send, one to receive */
};

/* ---- nodes ---- */

/* Names this rank's node. A different /dev/shm, as between containers, makes a different node. */
static void name_node(char out[NODE_NAME])
{
    struct stat info = {0};
    char boot[MACHINE_BOOT];
    const char *given = getenv("PHALANX_NODE");
    memset(out, 0, NODE_NAME);
    if (given) {
        snprintf(out, NODE_NAME, "%s", given);
        return;
    }
    if (!machine_boot(boot))
        gethostname(boot, sizeof boot - 1);
    stat(NODE_MEMORY, &info);
    snprintf(out, NODE_NAME, "%.36s %lld", boot, (long long)info.st_dev);
}

/* Returns the index-th rank of a node; *members: their number. */
static int node_member(int *members, const node_copies *k, int node, int index)
{
    int found = -1, count = 0;
    for (int i = 0; i < k->ranks; i++)
        if (k->node[i] == node && count++ == index)
            found = i;
    *members = count > 0 ? count : 1; /* a node always has its first rank */
    return found;
}

/* Returns the rank that gets a copy of `rank`'s share. The i-th rank of a node sends to the i-th of the next node; if
 * that has fewer ranks, it wraps around to the first in another round, so that per round a rank sends to at most one
 * and receives from at most one. */
static int copy_destination(int *round, const node_copies *k, int rank)
{
    int index = 0, members, node = k->node[rank], next = node;
    for (int i = 1; i < k->ranks && next == node; i++)
        if (k->node[(node + i) % k->ranks] == (node + i) % k->ranks)
            next = (node + i) % k->ranks;
    for (int i = 0; i < rank; i++)
        index += k->node[i] == node;
    (void)node_member(&members, k, next, 0);
    *round = index / members;
    return next == node ? -1 : node_member(&members, k, next, index % members);
}

static void find_neighbours(node_copies *k)
{
    k->from = must_alloc((unsigned long)k->ranks * sizeof *k->from);
    k->first = k->node[k->me];
    k->to = copy_destination(&k->round, k, k->me);
    k->rounds = 0;
    for (int i = 0; i < k->ranks; i++)
        k->from[i] = -1;
    for (int i = 0; i < k->ranks; i++) {
        int round, to = copy_destination(&round, k, i);
        if (to == k->me)
            k->from[round] = i;
        if (to >= 0 && round >= k->rounds)
            k->rounds = round + 1;
    }
}

/* ---- the run's secret, and its folder ---- */

/* The contents of RUN/memory, on all ranks. */
typedef struct known {
    bool has_secret;
    uint8_t secret[SHARE_SECRET];
    char id[MANIFEST_RUN];
} known;

/* Returns an unguessable name that does not reveal the secret. */
static char *memory_folder(const uint8_t secret[SHARE_SECRET])
{
    static const char what[] = "the folder's name";
    const char *node = getenv("PHALANX_NODE");
    char name[SHARE_SUM];
    share_sum(name, secret, what, sizeof what);
    return must_format(NODE_MEMORY "/phalanx-%u-%s%s%s", (unsigned)getuid(), name, node ? "." : "", node ? node : "");
}

/* Reads "ID SECRET", ID "-" for none, both hexadecimal. A file of an older phalanx has no secret, and no copies that
 * can be trusted. */
static status read_known(known *out, const char *path)
{
    AUTO_FREE char *text = NULL;
    char secret[2 * SHARE_SECRET + 1] = "";
    int64_t bytes;
    *out = (known){0};
    TRY(reading_file(&text, &bytes, path));
    int words = text ? sscanf(text, "%32[-0-9a-f] %32[0-9a-f]", out->id, secret) : 0;
    out->has_secret = words == 2 && strlen(secret) == 2 * SHARE_SECRET;
    for (int i = 0; i < SHARE_SECRET && out->has_secret; i++)
        out->has_secret = sscanf(secret + 2 * i, "%2hhx", &out->secret[i]) == 1;
    if (text && !out->has_secret)
        log_warn("%s names no secret of this run: its copies in memory, if there are any, are not used", path);
    if (!out->has_secret || strcmp(out->id, "-") == 0)
        *out->id = 0;
    return STATUS_OK;
}

static status write_known(const node_copies *k)
{
    char text[2 * SHARE_SECRET + 1];
    TRY(lock_check(k->owner));
    for (int i = 0; i < SHARE_SECRET; i++)
        snprintf(text + 2 * i, 3, "%02x", k->place.secret[i]);
    AUTO_FREE char *line = must_format("%s %s\n", *k->id ? k->id : "-", text);
    return atomic_replace_private(k->id_file, line, (int64_t)strlen(line));
}

static void let_go(node_copies *k)
{
    if (k->held >= 0)
        close(k->held);
    k->held = -1;
}

/* Takes another secret, or none: another folder. */
static void take_secret(node_copies *k, const known *from)
{
    let_go(k);
    free((void *)(uintptr_t)k->place.folder);
    memcpy(k->place.secret, from->secret, sizeof k->place.secret);
    k->place.folder = from->has_secret ? memory_folder(from->secret) : NULL;
    memcpy(k->id, from->id, sizeof k->id);
}

/* Owner of a folder in this node's memory. */
typedef enum holder {
    NOBODY, /* the folder does not exist */
    OURS,   /* and locked by this job */
    ALIVE,  /* owned by a live run */
    FOREIGN,
} holder;

/* Locks the folder; waits until the processes of a job that was just killed are gone. */
static bool lock_folder(int folder)
{
    static const double WAIT = 5; /* seconds */
    for (double until = clock_seconds() + WAIT; flock(folder, LOCK_EX | LOCK_NB) != 0; clock_nap(0.05))
        if (clock_seconds() > until)
            return false;
    return true;
}

/* Locks the folder on the first rank of a node. A folder that users other than its owner, this process's user, may
 * enter is foreign. */
static status hold_here(holder *whose, node_copies *k)
{
    const char *path = k->place.folder;
    struct stat info;
    *whose = k->held >= 0 ? OURS : FOREIGN;
    if (k->held >= 0)
        return STATUS_OK;
    AUTO_CLOSE folder = RETRY(path, open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (folder < 0 && errno != ENOENT && errno != ELOOP && errno != ENOTDIR && errno != EACCES)
        return status_fail(STATUS_FAILED, "cannot open %s: %s", path, strerror(errno));
    if (folder < 0) {
        *whose = errno == ENOENT ? NOBODY : FOREIGN;
        return STATUS_OK;
    }
    if (RETRY(path, fstat(folder, &info)) != 0)
        return status_fail(STATUS_FAILED, "cannot tell whose %s is: %s", path, strerror(errno));
    if (info.st_uid == geteuid() && (info.st_mode & 077) == 0)
        *whose = lock_folder(folder) ? OURS : ALIVE;
    if (*whose == OURS) {
        k->held = folder;
        folder = -1;
    }
    return STATUS_OK;
}

/* Locks the folder on all nodes; *worst: the worst owner. */
static status lock_folders(holder *worst, node_copies *k)
{
    holder mine = NOBODY;
    status s = comm_all_status(k->world, k->me == k->first ? hold_here(&mine, k) : STATUS_OK);
    *worst = (holder)comm_all_max(k->world, mine);
    return s;
}

status node_copies_open(node_copies **out, comm *world, const char *run_folder, lock *owner)
{
    node_copies *k = must_calloc(1, sizeof *k);
    char mine[NODE_NAME];
    *out = k;
    k->held = -1;
    k->owner = owner;
    k->world = comm_world(world);
    k->me = comm_rank(world);
    k->ranks = comm_ranks(world);
    k->node = must_alloc((unsigned long)k->ranks * sizeof *k->node);
    k->id_file = must_format("%s/memory", run_folder);
    AUTO_FREE char(*names)[NODE_NAME] = must_alloc((unsigned long)k->ranks * sizeof *names);
    name_node(mine);
    comm_all_gather_bytes(k->world, names, mine, sizeof mine);
    for (int i = 0; i < k->ranks; i++) { /* a node's id is its first rank */
        k->node[i] = i;
        for (int j = 0; j < i && k->node[i] == i; j++)
            if (strcmp(names[i], names[j]) == 0)
                k->node[i] = j;
    }
    find_neighbours(k);
    known is = {0};
    status s = comm_all_status(k->world, k->me == 0 ? read_known(&is, k->id_file) : STATUS_OK);
    comm_broadcast_bytes(k->world, &is, sizeof is, 0);
    take_secret(k, &is);
    return s;
}

void node_copies_close(node_copies *k)
{
    if (!k)
        return;
    arena_close(k->buffers);
    let_go(k);
    free(k->node);
    free(k->from);
    free((void *)(uintptr_t)k->place.folder);
    free(k->id_file);
    free(k);
}

const share_source *node_copies_place(const node_copies *k)
{
    return &k->place;
}

/* Removes the copies on the first rank of each node; rank 0 first erases the owner's id, so that leftovers no longer
 * count. Foreign folders and those of live runs stay. */
static status clear_copies(node_copies *k)
{
    holder whose = NOBODY;
    if (!k->place.folder)
        return STATUS_OK;
    bool counted = *k->id;
    *k->id = 0;
    TRY(comm_all_status(k->world, k->me == 0 && counted ? write_known(k) : STATUS_OK));
    status s = k->me == k->first ? hold_here(&whose, k) : STATUS_OK;
    if (s == STATUS_OK && whose == OURS) {
        s = atomic_remove(k->place.folder);
        let_go(k);
    }
    return s;
}

void node_copies_forget(node_copies *k)
{
    if (clear_copies(k) != STATUS_OK)
        log_warn("copies in memory: %s", status_message());
}

/* ---- saving copies ---- */

/* Fails with advice unless memory has room for two generations of this node's and a neighbour's shares. */
static status check_room(const node_copies *k)
{
    struct statvfs info;
    int shares = 1;
    for (int i = 0; i < k->ranks; i++)
        shares += i != k->me && k->node[i] == k->first;
    if (statvfs(NODE_MEMORY, &info) != 0)
        return status_fail(STATUS_FAILED, "checkpoint.memory_every: there is no " NODE_MEMORY ": %s", strerror(errno));
    int64_t room = (int64_t)info.f_bavail * (int64_t)info.f_frsize, available = arena_available();
    room = room < available ? room : available;
    if (2 * k->bytes <= room / shares)
        return STATUS_OK;
    return status_fail(STATUS_FAILED,
                       "checkpoint.memory_every needs %s of " NODE_MEMORY
                       " on this node (two generations of its ranks' shares and "
                       "of a neighbour's), and %s are left: set it to 0, or use more nodes",
                       BYTES_TEXT(2.0 * (double)k->bytes * shares), BYTES_TEXT(room));
}

static status make_here(node_copies *k)
{
    holder whose;
    struct stat info;
    MUST(k->place.folder, "copies have no place");
    if (stat(NODE_MEMORY, &info) == 0 && (info.st_mode & S_IWOTH) && !(info.st_mode & S_ISVTX))
        return status_fail(STATUS_FAILED, "checkpoint.memory_every: others could replace what is in " NODE_MEMORY
                                          ": chmod +t it, as it is elsewhere");
    if (mkdir(k->place.folder, 0700) != 0 && errno != EEXIST)
        return status_fail(STATUS_FAILED, "cannot make %s: %s", k->place.folder, strerror(errno));
    TRY(hold_here(&whose, k));
    return whose == OURS ? STATUS_OK
                         : status_fail(STATUS_FAILED, "%s is not this run's own: start it again", k->place.folder);
}

/* Keeps the run's secret, or makes a new one if it has none or another owner has its folder: the run that this one was
 * copied from, or another user who has seen the name. */
static status agree_secret(node_copies *k)
{
    known fresh = {.has_secret = true};
    holder whose = NOBODY;
    if (k->place.folder)
        TRY(lock_folders(&whose, k));
    if (k->place.folder && whose < ALIVE)
        return STATUS_OK;
    if (k->me == 0)
        MUST(getrandom(fresh.secret, sizeof fresh.secret, 0) == sizeof fresh.secret,
             "the system has no random numbers");
    comm_broadcast_bytes(k->world, &fresh, sizeof fresh, 0);
    take_secret(k, &fresh);
    /* Written before the folder exists: if this process is killed now, the next one finds its files. */
    return comm_all_status(k->world, k->me == 0 ? write_known(k) : STATUS_OK);
}

status node_copies_begin(node_copies *k, const char *id, int64_t bytes)
{
    AUTO_FREE int64_t *all = must_alloc((unsigned long)k->ranks * sizeof *all);
    comm_all_gather_bytes(k->world, all, &bytes, sizeof bytes);
    k->bytes = all[k->me];
    for (int i = 0; i < k->rounds; i++)
        k->bytes += k->from[i] >= 0 ? all[k->from[i]] : 0;
    TRY(comm_all_status(k->world, check_room(k)));
    TRY(comm_all_status(k->world, arena_open(&k->buffers, 2 * (int64_t)BLOCK)));
    TRY(agree_secret(k));
    TRY(comm_all_status(k->world, k->me == k->first ? make_here(k) : STATUS_OK));
    snprintf(k->id, sizeof k->id, "%s", id);
    return comm_all_status(k->world, k->me == 0 ? write_known(k) : STATUS_OK);
}

int64_t node_copies_bytes(const node_copies *k)
{
    return 2 * k->bytes + 2 * (int64_t)BLOCK;
}

/* One round of sending and receiving. */
typedef struct transfer {
    int to, from; /* -1: none */
    const char *folder;
    int out, in; /* files; -1: none, or unreadable or unwritable */
    int64_t out_bytes, in_bytes;
    status result;
} transfer;

static int open_in(const char *folder, const char *name, int flags)
{
    AUTO_FREE char *path = must_format("%s/%s", folder, name);
    return open(path, flags | O_CLOEXEC, 0600);
}

/* Records a failure; the neighbours' bytes are still exchanged, since waiting ranks must not fail with it. */
static void fail_transfer(transfer *t, const char *what)
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
            fail_transfer(t, "read");
        pass(k, t, out, send, in, receive);
        if (receive > 0 && t->in >= 0 && pwrite(t->in, in, (size_t)receive, at) != receive)
            fail_transfer(t, "write");
    }
}

/* Exchanges file number `i` of both shares. */
static void pass_file(const node_copies *k, transfer *t, const share *mine, const share *theirs, int i)
{
    t->out = t->in = -1;
    t->out_bytes = t->in_bytes = 0;
    if (i < mine->count) {
        t->out = open_in(t->folder, mine->file[i].name, O_RDONLY);
        t->out_bytes = mine->file[i].bytes;
        if (t->out < 0)
            fail_transfer(t, "read");
    }
    if (i < theirs->count) {
        t->in = open_in(t->folder, theirs->file[i].name, O_WRONLY | O_CREAT | O_TRUNC);
        t->in_bytes = theirs->file[i].bytes;
        if (t->in < 0)
            fail_transfer(t, "write");
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

static status hide_share(const char *folder, const share *mine)
{
    for (int i = 0; i < mine->count; i++) {
        AUTO_FREE char *path = must_format("%s/%s", folder, mine->file[i].name);
        if (chmod(path, 0600) != 0)
            return status_fail(STATUS_FAILED, "cannot change who may read %s: %s", folder, strerror(errno));
    }
    return STATUS_OK;
}

/* Removes all copies but `keep`. */
static void remove_older(const node_copies *k, const char *keep)
{
    RELEASED_BY(reading_names_free) reading_names all = {0};
    if (reading_folder(&all, k->place.folder) != STATUS_OK)
        log_warn("%s", status_message());
    for (int i = 0; i < all.count; i++)
        if (strncmp(all.name[i], ".t", 2) == 0 && strcmp(all.name[i], keep) != 0) {
            AUTO_FREE char *path = must_format("%s/%s", k->place.folder, all.name[i]);
            if (atomic_remove(path) != STATUS_OK)
                log_warn("%s", status_message());
        }
}

status node_copies_spread(node_copies *k, const char *name)
{
    share mine;
    AUTO_FREE char *folder = checkpoint_temporary(k->place.folder, name);
    status s = share_list(&mine, folder, &(fragment_owner){k->id, name, k->me, k->ranks});
    TRY(comm_all_status(k->world, s == STATUS_OK ? hide_share(folder, &mine) : s));
    if (k->rounds > 0)
        TRY(comm_all_status(k->world, pass_shares(k, folder, &mine)));
    if (k->me == k->first)
        remove_older(k, strrchr(folder, '/') + 1);
    return STATUS_OK;
}

/* ---- complete sets of shares ---- */

typedef struct node_set {
    int64_t step;
    char name[32];    /* name of the checkpoint */
    int ranks, nodes; /* ranks that wrote it; nodes of this job */
    int *holder;      /* [ranks][nodes] first ranks of the nodes that have a share, then -1 */
} node_set;

/* A share on a node. */
typedef struct share_found {
    int64_t step;
    int rank, ranks, node;
} share_found;

typedef struct list {
    share_found *item;
    int count;
} list;

static status look_into(list *l, const char *folder, const char *name, const char *id, share_found as)
{
    AUTO_FREE char *path = must_format("%s/%s", folder, name);
    char run[MANIFEST_RUN];
    RELEASED_BY(reading_names_free) reading_names files = {0};
    TRY(reading_folder(&files, path));
    for (int i = 0; i < files.count; i++) {
        fragment_owner owner;
        bool is_one;
        TRY(share_owner(&is_one, &owner, run, path, files.name[i]));
        if (is_one && strcmp(run, id) == 0) {
            as.rank = owner.rank;
            as.ranks = owner.ranks;
            APPEND(l->item, l->count) = as;
        }
    }
    return STATUS_OK;
}

/* Looks through this node's memory, on the node's first rank. */
static status look_at_node(list *l, const node_copies *k, int64_t after)
{
    RELEASED_BY(reading_names_free) reading_names all = {0};
    long long step;
    if (k->me == k->first && k->place.folder)
        TRY(reading_folder(&all, k->place.folder));
    for (int i = 0; i < all.count; i++)
        if (sscanf(all.name[i], ".tmp-step-%lld", &step) == 1 && step > after)
            TRY(look_into(l, k->place.folder, all.name[i], k->id, (share_found){.step = step, .node = k->first}));
    return STATUS_OK;
}

/* Returns all ranks' lists, the same on every rank. */
static list gather_sets(comm_group *world, const list *mine)
{
    int ranks = comm_group_ranks(world), most = 0;
    AUTO_FREE int *counts = must_alloc((unsigned long)ranks * sizeof *counts);
    list all = {0};
    comm_all_gather_bytes(world, counts, &mine->count, sizeof mine->count);
    for (int i = 0; i < ranks; i++)
        most = counts[i] > most ? counts[i] : most;
    if (most == 0)
        return all;
    AUTO_FREE share_found *padded = must_calloc((unsigned long)most, sizeof *padded),
                          *items = must_alloc((unsigned long)most * (unsigned long)ranks * sizeof *items);
    if (mine->count > 0)
        memcpy(padded, mine->item, (size_t)mine->count * sizeof *padded);
    comm_all_gather_bytes(world, items, padded, most * (int64_t)sizeof *padded);
    for (int i = 0; i < ranks; i++)
        for (int j = 0; j < counts[i]; j++)
            APPEND(all.item, all.count) = items[i * most + j];
    return all;
}

/* True if some node has every share of this step. */
static bool is_complete(node_set *out, const list *all, int64_t step, int nodes)
{
    int ranks = 0, missing;
    for (int i = 0; i < all->count; i++)
        if (all->item[i].step == step)
            ranks = all->item[i].ranks;
    AUTO_FREE int *nodes_of = must_alloc((unsigned long)ranks * (unsigned long)nodes * sizeof *nodes_of);
    for (int i = 0; i < ranks * nodes; i++)
        nodes_of[i] = -1;
    for (int i = 0; i < all->count; i++) {
        const share_found *f = &all->item[i];
        for (int h = 0; f->step == step && f->ranks == ranks && h < nodes; h++)
            if (nodes_of[f->rank * nodes + h] < 0) {
                nodes_of[f->rank * nodes + h] = f->node;
                break;
            }
    }
    missing = ranks == 0;
    for (int i = 0; i < ranks; i++)
        missing += nodes_of[i * nodes] < 0;
    if (missing > 0)
        return false;
    *out = (node_set){.step = step, .ranks = ranks, .nodes = nodes, .holder = TAKE(nodes_of)};
    snprintf(out->name, sizeof out->name, "step-%08lld", (long long)step);
    return true;
}

static void free_list(list *l)
{
    free(l->item);
}

/* Finds the newest complete set of this run at a step after `after` and before `before`; collective. *found false:
 * certainly none. The caller frees the holders in any case. */
static status find_newest(bool *found, node_set *out, const node_copies *k, int64_t after, int64_t before)
{
    int nodes = 0;
    RELEASED_BY(free_list) list mine = {0}, all = {0};
    *out = (node_set){0};
    *found = false;
    TRY(comm_all_status(k->world, look_at_node(&mine, k, after)));
    all = gather_sets(k->world, &mine);
    for (int i = 0; i < k->ranks; i++)
        nodes += k->node[i] == i;
    for (int64_t below = before, step = 0; step >= 0 && !*found; below = step) {
        step = -1;
        for (int i = 0; i < all.count; i++)
            if (all.item[i].step < below && all.item[i].step > step)
                step = all.item[i].step;
        *found = step >= 0 && is_complete(out, &all, step, nodes);
    }
    return STATUS_OK;
}

/* ---- restoring from copies ---- */

/* State of a share: a byte each, exchanged between ranks. */
enum { MISSING, ARRIVED, UNKNOWN /* reading or writing failed */ };

/* Copies this process's part of a set to disk: each share that has not arrived, from its `attempt`-th holder. */
static void copy_shares(char *mine, const node_copies *k, const node_set *set, const char *to, int attempt,
                        const char *so_far, char *buffer)
{
    for (int w = 0; w < set->ranks; w++) {
        int node = set->holder[w * set->nodes + attempt], members;
        bool damaged;
        mine[w] = MISSING;
        if (so_far[w] == ARRIVED || node < 0)
            continue;
        (void)node_member(&members, k, node, 0); /* the members of a node share the work */
        if (node_member(&members, k, node, w % members) != k->me)
            continue;
        const fragment_owner owner = {k->id, set->name, w, set->ranks};
        damaged = false;
        status s = lock_check(k->owner);
        if (s == STATUS_OK)
            s = share_copy(&damaged, to, &k->place, &owner, buffer);
        mine[w] = s == STATUS_OK ? ARRIVED : damaged ? MISSING : UNKNOWN;
        if (s != STATUS_OK)
            log_warn("copies in memory: %s", status_message());
    }
}

/* Copies all shares to disk, from their first or second holders. *damaged: some have no holder with an intact copy. */
static status bring_together(bool *damaged, const node_copies *k, const node_set *set, const char *to, char *buffer)
{
    unsigned long count = (unsigned long)set->ranks;
    AUTO_FREE char *so_far = must_calloc(count, 1), *mine = must_calloc(count, 1),
                   *all = must_alloc(count * (unsigned long)k->ranks);
    for (int attempt = 0; attempt < set->nodes; attempt++) {
        copy_shares(mine, k, set, to, attempt, so_far, buffer);
        comm_all_gather_bytes(k->world, all, mine, (int64_t)count);
        for (unsigned long i = 0; i < count * (unsigned long)k->ranks; i++)
            if (all[i] != MISSING && so_far[i % count] != ARRIVED)
                so_far[i % count] = all[i];
    }
    int missing = 0, unknown = 0;
    for (unsigned long i = 0; i < count; i++) {
        missing += so_far[i] == MISSING;
        unknown += so_far[i] == UNKNOWN;
    }
    *damaged = missing > 0;
    if (missing + unknown == 0)
        return STATUS_OK;
    return status_fail(STATUS_FAILED, "%d shares of the copies in memory cannot be used", missing + unknown);
}

static status publish_set(const node_copies *k, const node_set *set, const char *checkpoints, const char *temporary,
                          char *buffer)
{
    json_auto_t *meta = NULL;
    TRY(share_take_meta(&meta, temporary));
    checkpoint_publisher *p = checkpoint_publisher_open(set->ranks, k->id, buffer, k->owner);
    status s = checkpoint_publisher_publish(p, checkpoints, set->name, meta);
    checkpoint_publisher_close(p);
    return s;
}

static status adopt_set(bool *damaged, node_copies *k, const node_set *set, const char *checkpoints)
{
    AUTO(arena) *buffer = NULL;
    AUTO_FREE char *temporary = checkpoint_temporary(checkpoints, set->name);
    *damaged = false;
    status s = comm_all_status(k->world, arena_open(&buffer, BLOCK));
    if (s == STATUS_OK)
        s = comm_all_status(k->world, lock_check(k->owner));
    if (s == STATUS_OK)
        s = comm_all_status(k->world, k->me == 0 ? checkpoint_tidy(checkpoints) : STATUS_OK);
    if (s == STATUS_OK)
        s = bring_together(damaged, k, set, temporary, arena_base(buffer));
    if (s == STATUS_OK && k->me == 0)
        s = publish_set(k, set, checkpoints, temporary, arena_base(buffer));
    s = comm_all_status(k->world, s);
    if (s != STATUS_OK && s != STATUS_LOST && k->me == 0)
        checkpoint_clean(checkpoints, set->name);
    return s;
}

/* Adopts the newest complete set; if the newest has no second copies yet, the previous one may be complete. */
static status adopt_newest(int64_t *step, char **trouble, node_copies *k, const char *checkpoints, int64_t after)
{
    int64_t before = INT64_MAX;
    status s = STATUS_OK;
    for (bool found = true; found && *step < 0 && s == STATUS_OK;) {
        node_set set;
        bool damaged = false;
        s = find_newest(&found, &set, k, after, before);
        if (s == STATUS_OK && found)
            s = adopt_set(&damaged, k, &set, checkpoints);
        if (found && s == STATUS_OK)
            *step = set.step;
        else if (damaged && k->me == 0 && !*trouble)
            *trouble = must_strdup(status_message());
        if (damaged)
            s = STATUS_OK;
        before = set.step;
        free(set.holder);
    }
    return s;
}

bool node_copies_count(const node_copies *k)
{
    return *k->id;
}

status node_copies_adopt(int64_t *step, char **trouble, node_copies *k, const char *checkpoints, int64_t after)
{
    holder whose = NOBODY;
    *step = -1;
    *trouble = NULL;
    if (*k->id)
        TRY(lock_folders(&whose, k));
    if (whose >= ALIVE) {
        log_info("copies in memory: those that %s names are %s, and stay", k->id_file,
                 whose == ALIVE ? "of a run that is alive" : "not this user's");
        return STATUS_OK;
    }
    status s = *k->id ? adopt_newest(step, trouble, k, checkpoints, after) : STATUS_OK;
    if (s != STATUS_OK)
        return status_context(s, "copies in memory, which stay (checkpoint.resume=never, or =FOLDER, does without)");
    if (*step >= 0) {
        free(*trouble);
        *trouble = NULL;
    } else if (*k->id && !*trouble) {
        log_info("copies in memory: none of this run's is newer than its last checkpoint and whole");
    }
    node_copies_forget(k);
    return STATUS_OK;
}
