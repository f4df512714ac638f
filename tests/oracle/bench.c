#include "tests/oracle/bench.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

tensor *bench_operand(bench *b, dtype type, int64_t rows, int64_t columns)
{
    tensor *t = &b->t[b->count++];
    tensor_describe(t, "operand", CLASS_TEMPORARY, type, columns ? 2 : 1, (int64_t[]){rows, columns});
    return t;
}

void bench_start(bench *b)
{
    op *o = &b->o;
    o->label = "bench";
    b->p = reference_program_open(&o, 1);
}

void bench_run(bench *b)
{
    reference_program_run(b->p, 0, 1, false);
}

void bench_near(double got, double want, double relative)
{
    if (!(fabs(got - want) <= relative * fabs(want) + 1e-300))
        fail_msg("%.17g is not %.17g", got, want);
}
