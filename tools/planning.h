/* What plan, timeline and report plan a configuration for: one source, so that their figures are the same.
 *
 * Prices are those of the device that the run took or the configuration names; a rank's threads, the backend and
 * whether it evaluates decide its bytes.
 */
#pragma once

#include "engine/compile/model/compiled.h"
#include "engine/compile/plan/load.h"
#include "engine/compile/plan/plan.h"
#include "engine/compile/time/profile.h"
#include "engine/config/config.h"
#include "engine/files/facts.h"

enum { PLANNING_WORD = 32 };

/* What a run's folder says of its latest start. */
typedef struct planning_run {
    int ranks;                  /* 0: not known */
    char device[PLANNING_WORD]; /* a profile's name, as h100; "": not known */
} planning_run;

/* Reads events.jsonl, and summary.json where a run is older than that its events say it. */
planning_run planning_run_of(const char *folder);
/* The name of the prices: the run's device (`run` may be NULL), else cpu where train.device says so, else h100. */
const char *planning_device(const config *c, const planning_run *run);
/* Whose working memory is planned; NULL: CUDA's, whose shared object is not there. */
const op_backend *planning_backend(const config *c, const planning_run *run);
/* Options of rank 0 of `g`, whose nodes have `node_ranks` ranks. STATUS_USAGE as compile_options_from(). */
status planning_options(compile_options *out, const config *c, const grid *g, const planning_run *run, int node_ranks);
/* What a GPU holds beside the arena: measured by a run in this folder, else assumed. */
status planning_reserve(reserve *out, const char *folder);

/* What a plan says of a load of experts (engine/compile/plan/load.h): --load of plan and timeline. */

/* The options' help. */
#define PLANNING_LOAD_HELP                                                                                             \
    "how tokens choose experts: balanced, lognormal:SIGMA, or a run's loads.jsonl; else all experts get the same"

typedef struct planning_load {
    load_law law;
    load_outcome of;
} planning_load;

/* What --load `text` makes of these options; `prices` are then those of its slowest rank. */
status planning_load_open(planning_load *out, profile *prices, const char *text, const compile_options *o);
void planning_load_close(planning_load *l);
void planning_load_print(FILE *out, const planning_load *l, const plan *p);
void planning_load_facts(fact_writer *out, const planning_load *l, const plan *p);
