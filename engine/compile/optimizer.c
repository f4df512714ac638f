#include "engine/compile/optimizer.h"

#include <math.h>
#include <string.h>

#include "engine/compile/compile_parts.h"
#include "kernels/muon.h"

/* ---- element by element ---------------------------------------------------------------------------------------- */

/* One op of the optimizer over rows [first, first + rows) of what this rank owns; x: the gradient, or what was made of it. */
static void append_rows(compiled_program *out, const compiled *c, const storage *s, tensor *x, int64_t first,
                        int64_t rows, float scale)
{
    const optimizer *row = optimizer_of(&c->options, s->of);
    tensor *in[] = {x, c->inputs.scalars, c->results.control};
    tensor *outs[OP_MAX_OUT] = {NULL, update_rows(out, s->master, first, rows)};
    if (c->options.compute != DTYPE_FP32)
        outs[0] = update_rows(out, s->own_weight, first, rows);
    bool updates = x->class == CLASS_GRADIENT; /* the states too */
    for (int i = 0; i < s->states && updates; i++)
        outs[2 + i] = update_rows(out, s->state[i], first, rows);
    op_attributes at = {.decay = s->of->decay, .nesterov = c->options.optimizer.nesterov, .scale = scale};
    unroll_append(out, row->op, PHASE_UPDATE, pool_format(&out->pool, "%s/update", s->of->name), in, 3, outs,
                  2 + (updates ? s->states : 0), &at);
}

static void each(compiled_program *out, const compiled *c, const storage *s)
{
    append_rows(out, c, s, s->own_gradient, 0, s->own_gradient->shape[0], 1);
}

/* ---- Muon ------------------------------------------------------------------------------------------------------ */

/* A matrix by Hugging Face's name, and the rows of the rank's part of a parameter that are its. */
typedef struct matrix {
    const char *name;
    int64_t global[2];
    int64_t first, rows;
    tensor *x; /* fp32 [rows, columns]: on its way to singular values near 1; NULL where the rank has no row */
} matrix;

/* The matrices of a parameter: its pieces, those of one name joined. They follow one another. */
static int find_matrices(matrix *out, const parameter *p)
{
    int count = 0;
    for (int i = 0; i < p->piece_count; i++) {
        const parameter_piece *q = &p->pieces[i];
        int64_t rows = q->size[q->transposed ? 1 : 0];
        if (count > 0 && !strcmp(out[count - 1].name, q->name))
            out[count - 1].rows += rows;
        else
            out[count++] = (matrix){q->name, {q->global[0], q->global[1]}, q->row, rows, NULL};
    }
    return count;
}

/* An update of one parameter's matrices while its ops are appended. */
typedef struct orthogonalisation {
    compiled_program *out;
    const compiled *c;
    const storage *s;
    const char *label;
} orthogonalisation;

/* Ops whose outputs are described by the op: the first one made here, unless `given`. */
static tensor *make(const orthogonalisation *u, op_kind kind, tensor *a, tensor *b, tensor *third, tensor **second_out,
                    tensor *given)
{
    tensor *in[] = {a, b, third}, *outs[2] = {given, NULL};
    for (int i = 0; i < (second_out ? 2 : 1); i++) {
        if (outs[i])
            continue;
        outs[i] = pool_alloc(&u->out->pool, sizeof(tensor));
        tensor_describe(outs[i], u->label, CLASS_TEMPORARY, DTYPE_FP32, 0, NULL);
    }
    op_attributes at = {.epsilon = MUON_EPSILON};
    op *o = unroll_append(u->out, kind, PHASE_UPDATE, u->label, in, 3, outs, 2, &at);
    op_row_of(o)->infer(o);
    if (second_out)
        *second_out = outs[1];
    return outs[0];
}

static tensor *new_square(const orthogonalisation *u, int64_t n)
{
    tensor *t = pool_alloc(&u->out->pool, sizeof *t);
    tensor_describe(t, u->label, CLASS_TEMPORARY, DTYPE_FP32, 2, (int64_t[]){n, n});
    return t;
}

/* m = the mean of gradients; x = the direction */
static void begin(const orthogonalisation *u, matrix *m)
{
    const compiled *c = u->c;
    if (m->rows == 0)
        return;
    tensor *in[] = {update_rows(u->out, u->s->own_gradient, m->first, m->rows), c->inputs.scalars, c->results.control};
    tensor *x = pool_alloc(&u->out->pool, sizeof *x);
    tensor_describe(x, u->label, CLASS_TEMPORARY, DTYPE_FP32, 0, NULL);
    tensor *outs[] = {x, update_rows(u->out, u->s->state[0], m->first, m->rows)};
    op_attributes at = {.nesterov = c->options.optimizer.nesterov};
    op *o = unroll_append(u->out, OP_muon_momentum, PHASE_UPDATE, u->label, in, 3, outs, 2, &at);
    op_row_of(o)->infer(o);
    m->x = x;
}

/* Where the tensor group divides a matrix, the side that each rank has whole; else the shorter. */
static bool takes_rows(const orthogonalisation *u, const matrix *m)
{
    const parameter *p = u->s->of;
    return p->place.kind == PLACE_SHARD ? p->place.dim == 1 : m->rows <= p->columns;
}

/* x x^T, or x^T x: a sum over the ranks that divide the other side, to which a copy adds nothing. */
static tensor *gram(const orthogonalisation *u, const matrix *m)
{
    bool rows = takes_rows(u, m);
    int64_t n = rows ? m->rows : u->s->of->columns;
    op_attributes at = update_along(u->c, AXIS_TENSOR), kv = update_along(u->c, AXIS_KV);
    bool copy = u->s->of->copied_from >= 0 && m->first >= u->s->of->copied_from && kv.group_rank > 0;
    tensor *part = new_square(u, n), *sum = part;
    if (copy || m->rows == 0) {
        part->place = place_partial();
        unroll_append(u->out, OP_zero, PHASE_UPDATE, u->label, NULL, 0, &part, 1, NULL);
    } else if (rows) {
        make(u, OP_linear, m->x, m->x, NULL, NULL, part);
    } else {
        part->place = at.group_size > 1 ? place_partial() : place_replicate();
        make(u, OP_linear_grad_weight, m->x, m->x, NULL, NULL, part);
    }
    if (at.group_size > 1) {
        sum = new_square(u, n);
        op *o = unroll_append(u->out, OP_all_reduce, PHASE_UPDATE, u->label, &part, 1, &sum, 1, &at);
        op_row_of(o)->infer(o);
    }
    return sum;
}

/* x = (a I + b G + c G^2) x, or x (a I + b G + c G^2); the first time x / |x| in x's place. */
static void improve(const orthogonalisation *u, matrix *m, tensor *g, bool first)
{
    tensor *scale = NULL;
    if (first)
        g = make(u, OP_muon_scale, g, NULL, NULL, &scale, NULL);
    tensor *square = make(u, OP_linear, g, g, NULL, NULL, NULL);
    tensor *p = make(u, OP_muon_polynomial, g, square, scale, NULL, NULL);
    if (m->rows == 0)
        return;
    if (takes_rows(u, m)) {
        m->x = make(u, OP_linear_grad_input, p, m->x, NULL, NULL, NULL);
        return;
    }
    if (m->x->place.kind == PLACE_SHARD) { /* each rank uses the same matrix for its own rows */
        tensor *whole = new_square(u, p->shape[0]);
        op_attributes at = update_along(u->c, AXIS_TENSOR);
        op *o = unroll_append(u->out, OP_share, PHASE_UPDATE, u->label, &p, 1, &whole, 1, &at);
        op_row_of(o)->infer(o);
        p = whole;
    }
    m->x = make(u, OP_linear, m->x, p, NULL, NULL, NULL);
}

/* What a matrix's shape does to the rate: PyTorch's two rules. */
static float adjust(const compiled *c, const matrix *m)
{
    double a = (double)m->global[0], b = (double)m->global[1];
    if (c->options.optimizer.adjust == CONFIG_ADJUST_RMS)
        return (float)(0.2 * sqrt(fmax(a, b)));
    return (float)sqrt(fmax(1, a / b));
}

/* The matrices of one parameter side by side, so that one's sum travels while another is multiplied. */
static void orthogonal(compiled_program *out, const compiled *c, const storage *s)
{
    orthogonalisation u = {out, c, s, pool_format(&out->pool, "%s/orthogonalise", s->of->name)};
    matrix m[PARAMETER_PIECES];
    tensor *g[PARAMETER_PIECES];
    int count = find_matrices(m, s->of);
    for (int i = 0; i < count; i++)
        begin(&u, &m[i]);
    for (int iteration = 0; iteration < MUON_ITERATIONS; iteration++) {
        for (int i = 0; i < count; i++)
            g[i] = gram(&u, &m[i]);
        for (int i = 0; i < count; i++)
            improve(&u, &m[i], g[i], iteration == 0);
    }
    for (int i = 0; i < count; i++)
        if (m[i].rows > 0)
            append_rows(out, c, s, m[i].x, m[i].first, m[i].rows, adjust(c, &m[i]));
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

static const optimizer rows[] = {
#define OPTIMIZER(name_, append_, rest_, ...)                                                                          \
    [CONFIG_OPTIMIZER_##name_] = {.name = #name_,                                                                      \
                                  .op = OP_##name_,                                                                    \
                                  .rest = CONFIG_OPTIMIZER_##rest_,                                                    \
                                  .append = append_,                                                                   \
                                  .state = {__VA_ARGS__}},
#include "engine/config/optimizers.def"
#undef OPTIMIZER
};

static bool takes_all(config_optimizer name)
{
    return rows[name].rest == name;
}

const char *optimizer_name(const compile_options *o)
{
    return rows[o->optimizer.name].name;
}

const optimizer *optimizer_of(const compile_options *o, const parameter *p)
{
    config_optimizer name = o->optimizer.name;
    bool matrix_of_block = p->of_block && !p->vector;
    return &rows[takes_all(name) || matrix_of_block ? name : rows[name].rest];
}

int optimizer_states(const optimizer *o)
{
    int count = 0;
    while (o->state[count])
        count++;
    return count;
}

bool optimizer_whole(const compile_options *o, const parameter *p)
{
    config_optimizer name = o->optimizer.name;
    return !takes_all(name) && optimizer_of(o, p) == &rows[name];
}

void optimizer_sections(const char *names[OPTIMIZER_SECTIONS], const compile_options *o)
{
    config_optimizer name = o->optimizer.name;
    int count = 0;
    for (int i = 0; rows[name].state[i]; i++)
        names[count++] = rows[name].state[i];
    for (int i = 0; !takes_all(name) && rows[rows[name].rest].state[i]; i++)
        names[count++] = rows[rows[name].rest].state[i];
    names[count] = NULL;
}
