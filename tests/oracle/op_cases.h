/* What every op is tried with: one generator a row of the op table, so that a row without one is an error when the
 * tests are linked. */
#pragma once

#include "tests/oracle/op_case.h"

/* Build variant `variant` for compute type c->type; false when there are no more. */
typedef bool (*op_cases_generator)(op_case *c, int variant);

#define OP(name, ...) bool op_cases_##name(op_case *c, int variant);
#include "kernels/table/ops.def"

extern const op_cases_generator op_cases_table[OP_COUNT];
