/* Which schedule a step has: the configured one, made, or with SCHEDULE_AUTO the one that was found
 * (compile_find.h). */
#pragma once

#include "engine/compile/model/compiled.h"
#include "parallel/schedule/simulate.h"

/* A copy of o->found where that is it; with SCHEDULE_AUTO it must be. */
status compile_schedule(schedule *out, const compile_options *o, int microbatches);
/* Likewise of a kind with a name, which the layout allows; with the vocabulary's work in it where that is divided. */
status compile_schedule_named(schedule *out, const compile_options *o, schedule_kind kind, int microbatches);
/* What the actions of `s` cost, in forward passes of a layer, by FLOPs: the schedule must be the same whatever it runs
 * on. By global chunk, with those of a divided vocabulary, whether `s` has them yet or not; the caller frees it. *hop:
 * of a message. */
simulate_cost *compile_schedule_costs(double *hop, const compile_options *o, const schedule *s);
/* `s`, of layers alone, becomes one with the vocabulary's work, with such costs. */
void compile_schedule_share(schedule *s, const compile_options *o, const simulate_cost *costs, double hop);
/* Are the weights' gradients actions of their own? */
bool compile_schedule_splits(const compile_options *o);
