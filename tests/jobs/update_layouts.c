#include "tests/jobs/update_layouts.h"

#include <stdlib.h>

#include "memory/log.h"
#include "tests/cover.h"

int update_layouts_first(int layout)
{
    int first = 0;
    while (first < layout && (!LAYOUTS[layout].group || LAYOUTS[first].group != LAYOUTS[layout].group))
        first++;
    return first;
}

/* The words of all layouts of a group, and of a run. */
static char *facts_of(int first, const char *run)
{
    char *text = must_strdup(run);
    for (int i = first; i < NLAYOUTS; i++) {
        if (update_layouts_first(i) != first)
            continue;
        char *more = must_format("%s ranks=%d %s", text, LAYOUTS[i].ranks, LAYOUTS[i].keys);
        free(text);
        text = more;
    }
    return text;
}

void update_layouts_take(bool *takes, const char *const *runs, int count)
{
    char *facts[NLAYOUTS * UPDATE_LAYOUTS_RUNS];
    bool units[NLAYOUTS * UPDATE_LAYOUTS_RUNS];
    int of[NLAYOUTS], rows = 0;
    MUST(count <= UPDATE_LAYOUTS_RUNS, "%d runs", count);
    for (int i = 0; i < NLAYOUTS; i++) {
        int first = update_layouts_first(i);
        of[i] = first == i ? rows : of[first];
        for (int run = 0; first == i && run < count; run++)
            facts[rows++] = facts_of(i, runs[run]);
    }
    cover_take(units, (const char *const *)facts, rows, 3);
    for (int i = 0; i < NLAYOUTS * count; i++)
        takes[i] = units[of[i / count] + i % count];
    for (int i = 0; i < rows; i++)
        free(facts[i]);
}
