/* phalanx plan --search: the fastest layouts of a configuration, as a table. */
#pragma once

#include "engine/compile/plan/search.h"
#include "tools/options.h"

/* A run takes some MiB that no plan knows of: what is left free of a device, one part in so many. */
enum { PLAN_SEARCH_FREE = 20 };

typedef struct plan_search_wishes {
    bool json;
    int ranks;
    const char *memory;  /* "80GiB", or NULL: the device's, less PLAN_SEARCH_FREE of it */
    const load_law *law; /* of --load, or NULL */
    const char *write;   /* the user's configuration with the best layout's keys; or NULL */
    options_said said;
} plan_search_wishes;

/* STATUS_USAGE, and a message that says by how much, where nothing fits. */
status plan_search(const config *c, const profile *prices, const op_backend *backend, const plan_search_wishes *w);
