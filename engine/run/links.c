#include "engine/run/links.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/compile/step/compile_schedule.h"
#include "engine/compile/time/blocks.h"
#include "memory/log.h"

/* Has an earlier row of the same axis as many? */
static bool is_repeated(const groups *asked, int row)
{
    const groups_row *r = &asked->row[row];
    for (int i = 0; i < row; i++)
        if (asked->row[i].a == r->a && asked->row[i].use.blocks == r->use.blocks)
            return true;
    return false;
}

/* How many blocks the library's kernels may have, by the prices of the device that the programs are for. */
static void choose_blocks(groups *asked, const compiled *c)
{
    char text[200] = "";
    size_t used = 0;
    const profile prices = profile_compiled_for(&c->options);
    schedule steps;
    bool made = c->training.list.count > 0 && c->options.grid.size[GRID_PIPELINE] > 1 &&
                compile_schedule(&steps, &c->options, c->options.microbatches) == STATUS_OK;
    blocks_choose(asked, &prices, &c->options.grid, &c->training.list, made ? &steps : NULL, NULL);
    if (made)
        schedule_free(&steps);
    for (int i = 0; i < asked->count; i++) {
        const groups_row *r = &asked->row[i];
        if (r->use.blocks > 0 && !is_repeated(asked, i) && used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %d", used ? ", " : "", axis_name(r->a),
                                     r->use.blocks);
    }
    if (used)
        log_info("  blocks      of communication, at most: %s (of %d multiprocessors)", text, prices.processors);
}

status links_open(links *out, const compiled *c, comm *world, const struct comm_backend *backend, bool varies)
{
    groups_find(&out->asked, c);
    if (backend)
        choose_blocks(&out->asked, c);
    out->group = must_calloc((unsigned long)out->asked.count + 1, sizeof(comm_group *));
    for (int i = 0; i < out->asked.count; i++) {
        const groups_row *r = &out->asked.row[i];
        comm_group_options o = {.backend = backend, .use = r->use, .like = r->like < 0 ? NULL : out->group[r->like]};
        o.use.varies = varies;
        TRY(comm_group_open_on(&out->group[i], world, r->members, r->count, &o));
    }
    return STATUS_OK;
}

void links_close(links *l)
{
    for (int i = 0; l->group && i < l->asked.count; i++)
        comm_group_close(l->group[i]);
    free(l->group);
    groups_free(&l->asked);
    *l = (links){0};
}

comm_group *links_of(const links *l, const op *o, int me)
{
    int row = groups_of(&l->asked, o, me);
    MUST(row >= 0, "%s: no group along the %s axis", o->label, axis_name((axis)o->at.axis));
    return l->group[row];
}

status links_poll(bool *heard, const links *l)
{
    for (int i = 0; i < l->asked.count; i++)
        TRY(comm_group_poll(heard, l->group[i]));
    return STATUS_OK;
}

void links_sent(int64_t *bytes, int64_t *messages, const links *l, axis a)
{
    *bytes = *messages = 0;
    for (int i = 0; i < l->asked.count; i++)
        if (l->asked.row[i].a == a) {
            *bytes += comm_bytes_sent(l->group[i]);
            *messages += comm_messages_sent(l->group[i]);
        }
}
