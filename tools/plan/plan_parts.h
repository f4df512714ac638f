/* The parts of phalanx plan. Functions named _print write facts for people, and functions named _facts write the same
 * for programs, as members of plan's JSON object. */
#pragma once

#include <stdio.h>

#include "engine/compile/model/compiled.h"
#include "engine/compile/plan/plan.h"
#include "engine/compile/plan/search.h"
#include "engine/config/config.h"
#include "engine/files/facts.h"
#include "tools/options.h"

/* phalanx plan --search: lists the fastest layouts of a configuration in a table. */

/* A run takes some MiB that no plan accounts for: this fraction of a device, 1 / PLAN_SEARCH_FREE, stays free. */
enum { PLAN_SEARCH_FREE = 20 };

typedef struct plan_search_wishes {
    bool json;
    int ranks;
    const char *memory;  /* "80GiB", or NULL: the device's, minus 1 / PLAN_SEARCH_FREE */
    const load_law *law; /* law of --load, or NULL */
    const char *write;   /* output file: the user's configuration with the best layout's keys; or NULL */
    options_said said;
} plan_search_wishes;

/* Returns STATUS_USAGE, and a message with the missing bytes, if no layout fits. */
status plan_search(const config *c, const profile *prices, const op_backend *backend, const plan_search_wishes *w);

/* phalanx plan --data: predicts how balanced the context ranks' work is on a data set. Reads and shards the first
 * global batches of the run as training does, so that each figure equals the run's metric. */

/* Maximum over mean of context ranks' attended tokens: the first data rank's mean over a step's micro-batches. */
typedef struct plan_data_step {
    double zigzag, documents; /* one for each parallel.context_balance; `documents` 0: no mask */
} plan_data_step;

typedef struct plan_data {
    plan_data_step *steps; /* one for each step from step 1 on */
    int count;
    plan_data_step mean, most; /* mean and maximum over the steps */
} plan_data;

/* Predicts the first `batches` steps on data.train of `c`, or all if the run has fewer. STATUS_USAGE if no rank divides
 * samples' tokens, or there is no data. The caller frees the result. */
status plan_data_predict(plan_data *out, const config *c, const compile_options *o, int batches);
void plan_data_free(plan_data *d);
void plan_data_print(FILE *out, const plan_data *d, const config *c);
void plan_data_facts(fact_writer *out, const plan_data *d, const config *c);

/* Ends planning: prints the whole run's time, its disk space, the free memory, and the line that starts it. */
void plan_launch_print(FILE *out, const config *c, const plan *p, const options_said *said);
/* Prints the two lines that start `ranks` ranks, `node_ranks` of them a node; each ends with a newline. */
void plan_launch_lines(FILE *out, const config *c, int ranks, int node_ranks, const options_said *said);
void plan_launch_facts(fact_writer *out, const config *c, const plan *p, const options_said *said);
