#include "engine/compile/model/flops.h"

#include <stdlib.h>

#include "kernels/exact_sum.h"
#include "kernels/grouped.h"
#include "kernels/record/product.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "models/decoder.h"
#include "models/rope.h"

/* Weights as a recording sees them, without bytes and without padding. */
static storage *describe_weights(pool *p, const decoder *d)
{
    storage *all = pool_alloc(p, (size_t)(d->numbers + 1) * sizeof *all);
    for (int i = 0; i < d->parameter_count; i++) {
        const parameter *q = d->parameters[i];
        tensor *t = pool_alloc(p, sizeof *t);
        int64_t shape[] = {0, q->columns};
        for (int k = 0; k < q->piece_count; k++)
            shape[0] += q->pieces[k].of.part.size[q->pieces[k].transposed];
        tensor_describe(t, q->name, CLASS_WEIGHT, q->counted ? DTYPE_FP32 : DTYPE_BF16, q->vector ? 1 : 2, shape);
        t->place = q->place;
        t->parameter = q;
        all[q->number] = (storage){.of = q, .owner = -1, .own_rows = q->rows, .weight = t};
    }
    return all;
}

static tensor *new_input(recorder *r, const char *name, dtype type, int64_t rows, int64_t columns)
{
    int64_t shape[] = {rows, columns};
    return recorder_input(r, name, type, columns ? 2 : 1, shape, recorder_activation(&r->grid, place_replicate()));
}

/* The forward pass of the model's layer `layer` for one sample, as the only layer of a chunk, with the ends if it is at
 * one. */
static void record_layer(recorder *r, pool *p, decoder *d, const model_shape *s, int layer, int64_t sequence)
{
    const int one = 1;
    const dtype compute = DTYPE_BF16;
    layer_sizes sizes = {.compute = compute, .routers = s->experts > 0, .mtp = s->mtp_layers};
    const layer_sizes *v = &sizes;
    rope_size(sizes.rope, s, sequence);
    decoder_layout layout = {.grid = recorder_alone(),
                             .compute = compute,
                             .chunk_count = 1,
                             .first_layer = &layer,
                             .layers = &one,
                             .first_chunk = layer == 0 ? 0 : -1,
                             .last_chunk = layer == s->layers - 1 ? 0 : -1};
    decoder_open(d, p, s, &layout);
    recorder_open(r, p, &layout.grid, compute, describe_weights(p, d), d->numbers);
    r->tokens = sequence;
    layer_inputs in = {
#define INPUT(name, text, ...) .name = new_input(r, text, DTYPE_INT32, sequence, 0),
#include "layers/inputs.def"
#define VALUE(name, text, type, rows, columns, ...) .name = new_input(r, text, type, rows, columns),
#include "layers/values.def"
        .sequence = (int)sequence, .epsilon = (float)s->norm_epsilon, .mtp = v->mtp > 0};
    tensor *input[LAYER_HEAD_PASSES] = {layer ? new_input(r, "input", compute, sequence, s->hidden_size) : NULL};
    tensor *out[LAYER_HEAD_PASSES];
    decoder_forward(r, out, d, 0, &in, input);
}

/* Adds the recorded ops of layer `layer` (-1: ops of no layer). */
static flops_layer sum_layer(const recorder *r, int layer)
{
    flops_layer sum = {0};
    const program *body = &r->body[PHASE_FORWARD];
    for (int i = 0; i < body->count; i++) {
        const op *o = body->ops[i];
        if (o->layer != layer)
            continue;
        if (op_is(o, OP_CLASS_PRODUCT)) {
            matrix_product p = product_of(o);
            sum.products += product_flops(&p) / (double)r->tokens;
        }
        if (op_is(o, OP_CLASS_GROUPED)) {
            grouped_product p = grouped_of(o);
            sum.products += grouped_flops(&p) / (double)r->tokens;
        }
        if (op_does(o, OP_MIXES))
            sum.attention += op_row_of(o)->cost(o).flops / (double)r->tokens;
    }
    return sum;
}

/* Measures a layer, or the end recorded with it: which = layer or -1. */
static flops_layer measure_layer(const model_shape *s, int64_t sequence, int layer, int which)
{
    RELEASED_BY(pool_free) pool p = {0};
    decoder d;
    RELEASED_BY(recorder_close) recorder r = {0};
    record_layer(&r, &p, &d, s, layer, sequence);
    return sum_layer(&r, which);
}

void flops_open(flops_model *f, const model_shape *s, int64_t sequence)
{
    *f = (flops_model){.kind_of = must_calloc((unsigned long)s->layers, sizeof *f->kind_of)};
    f->kind_count = shape_kinds(f->kind_of, s);
    f->kinds = must_calloc((unsigned long)f->kind_count, sizeof *f->kinds);
    f->per_kind = must_calloc((unsigned long)f->kind_count, sizeof *f->per_kind);
    for (int i = 0; i < s->layers; i++)
        if (f->per_kind[f->kind_of[i]]++ == 0)
            f->kinds[f->kind_of[i]] = measure_layer(s, sequence, i, i);
    f->head = measure_layer(s, sequence, s->layers - 1, -1).products;
    if (s->mtp_layers > 0) {
        f->mtp = measure_layer(s, sequence, s->layers - 1, s->layers);
        f->mtp.products -= f->head;
    }
}

void flops_close(flops_model *f)
{
    free(f->kinds);
    free(f->kind_of);
    free(f->per_kind);
    *f = (flops_model){0};
}

int flops_layers_of(const flops_model *f, int kind, int first, int count)
{
    int sum = 0;
    for (int i = first; i < first + count; i++)
        sum += f->kind_of[i] == kind;
    return sum;
}

double flops_per_token(const model_shape *s, int64_t sequence)
{
    RELEASED_BY(flops_close) flops_model f = {0};
    flops_open(&f, s, sequence);
    double sum = shape_head_passes(s) * f.head + f.mtp.products + f.mtp.attention;
    for (int k = 0; k < f.kind_count; k++)
        sum += (f.kinds[k].products + f.kinds[k].attention) * f.per_kind[k];
    return 3 * sum;
}
