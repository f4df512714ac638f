/* phalanx plan --search: the fastest layouts of a configuration, as a table. */
#ifndef PHALANX_TOOLS_PLAN_PLAN_SEARCH_H
#define PHALANX_TOOLS_PLAN_PLAN_SEARCH_H

#include "engine/compile/plan/search.h"

typedef struct plan_search_wishes {
    bool json;
    int ranks;
    const char *memory;  /* "80GiB", or NULL: the device's */
    const load_law *law; /* of --load, or NULL */
    const char *write;   /* the best, as a configuration; or NULL */
} plan_search_wishes;

/* STATUS_USAGE, and a message that says by how much, where nothing fits. */
status plan_search(const config *c, const profile *prices, const op_backend *backend, const plan_search_wishes *w);

#endif
