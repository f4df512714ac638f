/* One op with operands, run by a backend between guard bytes and compared with the reference on the same rounded
 * inputs.
 *
 * A case is built by a generator (op_cases.h): operands with what fills them, attributes, and how exact the result must
 * be. op_case_run() lays the operands out in an arena whose every other byte is a guard, runs the op there and in
 * float64, and compares every output element. The case owns its tensors.
 */
#pragma once

#include "kernels/table/op.h"

enum { OP_CASE_TENSORS = 16 };

typedef struct op_case op_case;

/* What an operand holds before the op. Floating-point values are rounded to the operand's type. */
typedef struct fill {
    enum {
        FILL_NORMAL,   /* mean a, deviation b */
        FILL_UNIFORM,  /* in [a, b) */
        FILL_INTEGERS, /* a .. b, both included */
        FILL_GIVEN,    /* from (*give)() */
        FILL_DERIVED,  /* made by an op_case_prelude() from the others */
        FILL_NOTHING,  /* an output: NaN, so that what is not written shows */
    } kind;
    double a, b;
    void (*give)(const op_case *c, void *bytes, const tensor *t);
} fill;

struct op_case {
    op o, prelude[2];
    int preludes;
    tensor t[OP_CASE_TENSORS];
    fill fills[OP_CASE_TENSORS];
    int tensors;
    dtype type;      /* T */
    bool alias;      /* output 0 is input 0's bytes, always */
    bool exact;      /* nothing is computed: bits must agree */
    bool one_type;   /* has no operand of type T: one T is enough */
    bool skips;      /* control.skip is set */
    bool stochastic; /* bf16 outputs are rounded stochastically */
    /* Error in units of what may be lost, see op_case.c: terms of the longest sum, roundings to T on the way, and how
     * much larger intermediate values are than the output (cancellation). */
    double terms, roundings, growth;
    double floor;   /* roundings of 1 to T that an element may be off by, where the result is 0 but for rounding */
    int deal;       /* of attention: which runs of the keys the queries are */
    int64_t t_keys; /* and rows of keys */
    step_scalars scalars;
    char what[128];
};

/* A generator's variant counts options fastest: takes one of `options` off it. */
int op_case_option(int *variant, int options);
/* One row, primes, sizes next to multiples of vectors, and one large enough for threads; false beyond the last. */
bool op_case_sizes(int64_t *rows, int64_t *columns, int variant);

tensor *op_case_tensor(op_case *c, const char *name, dtype type, fill f, int64_t rows, int64_t columns);
/* An input; columns 0: a vector. */
tensor *op_case_in(op_case *c, int slot, dtype type, fill f, int64_t rows, int64_t columns);
/* An output that is accumulated or updated: what it holds before counts where `read`. */
tensor *op_case_update(op_case *c, int slot, dtype type, fill f, int64_t rows, int64_t columns, bool read);
/* The step's scalars, c->scalars, as input `slot`. */
void op_case_scalars(op_case *c, int slot);
/* Describe the outputs of mask `outputs` by the op's own rule. */
void op_case_infer(op_case *c, unsigned outputs);
/* An op run in float64 before, whose outputs (rounded to their types) are operands of the case. */
op *op_case_prelude(op_case *c, op_kind kind);

typedef struct op_case_mode {
    bool strided; /* matrices of T are views with a pitch beyond their columns, from an odd row of their base */
    int in_place_out, in_place_in; /* this output in this input's storage; in_place_out -1: none */
    int threads;
    bool (*wants)(op *o); /* NULL: every op */
} op_case_mode;

/* May the mode be applied to the case (are there matrices, is there an operand and does it match)? */
bool op_case_allows(const op_case *c, const op_case_mode *m);

/* The worst ratio of error to tolerance over the outputs; <= 1 is agreement. NaN, a touched guard or input: infinite.
 * `why` (at least 256 bytes) says where the worst is. OP_CASE_UNWANTED: the mode does not want the op, whose operands
 * have their addresses, and it was not tried. */
#define OP_CASE_UNWANTED (-1.0)
double op_case_run(char *why, op_case *c, const op_backend *backend, const op_case_mode *m, uint64_t seed);

/* Deterministic random numbers for tests. */
typedef struct test_random {
    uint64_t state;
} test_random;
double test_uniform(test_random *r); /* [0, 1) */
double test_normal(test_random *r);
