/* What a plan says of a load of experts (engine/compile/plan/load.h): --load of plan and timeline. */
#pragma once

#include "engine/compile/plan/load.h"
#include "engine/compile/plan/plan.h"
#include "engine/files/facts.h"

/* The options' help. */
#define PLAN_LOAD_HELP                                                                                                 \
    "how tokens choose experts: balanced, lognormal:SIGMA, or a run's loads.jsonl; else all experts get the same"

typedef struct plan_load {
    load_law law;
    load_outcome of;
} plan_load;

/* What --load `text` makes of these options; `prices` are then those of its slowest rank. */
status plan_load_open(plan_load *out, profile *prices, const char *text, const compile_options *o);
void plan_load_close(plan_load *l);
void plan_load_print(FILE *out, const plan_load *l, const plan *p);
void plan_load_facts(fact_writer *out, const plan_load *l, const plan *p);
