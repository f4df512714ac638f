/* What a program's actions, and the optimizer's update, cost by themselves. How long a step takes follows from
 * timing.h. */
#pragma once

#include "engine/compile/model/compiled.h"
#include "engine/compile/time/profile.h"
#include "parallel/schedule/simulate.h"

/* Of a compiled training program: the mean cost of each chunk's actions, [unroll_bodies()], in seconds. What ranks of a
 * layer exchange is waited for; weights and gradients travel while the action computes. */
void plan_price_chunks(simulate_cost *costs, const profile *h, const compiled *c);
/* The longest of its messages to another stage. */
double plan_price_hop(const profile *h, const compiled *c);
/* What the optimizer's update itself asks of a compiled rank in a step, after the norm of the gradients is known. */
typedef struct plan_update {
    double flops, seconds;
    int64_t sent;    /* bytes, along the tensor axis */
    int64_t working; /* bytes of transient tensors where most are alive */
} plan_update;
plan_update plan_price_update(const profile *h, const compiled *c);
