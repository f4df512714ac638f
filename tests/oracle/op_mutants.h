/* Kernels of the host that are wrong in one way, each of which tests/oracle/test_ops.c must notice, beside its own. */
#pragma once

#include "kernels/table/op.h"

typedef struct op_mutant {
    const char *name; /* NULL: the list ends */
    op_kind kind;
    op_kernel kernel;
} op_mutant;

extern const op_mutant OP_MUTANTS[];
