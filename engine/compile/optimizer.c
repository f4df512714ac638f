#include "engine/compile/optimizer.h"

#include <math.h>
#include <string.h>

#include "engine/compile/compile_parts.h"
#include "kernels/muon.h"

/* ---- element by element ---------------------------------------------------------------------------------------- */

/* The optimizer's op over rows [first, first + rows) of what this rank owns, `states` of its states among them. */
static void append_rows(const optimizer_update *u, tensor *x, int states, int64_t first, int64_t rows, float scale)
{
    const compiled *c = u->c;
    const storage *s = u->s;
    op o = {.kind = optimizer_of(&c->options, s->of)->op,
            .in = {x, c->inputs.scalars, u->control},
            .out = {NULL, update_rows(u->out, s->master, first, rows)},
            .at = {.decay = s->of->decay, .nesterov = c->options.optimizer.nesterov, .scale = scale}};
    if (c->options.compute != DTYPE_FP32)
        o.out[0] = update_rows(u->out, s->own_weight, first, rows);
    for (int i = 0; i < states; i++)
        o.out[2 + i] = update_rows(u->out, s->state[i], first, rows);
    update_op(u->out, pool_format(&u->out->pool, "%s/update", s->of->name), &o, 0, NULL);
}

static void each(const optimizer_update *u)
{
    append_rows(u, u->gradient, u->s->states, 0, u->gradient->shape[0], 1);
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

/* The ops between the gradient and the direction have one label. */
static op *make(const optimizer_update *u, const op *like, unsigned outputs)
{
    return update_op(u->out, pool_format(&u->out->pool, "%s/orthogonalise", u->s->of->name), like, outputs, NULL);
}

/* One new output of two inputs. */
static tensor *make_one(const optimizer_update *u, op_kind kind, tensor *a, tensor *b)
{
    return make(u, &(op){.kind = kind, .in = {a, b}}, 1)->out[0];
}

/* m = the mean of gradients; x = the direction */
static void begin(const optimizer_update *u, matrix *m)
{
    const compiled *c = u->c;
    if (m->rows == 0)
        return;
    op momentum = {.kind = OP_muon_momentum,
                   .in = {update_rows(u->out, u->gradient, m->first, m->rows), c->inputs.scalars, u->control},
                   .out = {NULL, update_rows(u->out, u->s->state[0], m->first, m->rows)},
                   .at.nesterov = c->options.optimizer.nesterov};
    m->x = make(u, &momentum, 1)->out[0];
}

/* Where the tensor group divides a matrix, the side that each rank has whole; else the shorter. */
static bool takes_rows(const optimizer_update *u, const matrix *m)
{
    const parameter *p = u->s->of;
    return p->place.kind == PLACE_SHARD ? p->place.dim == 1 : m->rows <= p->columns;
}

/* A square matrix that an op accumulates into or zeroes: described here, not by the op. */
static tensor *new_square(const optimizer_update *u, int64_t n, placement place)
{
    tensor *t = pool_alloc(&u->out->pool, sizeof *t);
    tensor_describe(t, "gram", CLASS_TEMPORARY, DTYPE_FP32, 2, (int64_t[]){n, n});
    t->place = place;
    return t;
}

/* This rank's part of x x^T, or of x^T x; a copy adds nothing to the sum. */
static tensor *gram_part(const optimizer_update *u, const matrix *m)
{
    int64_t copied = u->s->of->copied_from;
    bool copy = copied >= 0 && m->first >= copied && update_along(u->c, AXIS_KV).group_rank > 0;
    bool rows = takes_rows(u, m), divided = u->s->of->place.kind == PLACE_SHARD;
    if (rows && !copy)
        return make_one(u, OP_linear, m->x, m->x);
    tensor *part = new_square(u, u->s->of->columns, divided ? place_partial() : place_replicate());
    if (copy || m->rows == 0)
        make(u, &(op){.kind = OP_zero, .out = {part}}, 0);
    else
        make(u, &(op){.kind = OP_linear_grad_weight, .in = {m->x, m->x}, .out = {part}}, 0);
    return part;
}

/* The sum over the ranks that divide the matrix. */
static tensor *gram(const optimizer_update *u, const matrix *m)
{
    op_attributes at = update_along(u->c, AXIS_TENSOR);
    tensor *part = gram_part(u, m);
    return at.group_size > 1 ? make(u, &(op){.kind = OP_all_reduce, .in = {part}, .at = at}, 1)->out[0] : part;
}

/* x = (a I + b G + c G^2) x, or x (a I + b G + c G^2); the first time x / |x| in x's place. */
static void improve(const optimizer_update *u, matrix *m, tensor *g, bool first)
{
    tensor *scale = NULL;
    if (first) {
        op *scaled = make(u, &(op){.kind = OP_muon_scale, .in = {g}, .at.epsilon = MUON_EPSILON}, 3);
        g = scaled->out[0];
        scale = scaled->out[1];
    }
    tensor *square = make_one(u, OP_linear, g, g);
    tensor *p = make(u, &(op){.kind = OP_muon_polynomial, .in = {g, square, scale}}, 1)->out[0];
    if (m->rows == 0)
        return;
    if (takes_rows(u, m)) {
        m->x = make_one(u, OP_linear_grad_input, p, m->x);
        return;
    }
    if (m->x->place.kind == PLACE_SHARD) /* each rank uses the same matrix for its own rows */
        p = make(u, &(op){.kind = OP_share, .in = {p}, .at = update_along(u->c, AXIS_TENSOR)}, 1)->out[0];
    m->x = make_one(u, OP_linear, m->x, p);
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
static void orthogonal(const optimizer_update *u)
{
    matrix m[PARAMETER_PIECES];
    tensor *g[PARAMETER_PIECES];
    int count = find_matrices(m, u->s->of);
    for (int i = 0; i < count; i++)
        begin(u, &m[i]);
    for (int iteration = 0; iteration < MUON_ITERATIONS; iteration++) {
        for (int i = 0; i < count; i++)
            g[i] = gram(u, &m[i]);
        for (int i = 0; i < count; i++)
            improve(u, &m[i], g[i], iteration == 0);
    }
    for (int i = 0; i < count; i++)
        if (m[i].rows > 0)
            append_rows(u, m[i].x, 0, m[i].first, m[i].rows, adjust(u->c, &m[i]));
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
