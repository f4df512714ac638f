#include "engine/state/nodes/node_shares.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/checkpoint/share.h"
#include "engine/system/reading.h"
#include "memory/log.h"
#include "memory/scope.h"

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

static status look(list *l, const node_shares_asked *asked, int node)
{
    RELEASED_BY(reading_names_free) reading_names all = {0};
    long long step;
    if (asked->folder)
        TRY(reading_folder(&all, asked->folder));
    for (int i = 0; i < all.count; i++)
        if (sscanf(all.name[i], ".tmp-step-%lld", &step) == 1 && step > asked->after)
            TRY(look_into(l, asked->folder, all.name[i], asked->id, (share_found){.step = step, .node = node}));
    return STATUS_OK;
}

/* Returns all ranks' lists, the same on every rank. */
static list gather(comm_group *world, const list *mine)
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
    int *holder = must_alloc((unsigned long)ranks * (unsigned long)nodes * sizeof *holder);
    for (int i = 0; i < ranks * nodes; i++)
        holder[i] = -1;
    for (int i = 0; i < all->count; i++) {
        const share_found *f = &all->item[i];
        for (int h = 0; f->step == step && f->ranks == ranks && h < nodes; h++)
            if (holder[f->rank * nodes + h] < 0) {
                holder[f->rank * nodes + h] = f->node;
                break;
            }
    }
    missing = ranks == 0;
    for (int i = 0; i < ranks; i++)
        missing += holder[i * nodes] < 0;
    *out = (node_set){.step = step, .ranks = ranks, .nodes = nodes, .holder = holder};
    snprintf(out->name, sizeof out->name, "step-%08lld", (long long)step);
    if (missing == 0)
        return true;
    free(out->holder);
    *out = (node_set){0};
    return false;
}

static void free_list(list *l)
{
    free(l->item);
}

status node_shares_newest(bool *found, node_set *out, comm_group *world, const node_shares_asked *asked)
{
    int me = comm_group_me(world), ranks = comm_group_ranks(world), nodes = 0;
    RELEASED_BY(free_list) list mine = {0}, all = {0};
    *out = (node_set){0};
    *found = false;
    TRY(comm_all_status(world, look(&mine, asked, asked->node[me])));
    all = gather(world, &mine);
    for (int i = 0; i < ranks; i++)
        nodes += asked->node[i] == i;
    for (int64_t below = asked->before, step = 0; step >= 0 && !*found; below = step) {
        step = -1;
        for (int i = 0; i < all.count; i++)
            if (all.item[i].step < below && all.item[i].step > step)
                step = all.item[i].step;
        *found = step >= 0 && is_complete(out, &all, step, nodes);
    }
    return STATUS_OK;
}

int node_set_holder(const node_set *s, int writer, int attempt)
{
    return attempt < s->nodes ? s->holder[writer * s->nodes + attempt] : -1;
}
