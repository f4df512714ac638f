/* What a run's summary says, held against the programs of the same configuration compiled by the test itself. */
#pragma once

#include <stdbool.h>

typedef struct plans_verdict {
    bool wrong;
    char what[256]; /* the first thing that is wrong */
    double ratio;   /* the largest transient arena of a rank over its lower bound */
    int dropped;    /* under memory.budget: the most ops of a rank whose outputs are made again */
} plans_verdict;

/* Of the run in `folder` (its config.yaml and summary.json): on each of `ranks` ranks, arena and highest used byte, and
 * the bytes and messages sent along each axis in `steps` steps; each collective's traffic is the theoretical
 * minimum. */
plans_verdict plans_compare(const char *folder, int ranks, int steps);
