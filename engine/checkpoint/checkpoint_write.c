/* Saving at once, by all ranks together: shares, then publishing. */
#include <stdlib.h>
#include <string.h>

#include "engine/files/atomic.h"
#include "engine/checkpoint/checkpoint_publisher.h"
#include "memory/log.h"

static status meet(checkpoint_barrier *barrier, void *context, status mine)
{
    return barrier ? barrier(context, mine) : mine;
}

static status prepare(const char *folder)
{
    TRY(atomic_make_folders(folder));
    return checkpoint_tidy(folder);
}

static status publish(const char *folder, const char *name, json_t *meta, int ranks, const char *run, char *buffer)
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
    char *buffer = aligned_alloc(DIRECT_ALIGNMENT, CHECKPOINT_WRITER_BUFFER);
    MUST(buffer, "out of host memory");
    checkpoint_writer *w = checkpoint_writer_open(&(checkpoint_writer_options){.share = *mine, .buffer = buffer});
    status s = meet(barrier, context, first ? prepare(folder) : STATUS_OK);
    if (s == STATUS_OK)
        s = meet(barrier, context, checkpoint_writer_share(w, folder, name));
    if (s == STATUS_OK)
        s = meet(barrier, context, first ? publish(folder, name, meta, mine->ranks, mine->run, buffer) : STATUS_OK);
    if (s != STATUS_OK && first)
        checkpoint_clean(folder, name);
    checkpoint_writer_close(w);
    free(buffer);
    return s == STATUS_OK ? s : status_context(s, "checkpoint %s not saved", name);
}
