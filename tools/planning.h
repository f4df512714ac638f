/* Options, device prices and reserved bytes for plan, timeline and report, so that their figures agree. A rank's bytes
 * depend on its threads, on the backend and on whether it evaluates. */
#pragma once

#include "engine/compile/model/compiled.h"
#include "engine/compile/plan/load.h"
#include "engine/compile/plan/plan.h"
#include "engine/compile/time/profile.h"
#include "engine/config/config.h"
#include "engine/files/facts.h"

enum { PLANNING_WORD = 32 };

/* Facts that a run's folder records about its latest start. */
typedef struct planning_run {
    int ranks;                  /* 0: not known */
    char device[PLANNING_WORD]; /* a profile's name, as h100; "": not known */
} planning_run;

/* Reads events.jsonl, and summary.json for a run older than such events. */
planning_run planning_read_run(const char *folder);
/* Returns the profile's name: the run's device (`run` may be NULL), else cpu if train.device is cpu, else h100. */
const char *planning_device(const config *c, const planning_run *run);
/* Returns the backend that plans working memory; NULL: CUDA's, if its shared object is absent. */
const op_backend *planning_backend(const config *c, const planning_run *run);
/* Sets options of rank 0 of `g`, on nodes of `node_ranks` ranks. Fails as compile_options_from(): STATUS_USAGE. */
status planning_options(compile_options *out, const config *c, const grid *g, const planning_run *run, int node_ranks);
/* Sets the bytes that a GPU holds beside the arena: measured by a run in this folder, else assumed. */
status planning_reserve(reserve *out, const char *folder);

/* A plan's figures for a load of experts (engine/compile/plan/load.h): --load of plan and timeline. */

#define PLANNING_LOAD_HELP                                                                                             \
    "how tokens choose experts: balanced, lognormal:SIGMA, or a run's loads.jsonl; else all experts get the same"

typedef struct planning_load {
    load_law law;
    load_outcome of;
} planning_load;

/* Applies --load `text` to these options, and changes `prices` to the prices of its slowest rank. */
status planning_load_open(planning_load *out, profile *prices, const char *text, const compile_options *o);
void planning_load_close(planning_load *l);
void planning_load_print(FILE *out, const planning_load *l, const plan *p);
void planning_load_facts(fact_writer *out, const planning_load *l, const plan *p);
