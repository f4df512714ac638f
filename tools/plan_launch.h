/* The last step of planning: how long the whole run takes, what it leaves on disk, what is free, and the line that
 * starts it. */
#pragma once

#include <stdio.h>

#include "engine/compile/plan/plan.h"
#include "engine/files/facts.h"
#include "tools/options.h"

void plan_launch_print(FILE *out, const config *c, const plan *p, const options_said *said);
/* The two lines that start `ranks` ranks, `node_ranks` of them a node; each ends with a line's end. */
void plan_launch_lines(FILE *out, const config *c, int ranks, int node_ranks, const options_said *said);
void plan_launch_facts(fact_writer *out, const config *c, const plan *p, const options_said *said);
