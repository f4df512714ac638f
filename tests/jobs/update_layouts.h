/* Layouts in which the optimizer's update is divided differently. Rows of one letter must leave the same bits. */
#pragma once

#include <stdbool.h>

static const struct {
    int ranks;
    const char *keys;
    char group;
} LAYOUTS[] = {
    {1, "", 'a'},
    {1, "memory.recompute=full", 'a'},
    {2, "parallel.tensor=2", 0},
    {2, "parallel.pipeline=2", 'b'},
    {2, "parallel.pipeline=2 parallel.schedule=gpipe", 'b'},
    {2, "parallel.pipeline=2 parallel.schedule=zb-h1 memory.recompute=selective", 'b'},
    {2, "parallel.zero=0", 'c'},
    {2, "parallel.zero=1", 'c'},
    {2, "parallel.zero=2 parallel.zero_reduce=micro_batch", 'd'},
    {2, "parallel.zero=3 parallel.zero_reduce=micro_batch parallel.zero_gather=micro_batch", 'd'},
    {2, "parallel.zero=3", 'c'},
    {4, "parallel.tensor=2 parallel.zero=1", 'e'},
    {4, "parallel.tensor=2 parallel.zero=0 memory.recompute=full", 'e'},
    {4, "parallel.tensor=4", 0}, /* the llama's key/value heads are held twice */
};

enum { NLAYOUTS = sizeof LAYOUTS / sizeof *LAYOUTS, MOST_RANKS = 4, UPDATE_LAYOUTS_RUNS = 16 };

/* The first layout of a layout's group; itself where it has none. */
int update_layouts_first(int layout);

/* takes[layout * count + run]: the run is trained in the layout in this process's ring (tests/cover.h). The layouts of
 * a group go together, to be compared. `runs`: what is particular about each run, in words, at most
 * UPDATE_LAYOUTS_RUNS. */
void update_layouts_take(bool *takes, const char *const *runs, int count);
