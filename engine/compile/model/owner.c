#include "engine/compile/model/owner.h"

#include "kernels/table/op.h"

static owner_rows owned_rows(const storage *s)
{
    const parameter *p = s->of;
    return p->vector ? (owner_rows){0, s->own_rows * p->columns} : (owner_rows){s->own_first, s->own_rows};
}

owner_rows owner_rows_overlap(owner_rows a, owner_rows b)
{
    int64_t first = a.first > b.first ? a.first : b.first;
    int64_t end = a.first + a.rows < b.first + b.rows ? a.first + a.rows : b.first + b.rows;
    return (owner_rows){first, end > first ? end - first : 0};
}

owner_rows owner_rows_of(const axis_group *groups, const storage *s, owner_role d)
{
    const parameter *p = s->of;
    const axis_group replicas = groups[p->replicas];
    const owner_rows none = {0, 0}, all = {0, parameter_rows(p)};
    owner_rows first = all; /* those below the first one that an earlier rank holds too */
    for (int i = 0; i < p->copy_count; i++)
        if (groups[p->copies[i].along].rank > 0 && p->copies[i].from < first.rows)
            first.rows = p->copies[i].from;
    if (p->shares >= 0) /* its weight is another parameter's */
        return none;
    switch (d) {
    case OWNER_UPDATES:
        return owned_rows(s);
    case OWNER_ADDS:
        return first;
    case OWNER_COUNTS: {
        if (s->divided)
            return owner_rows_overlap(owned_rows(s), first);
        /* replicas that all hold and update the rows share them evenly */
        owner_rows even = {0, p->number % replicas.ranks == replicas.rank ? p->columns : 0};
        if (!p->vector)
            shard_rows(&even.first, &even.rows, p->rows, replicas.ranks, replicas.rank);
        return owner_rows_overlap(even, first);
    }
    case OWNER_WRITES:
        return s->divided || replicas.rank == 0 ? owner_rows_overlap(owned_rows(s), first) : none;
    case OWNER_COMPARES:
        return s->shard_weight || replicas.ranks == 1 ? none : all;
    case OWNER_ROLES:
        break;
    }
    return none;
}
