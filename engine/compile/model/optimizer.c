#include "engine/compile/model/optimizer.h"

#include <math.h>
#include <string.h>

#include "engine/compile/model/owner.h"
#include "kernels/host_device.h"
#include "kernels/record/program.h"
#include "kernels/record/replicas.h"
#include "kernels/rounding.h"

/* ---- ops outside the micro-batches ---- */

op *append_op(compiled_program *out, phase when, const char *label, const op *like, unsigned outputs, tensor *into)
{
    op o = *like;
    o.phase = (uint8_t)when;
    o.label = o.site = label;
    o.layer = -1;
    o.microbatch = -1;
    op *made = op_make(&out->pool, &o, outputs, (tensor *[OP_MAX_OUT]){into});
    program_append(&out->list, made);
    return made;
}

tensor *append_rows(compiled_program *out, tensor *of, int64_t first_row, int64_t rows)
{
    tensor *v = pool_alloc(&out->pool, sizeof *v);
    *v = *of;
    v->base = tensor_root(of);
    int64_t offset = first_row * of->pitch * dtype_bytes((dtype)of->type);
    v->offset = of->offset + offset;
    v->address = of->address >= 0 ? of->address + offset : -1;
    v->shape[0] = rows;
    return v;
}

/* ---- QK-clip ---- */

/* fp32[count], described for the op that writes it. */
static tensor *new_vector(compiled_program *out, const char *label, int64_t count, placements place)
{
    tensor *t = pool_alloc(&out->pool, sizeof *t);
    tensor_describe(t, label, CLASS_TEMPORARY, DTYPE_FP32, 1, &count);
    t->place = place;
    return t;
}

static tensor *gather_scores(compiled_program *out, const compiled *c, const char *label, axis along, tensor *x)
{
    const op like = replicas_gather_notes(c->around.group, along, x);
    return like.where.group_size > 1 ? append_op(out, PHASE_UPDATE, label, &like, 1, NULL)->out[0] : x;
}

static tensor *append_max(compiled_program *out, const char *label, tensor *x, tensor *y)
{
    append_op(out, PHASE_UPDATE, label, &(op){.kind = OP_max_logit, .in = {x}, .out = {y}}, 0, NULL);
    return y;
}

tensor *qk_clip_gather(compiled_program *out, const compiled *c)
{
    tensor *own = c->values.max_logits;
    if (tensor_elements(c->values.max_logit) == 0)
        return NULL;
    tensor *layers = append_max(out, "qk clip/of layers", own,
                                new_vector(out, "largest scores of layers", own->shape[0], own->place));
    tensor *rank = append_max(out, "qk clip/of rank", layers, new_vector(out, "largest score of rank", 1, own->place));
    append_max(out, "qk clip/of all ranks",
               gather_scores(out, c, "qk clip/gather_scores of all ranks", AXIS_GRID, rank), c->values.max_logit);
    return gather_scores(out, c, "qk clip/gather_scores", AXIS_GRADIENT, own);
}

static tensor *append_factors(compiled_program *out, const compiled *c, const storage *s, tensor *max_logits,
                              const op_qk_clip *made, int layer)
{
    const char *label = pool_format(&out->pool, "%s/qk clip", s->of->name);
    op like = {.kind = OP_qk_factors,
               .in = {max_logits},
               .out = {new_vector(out, label, s->of->rows, s->master->place)},
               .at.qk = *made};
    like.at.qk.threshold = (float)c->options.optimizer.qk_clip;
    like.at.qk.layer = layer;
    like.at.qk.layers = c->values.max_logits->shape[0];
    return append_op(out, PHASE_UPDATE, label, &like, 0, NULL)->out[0];
}

/* Appends the ops that compute the factors fp32[rows] of the weight's rows; NULL: it makes neither queries nor keys. s:
 * the rank has all its rows, as Muon's updates have. */
static tensor *qk_clip_factors(compiled_program *out, const compiled *c, const storage *s, tensor *max_logits)
{
    for (int i = 0; max_logits && i < c->model.chunk_count; i++)
        for (int k = 0; k < c->model.chunks[i].block_count; k++) {
            const block_layer *b = &c->model.chunks[i].blocks[k];
            const op_qk_clip made = layer_clipped(b, s->of);
            if (made.blocks > 0)
                return append_factors(out, c, s, max_logits, &made, b->attention.index);
        }
    return NULL;
}

/* ---- element by element ---------------------------------------------------------------------------------------- */

/* Owned rows (vector: elements) that are consecutive rows of one named tensor. */
typedef struct span {
    int64_t first, rows;
    op_update at; /* position in the named tensor */
} span;

/* A piece of a parameter within the rows, or elements, that this rank owns. */
static span piece_span(const storage *s, const parameter_block *q)
{
    const box *part = &q->of.part;
    span p = {.first = q->column,
              .rows = part->size[0],
              .at = {.first_element = part->start[0], .stream = philox_stream(q->of.name)}};
    if (s->of->vector)
        return p;
    int out = q->transposed ? 1 : 0, in = 1 - out; /* elements are numbered as [out, in], whatever the file's order */
    p.first = q->row - s->own_first;
    p.rows = part->size[out];
    p.at.first_element = part->start[out] * q->of.global[in] + part->start[in] - q->column;
    p.at.stride = q->of.global[in];
    return p;
}

static bool follows_span(const span *a, const span *b)
{
    int64_t step = a->at.stride ? a->at.stride : 1;
    return b->first == a->first + a->rows && b->at.stream == a->at.stream &&
           b->at.first_element == a->at.first_element + a->rows * step;
}

/* Lists the spans of rows [first, first + rows), in the program's pool; one is enough if no state is rounded. */
static int find_spans(span **spans, const optimizer_update *u, int64_t first, int64_t rows)
{
    int count = 0;
    span *out = *spans = pool_alloc(&u->out->pool, (size_t)(u->s->of->piece_count + 1) * sizeof *out);
    if (!precision_is_narrow(u->c->options.optimizer.state) && !precision_is_narrow(u->c->options.optimizer.master)) {
        *out = (span){.first = first, .rows = rows};
        return 1;
    }
    for (int i = 0; i < u->s->of->piece_count; i++) {
        span p = piece_span(u->s, &u->s->of->pieces[i]);
        int64_t end = first + rows;
        int64_t skip = p.first < first ? first - p.first : 0;
        p.first += skip;
        p.rows -= skip;
        p.at.first_element += skip * (p.at.stride ? p.at.stride : 1);
        if (p.first + p.rows > end)
            p.rows = end - p.first;
        if (p.rows <= 0)
            continue;
        if (count > 0 && follows_span(&out[count - 1], &p))
            out[count - 1].rows += p.rows;
        else
            out[count++] = p;
    }
    return count;
}

/* Appends one optimizer op on owned rows; x: these rows of the gradient or of its direction. factors: all rows, or
 * NULL. */
static void append_update(const optimizer_update *u, tensor *x, const span *at, float scale, tensor *factors)
{
    const compiled *c = u->c;
    const storage *s = u->s;
    op like = {.kind = (uint8_t)optimizer_of(&c->options, s->of)->op,
               .in = {x, c->values.scalars, u->control},
               .out = {NULL, append_rows(u->out, s->master, at->first, at->rows)},
               .at.update = at->at};
    if (factors)
        like.in[3] = append_rows(u->out, factors, at->first, at->rows);
    like.at.update.decay = s->of->decay;
    like.at.update.nesterov = c->options.optimizer.nesterov;
    like.at.update.scale = scale;
    like.at.update.rounding_site = ROUNDING_SITE;
    if (s->master != s->own_weight)
        like.out[0] = append_rows(u->out, s->own_weight, at->first, at->rows);
    for (int i = 0; i < s->states && x->class == CLASS_GRADIENT; i++) /* else the states are updated already */
        like.out[2 + i] = append_rows(u->out, s->state[i], at->first, at->rows);
    append_op(u->out, PHASE_UPDATE, pool_format(&u->out->pool, "%s/update", s->of->name), &like, 0, NULL);
}

static void update_spans(const optimizer_update *u)
{
    span *at;
    int count = find_spans(&at, u, u->first, u->rows);
    for (int i = 0; i < count; i++)
        append_update(u, append_rows(u->out, u->gradient, at[i].first, at[i].rows), &at[i], 1, NULL);
}

/* ---- Muon ------------------------------------------------------------------------------------------------------ */

/* A matrix by Hugging Face's name, and its rows in the rank's part of a parameter. */
typedef struct matrix {
    const char *name;
    int64_t global[2];
    int64_t first, rows;
    tensor *x; /* fp32 [rows, columns]; its singular values approach 1; NULL if the rank has no row */
} matrix;

/* Finds the matrices of a parameter, consecutive: pieces of one name are joined, but each expert's stay apart. */
static int find_matrices(matrix *out, const parameter *p)
{
    int count = 0;
    for (int i = 0; i < p->piece_count; i++) {
        const parameter_block *q = &p->pieces[i];
        const int side = q->transposed;
        matrix m = {q->of.name, {q->of.global[0], q->of.global[1]}, q->row, q->of.part.size[side], NULL};
        m.global[0] /= q->stacked ? q->stacked : 1;
        bool begins = q->stacked && q->of.part.start[0] % m.global[0] == 0;
        if (count > 0 && !begins && !strcmp(out[count - 1].name, q->of.name))
            out[count - 1].rows += m.rows;
        else
            out[count++] = m;
    }
    return count;
}

/* An update of one parameter's matrices while its ops are appended. */
typedef struct orthogonalisation {
    const optimizer_update *of;
    const char *label;
    axis along; /* its ranks have other parts of the matrices; AXIS_COUNT: this rank has them whole */
    int slot;   /* index among placements along it */
} orthogonalisation;

/* The parameter says along which axis its matrices are divided. */
static orthogonalisation start_matrices(const optimizer_update *of)
{
    const parameter *p = of->s->of;
    orthogonalisation u = {of, pool_format(&of->out->pool, "%s/orthogonalise", p->name), AXIS_COUNT, -1};
    for (axis a = 0; a < AXIS_COUNT && u.slot < 0; a++)
        for (int slot = 0; slot < AXIS_SLOTS; slot++)
            if (axis_slots(a) == 1u << slot && p->place.along[slot].kind == PLACE_SHARD) {
                u.along = a;
                u.slot = slot;
            }
    return u;
}

/* Describes exchanges between the ranks that divide a matrix. */
static op_where exchange_along(const orthogonalisation *u)
{
    return u->slot < 0 ? (op_where){.group_size = 1} : op_along(u->of->c->around.group, u->along);
}

static op *make_op(const orthogonalisation *u, const op *like, unsigned outputs)
{
    return append_op(u->of->out, PHASE_UPDATE, u->label, like, outputs, NULL);
}

/* m = the mean of gradients; x = the direction */
static void begin_matrix(const orthogonalisation *u, matrix *m)
{
    const optimizer_update *of = u->of;
    span *at;
    if (m->rows == 0)
        return;
    m->x = pool_alloc(&of->out->pool, sizeof(tensor));
    tensor_describe(m->x, u->label, CLASS_TEMPORARY, DTYPE_FP32, 2, (int64_t[]){m->rows, of->s->of->columns});
    m->x->place = of->gradient->place;
    int count = find_spans(&at, of, m->first, m->rows);
    for (int i = 0; i < count; i++) {
        op like = {
            .kind = OP_muon_momentum,
            .in = {append_rows(of->out, of->gradient, at[i].first, at[i].rows), of->c->values.scalars, of->control},
            .out = {append_rows(of->out, m->x, at[i].first - m->first, at[i].rows),
                    append_rows(of->out, of->s->state[0], at[i].first, at[i].rows)},
            .at.update = at[i].at};
        like.at.update.nesterov = of->c->options.optimizer.nesterov;
        like.at.update.rounding_site = ROUNDING_SITE_MOMENTUM;
        make_op(u, &like, 0);
    }
}

/* True if products take rows: where ranks divide a matrix, the side that each has whole; else the shorter. */
static bool takes_rows(const orthogonalisation *u, const matrix *m)
{
    const parameter *p = u->of->s->of;
    return u->slot >= 0 ? p->place.along[u->slot].dim == 1 : m->rows <= p->columns;
}

/* Appends x x^T, or x^T x: a sum over the ranks that divide the other side; copies are not added again. */
static tensor *append_gram(const orthogonalisation *u, const matrix *m)
{
    const parameter *p = u->of->s->of;
    bool rows = takes_rows(u, m);
    const op_where where = exchange_along(u);
    const owner_rows added = owner_rows_of(u->of->c->around.group, u->of->s, OWNER_ADDS);
    bool copy = where.group_size > 1 && m->first >= added.first + added.rows;
    tensor *part;
    if (rows && !copy && m->rows > 0) {
        part = make_op(u, &(op){.kind = OP_linear, .in = {m->x, m->x}}, 1)->out[0];
    } else {
        const int64_t n = rows ? m->rows : p->columns;
        part = pool_alloc(&u->of->out->pool, sizeof *part);
        tensor_describe(part, u->label, CLASS_TEMPORARY, DTYPE_FP32, 2, (int64_t[]){n, n});
        part->place = u->of->gradient->place;
        if (u->slot >= 0)
            part->place.along[u->slot] = where.group_size > 1 ? place_partial() : place_replicate();
        op like = {.kind = OP_linear_grad_weight, .in = {m->x, m->x}, .out = {part}};
        if (copy || m->rows == 0)
            like = (op){.kind = OP_zero, .out = {part}};
        make_op(u, &like, 0);
    }
    if (where.group_size == 1)
        return part;
    return make_op(u, &(op){.kind = OP_all_reduce, .in = {part}, .where = where}, 1)->out[0];
}

/* x = (a I + b G + c G^2) x, or x (a I + b G + c G^2); the first time x / |x| in x's place. */
static void improve_matrix(const orthogonalisation *u, matrix *m, tensor *g, bool first)
{
    tensor *scale = NULL;
    if (first) {
        op *o = make_op(u, &(op){.kind = OP_muon_scale, .in = {g}, .at.update.epsilon = MUON_EPSILON}, 3);
        g = o->out[0];
        scale = o->out[1];
    }
    tensor *square = make_op(u, &(op){.kind = OP_linear, .in = {g, g}}, 1)->out[0];
    tensor *p = make_op(u, &(op){.kind = OP_muon_polynomial, .in = {g, square, scale}}, 1)->out[0];
    if (m->rows == 0)
        return;
    if (takes_rows(u, m)) {
        m->x = make_op(u, &(op){.kind = OP_linear_grad_input, .in = {p, m->x}}, 1)->out[0];
        return;
    }
    if (u->slot >= 0 && m->x->place.along[u->slot].kind == PLACE_SHARD) /* each rank's rows take the same matrix */
        p = make_op(u, &(op){.kind = OP_copy_to_shards, .in = {p}, .where = exchange_along(u)}, 1)->out[0];
    m->x = make_op(u, &(op){.kind = OP_linear, .in = {m->x, p}}, 1)->out[0];
}

/* The learning rate's factor from a matrix's shape: PyTorch's two rules. */
static float rate_factor(const compiled *c, const matrix *m)
{
    double a = (double)m->global[0], b = (double)m->global[1];
    if (c->options.optimizer.adjust == CONFIG_ADJUST_RMS)
        return (float)(0.2 * sqrt(fmax(a, b)));
    return (float)sqrt(fmax(1, a / b));
}

/* Updates the matrices of one parameter step by step, so that one's sum travels while another is multiplied. */
static void update_matrices(const optimizer_update *of)
{
    const parameter *p = of->s->of;
    orthogonalisation u = start_matrices(of);
    matrix *m = pool_alloc(&of->out->pool, (size_t)p->piece_count * sizeof *m);
    tensor **g = pool_alloc(&of->out->pool, (size_t)p->piece_count * sizeof *g);
    int count = find_matrices(m, p);
    for (int i = 0; i < count; i++)
        begin_matrix(&u, &m[i]);
    for (int iteration = 0; iteration < MUON_ITERATIONS; iteration++) {
        for (int i = 0; i < count; i++)
            g[i] = append_gram(&u, &m[i]);
        for (int i = 0; i < count; i++)
            improve_matrix(&u, &m[i], g[i], iteration == 0);
    }
    tensor *factors = qk_clip_factors(of->out, of->c, of->s, of->max_logits);
    for (int i = 0; i < count; i++) {
        span *at;
        int spans = m[i].rows > 0 ? find_spans(&at, of, m[i].first, m[i].rows) : 0;
        for (int k = 0; k < spans; k++)
            append_update(of, append_rows(of->out, m[i].x, at[k].first - m[i].first, at[k].rows), &at[k],
                          rate_factor(of->c, &m[i]), factors);
    }
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

enum { ELEMENTS, MATRICES };
static void (*const appends[])(const optimizer_update *u) = {[ELEMENTS] = update_spans, [MATRICES] = update_matrices};

static const optimizer rows[] = {
#define OPTIMIZER(name_, takes_, rest_, ...)                                                                           \
    [CONFIG_OPTIMIZER_##name_] = {                                                                                     \
        .name = #name_, .op = OP_##name_, .takes = takes_, .rest = CONFIG_OPTIMIZER_##rest_, .state = {__VA_ARGS__}},
#include "engine/config/optimizers.def"
};

dtype optimizer_state_type(const compile_options *o)
{
    return o->optimizer.state;
}

bool optimizer_has_master(const compile_options *o)
{
    return o->optimizer.master != precision_compute(o->precision);
}

const optimizer *optimizer_of(const compile_options *o, const parameter *p)
{
    config_optimizer name = o->optimizer.name;
    bool matrix_of_block = p->of_block && !p->vector;
    return &rows[matrix_of_block ? name : rows[name].rest];
}

int optimizer_states(const optimizer *o)
{
    int count = 0;
    while (o->state[count])
        count++;
    return count;
}

void optimizer_append(const optimizer_update *u)
{
    appends[optimizer_of(&u->c->options, u->s->of)->takes](u);
}

bool optimizer_whole(const compile_options *o, const parameter *p)
{
    config_optimizer name = o->optimizer.name;
    return rows[name].rest != name && optimizer_of(o, p) == &rows[name];
}

bool optimizer_offloads(const compile_options *o, const parameter *p)
{
    return o->offload && !p->vector;
}

void optimizer_sections(const char *names[OPTIMIZER_SECTIONS], const compile_options *o)
{
    config_optimizer name = o->optimizer.name;
    int count = 0;
    for (int i = 0; rows[name].state[i]; i++)
        names[count++] = rows[name].state[i];
    for (int i = 0; rows[name].rest != name && rows[rows[name].rest].state[i]; i++)
        names[count++] = rows[rows[name].rest].state[i];
    names[count] = NULL;
}
