#include "engine/compile/model/duty.h"

#include "kernels/table/op.h"

static duty_rows all_rows(const storage *s)
{
    return (duty_rows){0, parameter_rows(s->of)};
}

static duty_rows owned_rows(const storage *s)
{
    const parameter *p = s->of;
    return p->vector ? (duty_rows){0, s->own_rows * p->columns} : (duty_rows){s->own_first, s->own_rows};
}

/* Divides rows that all replicas hold and update evenly among them. */
static duty_rows even_rows(const storage *s, axis_group replicas)
{
    const parameter *p = s->of;
    duty_rows r = {0, p->number % replicas.ranks == replicas.rank ? p->columns : 0};
    if (!p->vector)
        shard_rows(&r.first, &r.rows, p->rows, replicas.ranks, replicas.rank);
    return r;
}

/* Returns the rows below the first one that an earlier rank holds too. */
static duty_rows first_copies(const axis_group *groups, const storage *s)
{
    duty_rows r = all_rows(s);
    for (int i = 0; i < s->of->copy_count; i++) {
        const parameter_copies *c = &s->of->copies[i];
        if (groups[c->along].rank > 0 && c->from < r.rows)
            r.rows = c->from;
    }
    return r;
}

duty_rows duty_meet(duty_rows a, duty_rows b)
{
    int64_t first = a.first > b.first ? a.first : b.first;
    int64_t end = a.first + a.rows < b.first + b.rows ? a.first + a.rows : b.first + b.rows;
    return (duty_rows){first, end > first ? end - first : 0};
}

duty_rows duty_of(const axis_group *groups, const storage *s, duty d)
{
    const axis_group replicas = groups[s->of->replicas];
    const duty_rows none = {0, 0}, first = first_copies(groups, s);
    if (s->of->shares >= 0) /* its weight is another parameter's */
        return none;
    switch (d) {
    case DUTY_UPDATE:
        return owned_rows(s);
    case DUTY_ADD:
        return first;
    case DUTY_COUNT:
        return duty_meet(s->divided ? owned_rows(s) : even_rows(s, replicas), first);
    case DUTY_WRITE:
        return s->divided || replicas.rank == 0 ? duty_meet(owned_rows(s), first) : none;
    case DUTY_COMPARE:
        return s->shard_weight || replicas.ranks == 1 ? none : all_rows(s);
    case DUTIES:
        break;
    }
    return none;
}
