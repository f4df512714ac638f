/* Ownership: the only place that decides which rank counts, writes, updates and compares which elements of a parameter.
 * An element may be on several ranks: on all replicas (parameter.replicas), and as copies (parameter.copies). The first
 * rank that holds a copy acts for all copies; the replica that owns the row acts for the replicas, where rows are
 * divided. */
#pragma once

#include "kernels/record/storage.h"

typedef enum owner_role {
    OWNER_UPDATES,  /* keep its optimizer's states and update it: every rank that holds a copy */
    OWNER_ADDS,     /* add it to sums over the ranks that divide the parameter: the first copy, on each replica */
    OWNER_COUNTS,   /* count its gradient in the norm: one rank of the grid */
    OWNER_WRITES,   /* write it to a checkpoint: one rank of the grid */
    OWNER_COMPARES, /* compare the weight with the other replicas', where each has all of it */
    OWNER_ROLES,
} owner_role;

/* Rows of a rank's part of a parameter; of a vector, elements. */
typedef struct owner_rows {
    int64_t first, rows;
} owner_rows;

/* The rows for which the rank of these groups has the owner_role. */
owner_rows owner_rows_of(const axis_group *groups, const storage *s, owner_role d);
/* Intersects rows `a` with `b`. */
owner_rows owner_rows_overlap(owner_rows a, owner_rows b);
