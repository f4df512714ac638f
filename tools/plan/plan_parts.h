/* The parts of phalanx plan. Functions named _print say to people what those named _facts say to programs, as members
 * of plan's JSON object. */
#pragma once

#include <stdio.h>

#include "engine/compile/model/compiled.h"
#include "engine/compile/plan/plan.h"
#include "engine/compile/plan/search.h"
#include "engine/config/config.h"
#include "engine/files/facts.h"
#include "tools/options.h"

/* phalanx plan --search: the fastest layouts of a configuration, as a table. */

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

/* phalanx plan --data: how equal the work of the ranks that divide samples' tokens will be on a data set. The first
 * global batches of the run are read and dealt as training does, so that each figure is that of the run's metrics. */

/* The most that a context rank attends to over the mean, the mean of the first data rank's micro-batches of a step. */
typedef struct plan_data_step {
    double halves, documents; /* as each parallel.context_balance deals; `documents` 0: documents are not masked */
} plan_data_step;

typedef struct plan_data {
    plan_data_step *steps; /* from step 1 on */
    int count;
    plan_data_step mean, most; /* over them */
} plan_data;

/* The first `batches` steps on data.train of `c`, or all if the run has fewer. STATUS_USAGE where nobody divides
 * samples' tokens, or there is no data. The caller frees it. */
status plan_data_predict(plan_data *out, const config *c, const compile_options *o, int batches);
void plan_data_free(plan_data *d);
void plan_data_print(FILE *out, const plan_data *d, const config *c);
void plan_data_facts(fact_writer *out, const plan_data *d, const config *c);

/* The last step of planning: how long the whole run takes, what it leaves on disk, what is free, and the line that
 * starts it. */
void plan_launch_print(FILE *out, const config *c, const plan *p, const options_said *said);
/* The two lines that start `ranks` ranks, `node_ranks` of them a node; each ends with a line's end. */
void plan_launch_lines(FILE *out, const config *c, int ranks, int node_ranks, const options_said *said);
void plan_launch_facts(fact_writer *out, const config *c, const plan *p, const options_said *said);
