#include "engine/compile/model/offload.h"

#include <stdlib.h>

#include "engine/compile/model/optimizer.h"
#include "memory/log.h"
#include "engine/compile/model/duty.h"

/* Of each piece while it is fetched, updated and stowed. While piece i is updated, the two behind it are fetched and
 * the two before it are stowed, so that the bus is busy both ways. */
enum { WINDOWS = 4, AHEAD = WINDOWS - 2, OPERANDS = STORAGE_STATES + 1 };

/* Rows of a matrix, and each of its masters and states: where they are in host memory and in the arena. */
typedef struct piece {
    const storage *s;
    int64_t first, rows;
    tensor *host[OPERANDS], *arena[OPERANDS]; /* NULL where there is none */
} piece;

struct offload {
    compiled_program *out;
    const compiled *c;
    piece *pieces;
    int count, fetched;
    tensor *window[WINDOWS][OPERANDS]; /* apart, so that one is not waited for because of another */
};

bool offload_takes(const compile_options *o, const parameter *p)
{
    return o->offload && !p->vector;
}

/* The master, if it is no weight, and the states. */
static tensor *operand(const storage *s, int k)
{
    if (k == 0)
        return s->master != s->own_weight ? s->master : NULL;
    return k <= s->states ? s->state[k - 1] : NULL;
}

/* As many as one window takes, or all where matrices are updated as a whole. Pieces begin where tensors would. */
static int64_t rows_at_a_time(const compiled *c, const storage *s)
{
    int64_t bytes = 0, step = 1;
    if (optimizer_whole(&c->options, s->of))
        return s->own_rows;
    for (int k = 0; k < OPERANDS; k++)
        if (operand(s, k))
            bytes += s->of->columns * dtype_bytes((dtype)operand(s, k)->type);
    while (step * s->of->columns * dtype_bytes(precision_compute(c->options.precision)) % COMPILE_ALIGNMENT)
        step++;
    int64_t rows = c->options.window / WINDOWS / bytes / step * step;
    return rows > step ? rows : step;
}

static void divide_all(offload *o)
{
    o->count = 0;
    for (int i = 0; i < o->c->model.parameter_count; i++) {
        const parameter *p = o->c->model.parameters[i];
        const storage *s = &o->c->storage[p->number];
        if (!offload_takes(&o->c->options, p))
            continue;
        const int64_t all = duty_of(o->c->around.group, s, DUTY_UPDATE).rows;
        const int64_t most = all > 0 ? rows_at_a_time(o->c, s) : 0;
        for (int64_t first = 0, rows; first < all; first += rows) {
            rows = first + most < all ? most : all - first;
            if (o->pieces)
                o->pieces[o->count] = (piece){.s = s, .first = first, .rows = rows};
            o->count++;
        }
    }
}

/* The windows, each for the largest piece. */
static void open_windows(offload *o)
{
    for (int k = 0; k < OPERANDS; k++) {
        int64_t most = 0;
        for (int i = 0; i < o->count; i++) {
            const tensor *t = operand(o->pieces[i].s, k);
            int64_t bytes = t ? o->pieces[i].rows * t->pitch * dtype_bytes((dtype)t->type) : 0;
            most = bytes > most ? bytes : most;
        }
        for (int w = 0; w < WINDOWS && most > 0; w++) {
            o->window[w][k] = pool_alloc(&o->out->pool, sizeof(tensor));
            tensor_describe(o->window[w][k], "window", CLASS_TEMPORARY, DTYPE_UINT8, 1, &most);
        }
    }
}

/* `t` as if all of it were in the window, whose first byte is the piece's first row's: none but the piece's rows are
 * asked for. */
static tensor *in_window(const offload *o, tensor *window, const tensor *t, const piece *q)
{
    tensor *v = pool_alloc(&o->out->pool, sizeof *v);
    *v = *t;
    v->class = CLASS_TEMPORARY;
    v->base = window;
    v->offset = -q->first * t->pitch * dtype_bytes((dtype)t->type);
    v->address = -1;
    return v;
}

static void load_from_host(offload *o)
{
    int i = o->fetched++;
    piece *q = &o->pieces[i];
    const char *label = pool_format(&o->out->pool, "%s/load_host", q->s->of->name);
    for (int k = 0; k < OPERANDS; k++) {
        tensor *t = operand(q->s, k);
        if (!t)
            continue;
        q->arena[k] = in_window(o, o->window[i % WINDOWS][k], t, q);
        q->host[k] = append_rows(o->out, t, q->first, q->rows);
        q->host[k]->base = NULL; /* a tensor of its own, independent of the matrix's other pieces */
        op copy = {.kind = OP_load_host, .in = {q->host[k]}};
        copy.out[0] = append_rows(o->out, q->arena[k], q->first, q->rows);
        append_op(o->out, PHASE_UPDATE, label, &copy, 0, NULL);
    }
}

offload *offload_make(compiled_program *out, const compiled *c)
{
    offload *o = pool_alloc(&out->pool, sizeof *o);
    *o = (offload){.out = out, .c = c};
    divide_all(o);
    o->pieces = pool_alloc(&out->pool, (size_t)(o->count + 1) * sizeof *o->pieces);
    divide_all(o);
    open_windows(o);
    return o;
}

void offload_ahead(offload *o)
{
    while (o->fetched < AHEAD && o->fetched < o->count)
        load_from_host(o);
}

void offload_update(offload *o, tensor *const *gradient, tensor *control, tensor *peaks)
{
    for (int i = 0; i < o->count; i++) {
        piece *q = &o->pieces[i];
        while (o->fetched < o->count && o->fetched <= i + AHEAD)
            load_from_host(o);
        storage *s = pool_alloc(&o->out->pool, sizeof *s);
        *s = *q->s;
        s->master = q->arena[0] ? q->arena[0] : s->master;
        for (int k = 0; k < s->states; k++)
            s->state[k] = q->arena[1 + k];
        optimizer_append(&(optimizer_update){.out = o->out,
                                             .c = o->c,
                                             .s = s,
                                             .first = q->first,
                                             .rows = q->rows,
                                             .gradient = gradient[s->of->number],
                                             .control = control,
                                             .peaks = peaks});
        const char *label = pool_format(&o->out->pool, "%s/store_host", s->of->name);
        for (int k = 0; k < OPERANDS; k++) {
            if (!q->host[k])
                continue;
            op copy = {.kind = OP_store_host, .out = {q->host[k]}};
            copy.in[0] = append_rows(o->out, q->arena[k], q->first, q->rows);
            append_op(o->out, PHASE_UPDATE, label, &copy, 0, NULL);
        }
    }
}
