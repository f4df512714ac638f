/* Ownership: the only place that decides which rank counts, writes, updates and compares which elements of a parameter.
 * An element may be on several ranks: on all replicas (parameter.replicas), and as copies (parameter.copies). The first
 * rank that holds a copy acts for all copies; the replica that owns the row acts for the replicas, where rows are
 * divided. */
#pragma once

#include "kernels/record/storage.h"

typedef enum duty {
    DUTY_UPDATE,  /* keep its optimizer's states and update it: every rank that holds a copy */
    DUTY_ADD,     /* add it to sums over the ranks that divide the parameter: the first copy, on each replica */
    DUTY_COUNT,   /* count its gradient in the norm: one rank of the grid */
    DUTY_WRITE,   /* write it to a checkpoint: one rank of the grid */
    DUTY_COMPARE, /* compare the weight with the other replicas', where each has all of it */
    DUTIES,
} duty;

/* Rows of a rank's part of a parameter; of a vector, elements. */
typedef struct duty_rows {
    int64_t first, rows;
} duty_rows;

/* The rows for which the rank of these groups has the duty. */
duty_rows duty_of(const axis_group *groups, const storage *s, duty d);
/* Intersects rows `a` with `b`. */
duty_rows duty_meet(duty_rows a, duty_rows b);
