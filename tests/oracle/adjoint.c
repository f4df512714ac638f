/* J v is the difference of fourth order, (8 (f(x + h v) - f(x - h v)) - (f(x + 2 h v) - f(x - 2 h v))) / 12 h with h =
 * 2^-12: its error is about h^4/30 = 1e-16 times the fifth derivative, and 1e-12 of rounding. Over n elements of the
 * output the inner product of random vectors is about |u| |J v| / sqrt(n); 2e-9 of that is allowed. */
#include "tests/oracle/adjoint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/record/fuse.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/oracle/reference_program.h"

static const double STEP = 1.0 / 4096, ALLOWED = 2e-9;

struct adjoint {
    adjoint_spec spec;
    int ranks;
    adjoint_rank rank[ADJOINT_RANKS];
};

/* ---- recording ------------------------------------------------------------------------------------------------- */

static placements in_group(const adjoint_rank *a, placement place)
{
    placements all = {0};
    for (int i = 0; i < AXIS_SLOTS; i++)
        if (a->r.grid.group[a->along].slots >> i & 1)
            all.along[i] = place;
    return all;
}

static placement along_group(const adjoint_rank *a, placements place)
{
    int slot = 0;
    while (!(axis_slots(a->along) >> slot & 1))
        slot++;
    return place.along[slot];
}

static tensor *add_variable(adjoint_rank *a, tensor *t, tensor *gradient)
{
    MUST(a->variables < ADJOINT_VARIABLES, "too many variables");
    a->variable[a->variables++] =
        (adjoint_variable){.value = t, .gradient = gradient, .place = along_group(a, t->place)};
    return t;
}

tensor *adjoint_input(adjoint_rank *a, const char *name, int64_t rows, int64_t columns, placement place)
{
    return add_variable(a, recorder_input(&a->r, name, DTYPE_FP32, 2, (int64_t[]){rows, columns}, in_group(a, place)),
                        NULL);
}

parameter *adjoint_parameter(adjoint_rank *a, const char *name, int64_t rows, int64_t columns, placement place)
{
    MUST(a->parameters < ADJOINT_VARIABLES, "too many parameters");
    parameter *p = pool_alloc(&a->pool, sizeof *p);
    *p = (parameter){.name = name, .rows = columns ? rows : 1, .columns = columns ? columns : rows, .vector = !columns};
    p->place = in_group(a, place);
    p->number = a->parameters++;
    int64_t shape[] = {rows, columns};
    tensor *weight = pool_alloc(&a->pool, sizeof *weight), *gradient = pool_alloc(&a->pool, sizeof *gradient);
    tensor_describe(weight, name, CLASS_WEIGHT, DTYPE_FP32, columns ? 2 : 1, shape);
    tensor_describe(gradient, name, CLASS_GRADIENT, DTYPE_FP32, columns ? 2 : 1, shape);
    weight->parameter = gradient->parameter = p;
    weight->place = p->place;
    gradient->place = parameter_gradient_place(p);
    a->storage[p->number] =
        (storage){.of = p, .owner = -1, .own_rows = p->rows, .weight = weight, .gradient = gradient};
    add_variable(a, weight, gradient);
    return p;
}

static tensor *add_constant(adjoint_rank *a, tensor *t, void *bytes)
{
    MUST(a->constants < ADJOINT_CONSTANTS, "too many constants");
    a->constant[a->constants++] = (adjoint_constant){t, bytes};
    return t;
}

tensor *adjoint_integers(adjoint_rank *a, const char *name, int64_t count, int32_t (*value)(int64_t i))
{
    int32_t *values = pool_alloc(&a->pool, (size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = value(i);
    return add_constant(a, recorder_input(&a->r, name, DTYPE_INT32, 1, &count, (placements){0}), values);
}

tensor *adjoint_table(adjoint_rank *a, const char *name, int64_t rows, int64_t columns,
                      double (*value)(int64_t row, int64_t column, int64_t columns))
{
    double *values = pool_alloc(&a->pool, (size_t)(rows * columns) * sizeof *values);
    for (int64_t i = 0; i < rows * columns; i++)
        values[i] = value(i / columns, i % columns, columns);
    return add_constant(a, recorder_input(&a->r, name, DTYPE_FP32, 2, (int64_t[]){rows, columns}, (placements){0}),
                        values);
}

tensor *adjoint_scalars(adjoint_rank *a, const step_scalars *s)
{
    step_scalars *copy = pool_alloc(&a->pool, sizeof *copy);
    *copy = *s;
    tensor *t = recorder_input(&a->r, "scalars", DTYPE_UINT8, 1, (int64_t[]){sizeof *s}, (placements){0});
    a->loss_factor = (double)s->loss_scale / (double)s->loss_tokens;
    return add_constant(a, t, copy);
}

static void copy_ops(adjoint_rank *a)
{
    const program *bodies[] = {&a->r.body[PHASE_FORWARD], &a->r.body[PHASE_BACKWARD], &a->r.body[PHASE_WEIGHT]};
    a->forward = bodies[0]->count;
    a->count = bodies[0]->count + bodies[1]->count + bodies[2]->count;
    a->ops = pool_alloc(&a->pool, ((size_t)a->count + 1) * sizeof *a->ops);
    int n = 0;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < bodies[i]->count; k++)
            a->ops[n++] = bodies[i]->ops[k];
}

static void fuse(adjoint_rank *a)
{
    tensor *ends[ADJOINT_VARIABLES + 2] = {a->output, a->loss};
    for (int i = 0; i < a->variables; i++)
        ends[2 + i] = a->variable[i].gradient;
    fuse_recorded(&a->r, ends, 2 + a->variables);
}

static void record_rank(adjoint_rank *a, const adjoint_spec *s, int ranks, int rank)
{
    recorder_grid grid = recorder_alone();
    grid.sequence = s->sequence && ranks > 1;
    grid.group[s->along] = (axis_group){.ranks = ranks, .rank = rank, .slots = ranks > 1 ? axis_slots(s->along) : 0};
    a->along = s->along;
    recorder_open(&a->r, &a->pool, &grid, DTYPE_FP32, a->storage, ADJOINT_VARIABLES);
    a->r.training = true;
    a->r.split = s->split;
    a->r.recompute = s->recompute;
    s->record(a, s->options);
    MUST(a->output || a->loss, "%s has neither output nor loss", s->name);
    if (a->r.backward_starts == 0)
        a->cotangent = recorder_input(&a->r, "cotangent", DTYPE_FP32, a->output->dims, a->output->shape,
                                      place_cotangent(a->output->place));
    recorder_differentiate(&a->r, NULL, a->output, a->cotangent);
    for (int i = 0; i < a->variables; i++)
        if (!a->variable[i].gradient)
            a->variable[i].gradient = recorder_flow_take(&a->r, a->variable[i].value);
    if (s->fuse)
        fuse(a);
    copy_ops(a);
    if (s->mutate)
        s->mutate(a->ops, a->forward, a->count);
    a->program = reference_program_open(a->ops, a->count);
}

/* ---- values ---------------------------------------------------------------------------------------------------- */

static bool is_replica(placement place)
{
    return place.kind == PLACE_REPLICATE || place.kind == PLACE_SHARED;
}

static uint64_t seed_of(const char *name, int salt, placement place, int rank)
{
    uint64_t h = 0xcbf29ce484222325u + (uint64_t)salt;
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h + (is_replica(place) ? 0 : (uint64_t)(rank + 1) * 0x9E3779B97F4A7C15u);
}

static double *random_values(const tensor *t, int salt, placement place, int rank)
{
    test_random random = {seed_of(t->name, salt, place, rank)};
    int64_t n = tensor_elements(t);
    double *values = must_alloc((unsigned long)n * sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = test_normal(&random);
    return values;
}

/* variable `which` of every rank = its value + step v; all others their values. Weights of norms are around 1. */
static void set_variables(adjoint *a, int which, const char *name, double step)
{
    for (int rank = 0; rank < a->ranks; rank++)
        for (int i = 0; i < a->rank[rank].variables; i++) {
            adjoint_rank *k = &a->rank[rank];
            const adjoint_variable *x = &k->variable[i];
            if (!reference_program_has(k->program, x->value))
                continue;
            int64_t n = tensor_elements(x->value);
            AUTO_FREE double *value = random_values(x->value, 1, x->place, rank),
                             *v = random_values(x->value, 2, x->place, rank);
            for (int64_t j = 0; j < n; j++)
                value[j] = (strstr(x->value->name, "norm") ? 1 + 0.3 * value[j] : 0.7 * value[j]) +
                           (which >= 0 && strcmp(x->value->name, name) == 0 ? step * v[j] : 0);
            reference_program_set(k->program, x->value, value);
        }
}

static int run_phase(adjoint *a, bool backward, int skip)
{
    reference_program *programs[ADJOINT_RANKS];
    int first[ADJOINT_RANKS], count[ADJOINT_RANKS];
    for (int i = 0; i < a->ranks; i++) {
        programs[i] = a->rank[i].program;
        first[i] = backward ? a->rank[i].forward : 0;
        count[i] = backward ? a->rank[i].count - a->rank[i].forward : a->rank[i].forward;
    }
    return reference_program_run_group(programs, a->ranks, first, count, skip);
}

static const tensor *output_of(const adjoint_rank *k)
{
    return k->loss ? k->loss : k->output;
}

static double *values_of(const adjoint_rank *k, const tensor *t)
{
    double *values = must_calloc((unsigned long)tensor_elements(t), sizeof *values);
    if (reference_program_has(k->program, t))
        reference_program_get(values, k->program, t);
    return values;
}

/* What ops add to begins at 0 in each forward pass. */
static void start_beside(const adjoint_rank *k)
{
    AUTO_FREE double *zero = must_calloc((unsigned long)tensor_elements(k->beside), sizeof *zero);
    reference_program_set(k->program, k->beside, zero);
}

static double *cotangent_of(const adjoint *a, int rank)
{
    const adjoint_rank *k = &a->rank[rank];
    if (k->loss) {
        double *u = must_alloc(sizeof *u);
        *u = k->loss_factor;
        return u;
    }
    tensor named = *k->output;
    named.name = "u";
    /* the cotangent of a partial tensor is the same on every rank */
    return random_values(&named, 3, along_group(k, place_cotangent(k->output->place)), rank);
}

/* ---- the identity ---------------------------------------------------------------------------------------------- */

typedef struct product {
    double value, u, v; /* <u, v>, |u|^2, |v|^2 over the elements that count */
    int64_t n;
} product;

static void add_product(product *p, const double *u, const double *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        p->value += u[i] * v[i];
        p->u += u[i] * u[i];
        p->v += v[i] * v[i];
    }
    p->n += n;
}

static void add_values(double *sum, const adjoint_rank *k, const tensor *t, double factor)
{
    AUTO_FREE double *values = values_of(k, t);
    for (int64_t i = 0; i < tensor_elements(t); i++)
        sum[i] += factor * values[i];
}

/* by[1] f(x + by[0] v) of every rank, added to sum[rank], and what is beside it to beside[rank] */
static void add_forward(double **sum, double **beside, adjoint *a, int which, const char *name, const double by[2])
{
    for (int rank = 0; rank < a->ranks; rank++)
        if (a->rank[rank].beside)
            start_beside(&a->rank[rank]);
    set_variables(a, which, name, by[0]);
    run_phase(a, false, -1);
    for (int rank = 0; rank < a->ranks; rank++) {
        add_values(sum[rank], &a->rank[rank], output_of(&a->rank[rank]), by[1]);
        if (a->rank[rank].beside)
            add_values(beside[rank], &a->rank[rank], a->rank[rank].beside, by[1]);
    }
}

/* Elements of `t`, all 0. */
static double *zeros_of(const tensor *t)
{
    return must_calloc(t ? (unsigned long)tensor_elements(t) : 1, sizeof(double));
}

/* Replicas count once. */
static bool counts(const adjoint_rank *k, int rank, const tensor *t)
{
    return rank == 0 || !is_replica(along_group(k, t->place));
}

/* <u, J v> */
static product forward_product(adjoint *a, int which, const char *name)
{
    double *jv[ADJOINT_RANKS], *beside[ADJOINT_RANKS];
    for (int rank = 0; rank < a->ranks; rank++) {
        jv[rank] = zeros_of(output_of(&a->rank[rank]));
        beside[rank] = zeros_of(a->rank[rank].beside);
    }
    static const double steps[4] = {1, -1, 2, -2}, factors[4] = {8, -8, -1, 1};
    for (int i = 0; i < 4; i++)
        add_forward(jv, beside, a, which, name, (double[]){steps[i] * STEP, factors[i] / (12 * STEP)});
    product p = {0};
    for (int rank = 0; rank < a->ranks; rank++) {
        const adjoint_rank *k = &a->rank[rank];
        const tensor *y = output_of(k);
        AUTO_FREE double *u = cotangent_of(a, rank);
        if (rank == 0 || (!k->loss && counts(k, rank, y))) /* the loss is a replica */
            add_product(&p, u, jv[rank], tensor_elements(y));
        if (k->beside && counts(k, rank, k->beside))
            add_product(&p, k->beside_factors, beside[rank], tensor_elements(k->beside));
        free(jv[rank]);
        free(beside[rank]);
    }
    return p;
}

/* <J^T u, v> of variable `name` after a backward pass; false if ranks disagree about a replica's gradient. */
static bool backward_product(product *p, const adjoint *a, const char *name)
{
    AUTO_FREE double *first = NULL;
    bool agree = true;
    for (int rank = 0; rank < a->ranks; rank++)
        for (int i = 0; i < a->rank[rank].variables; i++) {
            const adjoint_rank *k = &a->rank[rank];
            const adjoint_variable *x = &k->variable[i];
            if (strcmp(x->value->name, name) != 0 || !x->gradient)
                continue;
            double *g = values_of(k, x->gradient), *v = random_values(x->value, 2, x->place, rank);
            int64_t n = tensor_elements(x->value);
            for (int64_t j = 0; j < n; j++)
                g[j] *= a->spec.gradient_factor != 0 ? a->spec.gradient_factor : 1;
            bool replica = x->place.kind == PLACE_REPLICATE;
            if (!replica || !first)
                add_product(p, g, v, n);
            for (int64_t j = 0; replica && first && j < n; j++)
                agree &= fabs(g[j] - first[j]) <= 1e-10 * (1 + fabs(first[j]));
            free(v);
            if (first || !replica)
                free(g);
            else
                first = g;
        }
    return agree;
}

static void run_backward(adjoint *a)
{
    set_variables(a, -1, "", 0);
    run_phase(a, false, -1);
    for (int rank = 0; rank < a->ranks; rank++)
        if (a->rank[rank].cotangent) {
            AUTO_FREE double *u = cotangent_of(a, rank);
            reference_program_set(a->rank[rank].program, a->rank[rank].cotangent, u);
        }
    run_phase(a, true, a->spec.leave_out ? a->spec.skip : -1);
}

double adjoint_worst(char *why, adjoint *a)
{
    double worst = 0;
    why[0] = 0;
    for (int i = 0; i < a->rank[0].variables; i++) { /* rank 0 has every variable */
        const char *name = a->rank[0].variable[i].value->name;
        product forward = forward_product(a, i, name), backward = {0};
        run_backward(a);
        bool agree = backward_product(&backward, a, name);
        double size = sqrt(forward.u * forward.v / (double)forward.n);
        double ratio = fabs(forward.value - backward.value) / (ALLOWED * size);
        if (a->spec.idle && forward.v == 0 && backward.value == 0)
            continue;
        if (!agree || !(forward.v > 0) || !isfinite(ratio))
            ratio = INFINITY;
        if (ratio > worst) {
            worst = ratio;
            snprintf(why, 256, "%s, %s: <u, J v> = %.12g, <J^T u, v> = %.12g%s", a->spec.name, name, forward.value,
                     backward.value, agree ? "" : "; ranks disagree about its gradient");
        }
    }
    return worst;
}

int adjoint_gradients(double *out, adjoint *a, int most)
{
    run_backward(a);
    int n = 0;
    for (int rank = 0; rank < a->ranks; rank++)
        for (int i = 0; i < a->rank[rank].variables; i++) {
            const tensor *g = a->rank[rank].variable[i].gradient;
            if (!g)
                continue;
            AUTO_FREE double *values = values_of(&a->rank[rank], g);
            for (int64_t j = 0; j < tensor_elements(g) && n < most; j++)
                out[n++] = values[j];
        }
    return n;
}

void adjoint_again(adjoint *a)
{
    for (int rank = 0; rank < a->ranks; rank++)
        reference_program_run(a->rank[rank].program, a->rank[rank].forward, a->rank[rank].count - a->rank[rank].forward,
                              true);
}

const adjoint_rank *adjoint_rank_of(const adjoint *a, int rank)
{
    return &a->rank[rank];
}

int adjoint_collectives(const adjoint *a)
{
    int n = 0;
    for (int i = a->rank[0].forward; i < a->rank[0].count; i++)
        n += op_communicates(a->rank[0].ops[i]);
    return n;
}

adjoint *adjoint_open(const adjoint_spec *s)
{
    adjoint *a = must_calloc(1, sizeof *a);
    a->spec = *s;
    a->ranks = s->ranks ? s->ranks : 1;
    MUST(a->ranks <= ADJOINT_RANKS, "too many ranks");
    for (int rank = 0; rank < a->ranks; rank++) {
        adjoint_rank *k = &a->rank[rank];
        record_rank(k, s, a->ranks, rank);
        for (int i = 0; i < k->constants; i++) {
            const tensor *t = k->constant[i].of;
            if (!reference_program_has(k->program, t))
                continue;
            if (dtype_is_float((dtype)t->type))
                reference_program_set(k->program, t, k->constant[i].bytes);
            else
                memcpy(reference_program_bytes(k->program, t), k->constant[i].bytes, (size_t)tensor_bytes(t));
        }
    }
    return a;
}

void adjoint_close(adjoint *a)
{
    for (int rank = 0; rank < a->ranks; rank++) {
        reference_program_close(a->rank[rank].program);
        recorder_close(&a->rank[rank].r);
        pool_free(&a->rank[rank].pool);
    }
    free(a);
}
