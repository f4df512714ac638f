/* A bench for single ops of the float64 oracle: operands, the op, one run. */
#pragma once

#include "tests/oracle/reference_program.h"

typedef struct bench {
    op o;
    tensor t[OP_MAX_IN + OP_MAX_OUT];
    int count;
    reference_program *p;
} bench;

/* The next operand, [rows, columns], or [rows] where there are no columns. */
tensor *bench_operand(bench *b, dtype type, int64_t rows, int64_t columns);
/* After the op has all operands; its program is the caller's to close. */
void bench_start(bench *b);
void bench_run(bench *b);

/* The test fails if they differ by more than `relative` of what is wanted. */
void bench_near(double got, double want, double relative);
