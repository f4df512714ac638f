/* phalanx plan --data: how equal the work of the ranks that divide samples' tokens will be on a data set. The first
 * global batches of the run are read and dealt as training does, so that each figure is that of the run's metrics. */
#pragma once

#include "engine/compile/model/compiled.h"
#include "engine/config/config.h"
#include "engine/files/facts.h"

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
