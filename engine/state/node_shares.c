#include "engine/state/node_shares.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/checkpoint/share.h"
#include "memory/log.h"

/* One share on one node. */
typedef struct found {
    int64_t step;
    int rank, ranks, node;
} found;

typedef struct list {
    found *item;
    int count;
} list;

static void add(list *l, const found *f)
{
    l->item = must_realloc(l->item, (unsigned long)(l->count + 1) * sizeof *l->item);
    l->item[l->count++] = *f;
}

static void look_into(list *l, const char *folder, const char *name, const char *id, found as)
{
    char *path = must_format("%s/%s", folder, name), run[MANIFEST_RUN];
    DIR *files = opendir(path);
    fragment_owner owner;
    for (struct dirent *e = files ? readdir(files) : NULL; e; e = readdir(files))
        if (share_owner(&owner, run, path, e->d_name) && strcmp(run, id) == 0) {
            as.rank = owner.rank;
            as.ranks = owner.ranks;
            add(l, &as);
        }
    if (files)
        closedir(files);
    free(path);
}

static list look(const char *folder, const char *id, int64_t after, int node)
{
    list l = {0};
    DIR *all = folder ? opendir(folder) : NULL;
    for (struct dirent *e = all ? readdir(all) : NULL; e; e = readdir(all)) {
        long long step;
        if (sscanf(e->d_name, ".tmp-step-%lld", &step) == 1 && step > after)
            look_into(&l, folder, e->d_name, id, (found){.step = step, .node = node});
    }
    if (all)
        closedir(all);
    return l;
}

/* Everybody's, the same on all ranks. */
static list gather(comm_group *world, const list *mine)
{
    int ranks = comm_group_ranks(world), most = 0, *counts = must_alloc((unsigned long)ranks * sizeof *counts);
    list all = {0};
    comm_all_gather_bytes(world, counts, &mine->count, sizeof mine->count);
    for (int i = 0; i < ranks; i++)
        most = counts[i] > most ? counts[i] : most;
    if (most > 0) {
        found *padded = must_calloc((unsigned long)most, sizeof *padded),
              *items = must_alloc((unsigned long)most * (unsigned long)ranks * sizeof *items);
        if (mine->count > 0)
            memcpy(padded, mine->item, (size_t)mine->count * sizeof *padded);
        comm_all_gather_bytes(world, items, padded, most * (int64_t)sizeof *padded);
        for (int i = 0; i < ranks; i++)
            for (int j = 0; j < counts[i]; j++)
                add(&all, &items[i * most + j]);
        free(items);
        free(padded);
    }
    free(counts);
    return all;
}

/* Is every share of this step somewhere? */
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
        const found *f = &all->item[i];
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

bool node_shares_newest(node_set *out, comm_group *world, const int *node, const char *folder, const char *id,
                        int64_t after, int64_t before)
{
    int me = comm_group_me(world), ranks = comm_group_ranks(world), nodes = 0;
    list mine = look(folder, id, after, node[me]), all = gather(world, &mine);
    bool complete = false;
    *out = (node_set){0};
    for (int i = 0; i < ranks; i++)
        nodes += node[i] == i;
    for (int64_t below = before, step = 0; step >= 0 && !complete; below = step) {
        step = -1;
        for (int i = 0; i < all.count; i++)
            if (all.item[i].step < below && all.item[i].step > step)
                step = all.item[i].step;
        complete = step >= 0 && is_complete(out, &all, step, nodes);
    }
    free(all.item);
    free(mine.item);
    return complete;
}

int node_set_holder(const node_set *s, int writer, int attempt)
{
    return attempt < s->nodes ? s->holder[writer * s->nodes + attempt] : -1;
}
