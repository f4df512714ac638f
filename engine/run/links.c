#include "engine/run/links.h"

#include <stdlib.h>

#include "memory/log.h"

status links_open(links *out, const compiled *c, comm *world, const struct comm_backend *backend, bool varies)
{
    groups_find(&out->asked, c);
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
