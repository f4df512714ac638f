/* The adjoint test: a piece of a model is recorded and differentiated by the real recorder on every rank of a group
 * along one axis, and both passes are run in float64 by the reference. With random u and v,
 *
 *     <u, J v> = <J^T u, v>
 *
 * where J v comes from differences of the forward pass alone and J^T u from the recorded gradient. One identity is
 * tested per variable (an input or a parameter), v being zero for the others. Replicas count once, partial values are
 * summed.
 *
 * A case is a function that records the forward pass of one rank; it runs once a rank and declares the same variables
 * by the same names. The adjoint owns everything.
 */
#pragma once

#include "layers/layer.h"
#include "tests/oracle/op_case.h"

enum { ADJOINT_VARIABLES = 32, ADJOINT_CONSTANTS = 16, ADJOINT_RANKS = 4 };

typedef struct adjoint_variable {
    tensor *value;
    tensor *gradient; /* after recording */
    placement place;
} adjoint_variable;

typedef struct adjoint_constant {
    tensor *of;
    void *bytes; /* of an integer tensor, or doubles */
} adjoint_constant;

typedef struct adjoint_rank {
    pool pool;
    recorder r;
    axis along;
    storage storage[ADJOINT_VARIABLES]; /* by the parameter's number */
    int parameters;
    adjoint_variable variable[ADJOINT_VARIABLES];
    adjoint_constant constant[ADJOINT_CONSTANTS];
    int variables, constants;
    tensor *output, *cotangent; /* the case sets output, or loss */
    tensor *loss;
    double loss_factor; /* of the loss's gradient: loss_scale / loss_tokens */
    tensor *beside;     /* or NULL: sums that the forward pass adds to, whose part the recorded gradient has, too */
    const double *beside_factors; /* [elements of beside]: their cotangent */
    op **ops;                     /* forward, then backward, then weight */
    int forward, count;
    struct reference_program *program;
} adjoint_rank;

typedef struct adjoint_spec {
    const char *name;
    void (*record)(adjoint_rank *a, const void *options);
    const void *options;
    int ranks;     /* 0: one */
    axis along;    /* of the group; 0: AXIS_TENSOR */
    bool sequence; /* sequence parallelism */
    bool split;    /* weight gradients in a phase of their own */
    recompute recompute;
    bool fuse; /* kernels/record/fuse.h */
    bool idle; /* there are variables that do nothing: their gradients must be 0 */
    /* For mutants. */
    void (*mutate)(op **ops, int forward, int count); /* of every rank, before they are run */
    double gradient_factor;                           /* of every gradient; 0: 1 */
    bool leave_out;                                   /* the collective `skip` of the backward pass is left out */
    int skip;
} adjoint_spec;

typedef struct adjoint adjoint;

adjoint *adjoint_open(const adjoint_spec *s);
void adjoint_close(adjoint *a);
/* The largest |<u, J v> - <J^T u, v>| over the variables, as a multiple of what is allowed: see adjoint.c. Not finite
 * if a replica differs between ranks or a variable does nothing. `why` (256 bytes) says where. */
double adjoint_worst(char *why, adjoint *a);
/* All gradients of all ranks, one after another; returns how many (at most `most`). */
int adjoint_gradients(double *out, adjoint *a, int most);
/* Runs the backward pass of a second micro-batch, whose gradients add to the first's. */
void adjoint_again(adjoint *a);
const adjoint_rank *adjoint_rank_of(const adjoint *a, int rank);
int adjoint_collectives(const adjoint *a); /* of the backward pass */

/* ---- for cases ----------------------------------------------------------------------------------------------- */

/* A differentiable input, [rows, columns] on this rank. */
tensor *adjoint_input(adjoint_rank *a, const char *name, int64_t rows, int64_t columns, placement place);
/* columns 0: a vector of `rows`. In a group of one every placement is replicate. */
parameter *adjoint_parameter(adjoint_rank *a, const char *name, int64_t rows, int64_t columns, placement place);
tensor *adjoint_integers(adjoint_rank *a, const char *name, int64_t count, int32_t (*value)(int64_t i));
tensor *adjoint_table(adjoint_rank *a, const char *name, int64_t rows, int64_t columns,
                      double (*value)(int64_t row, int64_t column, int64_t columns));
tensor *adjoint_scalars(adjoint_rank *a, const step_scalars *s);
