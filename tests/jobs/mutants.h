/* Ways to be wrong: what tests/jobs/rank_mutants.c can do to a run, and the layout in which it is done. The parity test
 * must notice every one of them. */
#pragma once

#include "tests/jobs/layouts.h"

typedef struct mutants_row {
    const char *name;
    layouts_row layout;
    const char *refused; /* words of the incident that ends the run before its first step; NULL: it trains */
} mutants_row;

int mutants_count(void);
const mutants_row *mutants_at(int index);
