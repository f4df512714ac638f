/* Which rank counts, writes, updates and compares which elements of a parameter: nobody else decides it.
 *
 * An element may be on several ranks: on all replicas (parameter.replicas), and as copies (parameter.copies). Of copies
 * the first rank that holds them acts for all; among replicas it is the one that owns the row, where rows are divided.
 */
#pragma once

#include "kernels/record/storage.h"

typedef enum duty {
    DUTY_UPDATE, /* keep its optimizer's states and update it: every rank that holds a copy */
    DUTY_ADD,   /* add it to what is summed over the ranks that divide the parameter: the first copy, on each replica */
    DUTY_COUNT, /* count its gradient in the norm: one rank of the grid */
    DUTY_WRITE, /* write it to a checkpoint: one rank of the grid */
    DUTY_COMPARE, /* compare the weight with the other replicas', where each has all of it */
    DUTIES,
} duty;

/* Rows of a rank's part of a parameter; of a vector, elements. */
typedef struct duty_rows {
    int64_t first, rows;
} duty_rows;

/* Those for which the rank of these groups has the duty. */
duty_rows duty_of(const axis_group *groups, const storage *s, duty d);
/* Of rows `a`, those among `b`. */
duty_rows duty_meet(duty_rows a, duty_rows b);
