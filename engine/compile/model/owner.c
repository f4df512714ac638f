#include "engine/compile/model/owner.h"

#include "kernels/table/op.h"

static owner_rows all_rows(const storage *s)
{
    return (owner_rows){0, parameter_rows(s->of)};
}

static owner_rows owned_rows(const storage *s)
{
    const parameter *p = s->of;
    return p->vector ? (owner_rows){0, s->own_rows * p->columns} : (owner_rows){s->own_first, s->own_rows};
}

/* Divides rows that all replicas hold and update evenly among them. */
static owner_rows even_rows(const storage *s, axis_group replicas)
{
    const parameter *p = s->of;
    owner_rows r = {0, p->number % replicas.ranks == replicas.rank ? p->columns : 0};
    if (!p->vector)
        shard_rows(&r.first, &r.rows, p->rows, replicas.ranks, replicas.rank);
    return r;
}

/* Returns the rows below the first one that an earlier rank holds too. */
static owner_rows first_copies(const axis_group *groups, const storage *s)
{
    owner_rows r = all_rows(s);
    for (int i = 0; i < s->of->copy_count; i++) {
        const parameter_copies *c = &s->of->copies[i];
        if (groups[c->along].rank > 0 && c->from < r.rows)
            r.rows = c->from;
    }
    return r;
}

owner_rows owner_rows_overlap(owner_rows a, owner_rows b)
{
    int64_t first = a.first > b.first ? a.first : b.first;
    int64_t end = a.first + a.rows < b.first + b.rows ? a.first + a.rows : b.first + b.rows;
    return (owner_rows){first, end > first ? end - first : 0};
}

owner_rows owner_rows_of(const axis_group *groups, const storage *s, owner_role d)
{
    const axis_group replicas = groups[s->of->replicas];
    const owner_rows none = {0, 0}, first = first_copies(groups, s);
    if (s->of->shares >= 0) /* its weight is another parameter's */
        return none;
    switch (d) {
    case OWNER_UPDATES:
        return owned_rows(s);
    case OWNER_ADDS:
        return first;
    case OWNER_COUNTS:
        return owner_rows_overlap(s->divided ? owned_rows(s) : even_rows(s, replicas), first);
    case OWNER_WRITES:
        return s->divided || replicas.rank == 0 ? owner_rows_overlap(owned_rows(s), first) : none;
    case OWNER_COMPARES:
        return s->shard_weight || replicas.ranks == 1 ? none : all_rows(s);
    case OWNER_ROLES:
        break;
    }
    return none;
}
