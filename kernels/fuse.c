#include "kernels/fuse.h"

#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

/* ---- what stands for what --------------------------------------------------------------------------------------- */

typedef struct fusion {
    op_kind fused, first, second;
} fusion;

static const fusion fusions[] = {{OP_linear_gelu, OP_linear, OP_gelu},
                                 {OP_linear_grad_gelu, OP_linear_grad_input, OP_gelu_grad}};

enum { FUSIONS = sizeof fusions / sizeof *fusions };

static const fusion *fusion_of(const op *o)
{
    for (int i = 0; i < FUSIONS; i++)
        if (fusions[i].fused == (op_kind)o->kind)
            return &fusions[i];
    return NULL;
}

bool fuse_is_fused(const op *o)
{
    return fusion_of(o) != NULL;
}

op fuse_first(const op *o)
{
    const fusion *f = fusion_of(o);
    op first = *o;
    if (!f)
        return first;
    first.kind = (uint8_t)f->first;
    if (f->fused == OP_linear_gelu) {
        first.out[0] = o->out[1] ? o->out[1] : o->out[0];
        first.out[1] = NULL;
    } else {
        first.in[2] = NULL;
    }
    return first;
}

op fuse_second(const op *o)
{
    const fusion *f = fusion_of(o);
    MUST(f, "%s is not fused", o->label);
    op first = fuse_first(o), second = {.kind = (uint8_t)f->second, .label = o->label};
    second.in[0] = first.out[0];
    if (f->fused == OP_linear_grad_gelu)
        second.in[1] = o->in[2];
    second.out[0] = o->out[0];
    return second;
}

/* ---- in recorded bodies ------------------------------------------------------------------------------------------ */

/* `readers`, by id: how often a tensor is read, in all bodies and beyond; a view's readers are its base's, too. */
static void count_reader(int *readers, const tensor *t)
{
    if (t && t->id >= 0)
        readers[t->id]++;
    if (t && t->base && t->base->id >= 0)
        readers[t->base->id]++;
}

/* y = gelu(z) moves up to its product, which reads nothing later; z is stored for other readers only. */
static void fuse_forward(const int *readers, op *product, const op *after)
{
    tensor *z = product->out[0];
    product->kind = OP_linear_gelu;
    product->out[0] = after->out[0];
    product->out[0]->producer = product;
    product->out[1] = readers[z->id] > 1 ? z : NULL;
}

/* The product moves down to gelu_grad, the only reader of its result: z may be made again in between. */
static void fuse_backward(const op *product, op *after)
{
    after->kind = OP_linear_grad_gelu;
    after->label = product->label;
    after->in[2] = after->in[1];
    after->in[0] = product->in[0];
    after->in[1] = product->in[1];
}

/* The product that makes input 0 of `o`, in the same body, if `o` can be fused with it. */
static op *product_before(const int *readers, const op *o)
{
    op *product = o->in[0] ? o->in[0]->producer : NULL;
    if (!product || product->phase != o->phase || product->detached || o->detached)
        return NULL;
    for (int i = 0; i < FUSIONS; i++)
        if ((op_kind)o->kind == fusions[i].second && (op_kind)product->kind == fusions[i].first)
            return fusions[i].fused == OP_linear_gelu || (readers[o->in[0]->id] == 1 && !product->in[2]) ? product
                                                                                                         : NULL;
    return NULL;
}

static void fuse_body(const int *readers, program *body)
{
    for (int i = 0; i < body->count; i++) {
        int gone = i;
        op *o = body->ops[i], *product = product_before(readers, o);
        if (!product)
            continue;
        if (o->kind == OP_gelu) {
            fuse_forward(readers, product, o);
        } else {
            fuse_backward(product, o);
            for (gone = 0; body->ops[gone] != product;)
                gone++;
        }
        memmove(&body->ops[gone], &body->ops[gone + 1], (size_t)(body->count - gone - 1) * sizeof *body->ops);
        body->count--;
        i--;
    }
}

void fuse_recorded(recorder *r, tensor *const *ends, int count)
{
    int *readers = must_calloc((unsigned long)r->tensor_count + 1, sizeof *readers);
    for (int i = 0; i < count; i++)
        count_reader(readers, ends[i]);
    for (int p = 0; p < PHASE_COUNT; p++)
        for (int i = 0; i < r->body[p].count; i++)
            for (int k = 0; k < OP_MAX_IN; k++)
                count_reader(readers, r->body[p].ops[i]->in[k]);
    for (int p = 0; p < PHASE_COUNT; p++)
        fuse_body(readers, &r->body[p]);
    free(readers);
}
