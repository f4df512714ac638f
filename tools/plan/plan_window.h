/* What context ranks send in vain where layers have a sliding window: every key goes to every rank, also to those none
 * of whose queries are near enough to see it, and so does its gradient back. */
#pragma once

#include <stdio.h>

#include "engine/compile/plan/plan.h"
#include "engine/files/facts.h"

typedef struct plan_window {
    int rank;             /* of those that are listed, the one that sends most */
    int64_t sent, unseen; /* bytes along context in a step, by layers that have a window; of these, those in vain */
} plan_window;

/* Documents that are masked make more of it unseen: here each sample is one. False: there are no such layers, or nobody
 * divides samples' tokens. `unseen` is the mean over the context ranks. */
bool plan_window_measure(plan_window *out, const plan *p);
void plan_window_print(FILE *out, const plan_window *w, const plan *p);
void plan_window_facts(fact_writer *out, const plan_window *w, const plan *p);
