/* A plan in words: for a person, for programs, and the program of one rank op by op. */
#pragma once

#include <stdio.h>

#include "engine/compile/plan/plan.h"
#include "engine/files/facts.h"

/* STATUS_USAGE where the plan does not fit the profile's device, with how much is missing, and where. */
status plan_text_verdict(const plan *p);
/* For a person. */
void plan_text_report(FILE *out, const plan *p);
/* The same facts for programs, as members of an object. */
void plan_text_facts(fact_writer *out, const plan *p);
/* The coordinates of `shown` as members of an object: "tensor": 2, "data": 4 */
void plan_text_coordinates(fact_writer *out, const int value[GRID_AXES], unsigned shown);
/* The training program of a rank, one op a line. */
void plan_text_listing(FILE *out, const compiled *c);
