/* One op of a backend tried with all its cases (op_cases.h): in every type, plain, with gaps between rows, and in
 * place.
 *
 * The caller says how, before; a case that fails is printed and counted. */
#pragma once

#include "tests/oracle/op_case.h"

typedef struct op_sweep {
    const op_backend *backend;
    bool gaps;                                     /* it takes operands with gaps between their rows */
    int (*threads)(const op_case *c, int variant); /* NULL: one */
    bool (*wants)(op *o);                          /* is the op, laid out, to be tried? NULL: every one */
    int shares, share;                             /* of `shares` equal shares of the cases this one; 0: all cases */
    int seen;                                      /* cases so far, tried or another's */
    int plain, strided, in_place;                  /* cases tried */
    int failed;
    double worst; /* error in units of the tolerance */
} op_sweep;

/* Returns the number of cases tried. */
int op_sweep_run(op_sweep *s, op_kind kind);

/* A case ready to run; false when there are no more. */
bool op_sweep_case(op_case *c, op_kind kind, dtype type, int variant);
/* Communication has none: it is played, and tested, by the communication backends. */
bool op_sweep_has_kernel(op_kind kind);
bool op_sweep_among(const op_kind *list, size_t count, op_kind kind);
