/* Searches a configuration's layouts that fit on a number of ranks for the fastest.
 *
 * All layouts are estimated (search_estimate.h): tensor and pipeline ranks, virtual stages, schedule, ZeRO,
 * micro-batch, sequence parallelism, recompute or a budget. From the best estimate on they are compiled and played
 * exactly, several at a time in threads, until no other can be better within the estimates' error, or `most` have been.
 * A layout that does not fit is tried again with a budget, and one that would keep every activation is at once: the
 * order holds bytes unknown to estimates. At last schedules are found (compile_find()) for a few of the best layouts
 * with several stages; it takes too long for all. The same search gives the same answer, whatever the threads. */
#pragma once

#include "engine/compile/plan/load.h"
#include "engine/compile/plan/plan.h"
#include "engine/compile/plan/search_estimate.h"

typedef struct search_result {
    search_layout layout;
    bool fits;
    double seconds, mfu, bubble; /* replays count under a load, priced as in the first bucket */
    double replays;              /* per step */
    double compute;              /* mean seconds over the ranks */
    double exposed[AXIS_COUNT];
    int64_t arena, beside; /* bytes of the rank that needs most */
} search_result;

typedef struct search_terms {
    const config *config; /* gives the values that are not searched */
    int ranks;
    const profile *prices;
    int64_t memory;            /* bytes of a device, arena and the rest */
    const op_backend *backend; /* its working memory counts; or NULL */
    const load_law *law;       /* how tokens choose experts, or NULL: all alike */
    int most;                  /* exact programs; 0: from SEARCH_LEAST to SEARCH_MOST, as many as SEARCH_WORK allows */
    /* `done` of at most `all` exact programs, and the best so far, or NULL; may be NULL */
    void (*progress)(void *context, int done, int all, const search_result *best);
    void *context;
} search_terms;

/* Programs of small models are compiled at once, and more of them are tried. SEARCH_WORK: layers x micro-batches in
 * all. One in SEARCH_FOUND, two at least, has a schedule that is found. */
enum { SEARCH_LEAST = 8, SEARCH_MOST = 45, SEARCH_WORK = 22500, SEARCH_FOUND = 8 };

typedef struct search {
    int layouts, within;    /* estimated layouts; of them, layouts that may fit */
    int exact;              /* programs compiled */
    search_result *results; /* layouts that fit, fastest first */
    int count;
    search_result least; /* if none fits: the one that needs least */
} search;

/* STATUS_OK also if no layout fits. */
status search_run(search *out, const search_terms *terms);
/* All layouts, in the order in which they are numbered; the caller frees the list. */
int search_all(search_layout **out, const search_terms *terms);
/* One of them, compiled and played. */
status search_exact(search_result *out, const search_terms *terms, const search_layout *l);
/* memory.budget of such a layout. */
int64_t search_budget(const search_terms *terms, const search_layout *l);
void search_free(search *s);
