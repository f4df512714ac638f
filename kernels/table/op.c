#include "kernels/table/op.h"

#include <stdio.h>

const char *op_text(char *out, int bytes, const op *o)
{
    snprintf(out, (size_t)bytes, "%s: %s", o->label ? o->label : "-", op_row_of(o)->name);
    return out;
}

void shard_rows(int64_t *first, int64_t *count, int64_t rows, int ranks, int rank)
{
    int64_t each = rows / ranks, more = rows % ranks;
    *count = each + (rank < more);
    *first = each * rank + (rank < more ? rank : more);
}

int shard_owner(int64_t *within, int64_t rows, int ranks, int64_t row)
{
    int64_t each = rows / ranks, more = rows % ranks, wide = more * (each + 1);
    if (row < wide) {
        *within = row % (each + 1);
        return (int)(row / (each + 1));
    }
    *within = (row - wide) % each;
    return (int)(more + (row - wide) / each);
}

op_where op_along(const axis_group groups[AXIS_COUNT], axis a)
{
    return (op_where){.axis = (uint8_t)a,
                      .group_size = groups[a].ranks,
                      .group_rank = groups[a].rank,
                      .owner = -1,
                      .slots = groups[a].slots};
}
